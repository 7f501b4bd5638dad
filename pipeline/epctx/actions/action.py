"""An action: what one worker process is asked to do, what comes of it, and how it is done.

A job is an ordered list of actions for one process. Each result is sent when it is finished, so
what ends the process later does not take it away. An action that is *within* another finds open
what that one had opened; what is open is closed before the first action that is not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Struct

from epctx.files import outputs

if TYPE_CHECKING:
    from epctx.keys.toolchain import Toolchain

if sys.platform == "win32":
    import psutil
else:
    import resource

R = TypeVar("R")
T = TypeVar("T")


class StageStarted(Struct, frozen=True, kw_only=True):
    """A worker has begun a stage, of a model where the stage goes model by model.

    Attributes:
        provider: the EP that works on it now, by ONNX Runtime's name of it: its code may crash.
        number: of the input set that it is run on, from 1 on; 0: it is not run on one, or the stage
            is no run.
        of: how many input sets it is run on.
        ago: seconds since, if it is told later.
    """

    stage: Literal[
        "load",
        "optimize",
        "quantize",
        "source",
        "partition",
        "compile",
        "dump",
        "verify",
        "compose",
        "golden",
    ]
    model: str | None = None
    provider: str | None = None
    number: int = 0
    of: int = 0
    ago: float = 0.0


class Code(NamedTuple):
    """The code that carries out an action, beside that of every one (`keys.toolchain.EVERY`).

    Attributes:
        sources: of epctx, as glob patterns. A test follows imports, so that none is missing; the
            package of an EP is in its ProviderRecord.
        libraries: the distributions whose version can change what comes of it. Python's own cannot:
            nothing that reaches bytes is computed by it that it does not define exactly.
    """

    sources: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ("ml-dtypes", "numpy", "onnx", "onnx-ir", "protobuf")


RUNNING: Final = ("inference/*.py", "verification/**/*.py")
"""Sources of what runs models."""
SESSIONS: Final = (*Code().libraries, "onnxruntime")
"""Libraries of what opens sessions."""


class Action(Struct, Generic[R], frozen=True, kw_only=True):
    """A request, as it crosses to a worker, and the key of its result; `kinds.KINDS` has all.

    What the result depends on is in the fields, and nothing else: digests stand for contents. What
    it does not depend on is named in `beside`: paths, and what messages call things.

    Attributes:
        result: the type of what comes of it.
        kind: what users, reports and the cache call it; empty: it has no key of its own.
        version: of the meaning of its fields.
        code: what carries it out, if it has a key.
        beside: the fields that are not in its key.
        writes: the fields that name folders which it writes to.
        adds: those of them that it reads, too: what is there stays, and is added to.
        failed: of such a field, the one file that counts if the action fails.
        within: the action that it must follow, and whose open sessions it uses; None: none.
        bounded: the budget of numbers bounds it: it may be ended in the middle, or left out.
        isolates: what an EP leaves in the process may change what comes later: how the process
            ends counts.
    """

    result: ClassVar[type[Any]]
    kind: ClassVar[str] = ""
    version: ClassVar[int] = 1
    code: ClassVar[Code] = Code()
    beside: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    adds: ClassVar[tuple[str, ...]] = ()
    failed: ClassVar[dict[str, str]] = {}
    within: ClassVar[type[Action[Any]] | None] = None
    bounded: ClassVar[bool] = False
    isolates: ClassVar[bool] = False

    def run(self, worker: WorkerContext) -> R:
        """Carry it out. Raises EpctxError, as its class says."""
        raise NotImplementedError  # a Struct cannot be abstract; test_kinds sees that all have one

    def facts(self, toolchain: Toolchain) -> dict[str, Any]:
        """Return what else its result depends on: the code and the libraries that carry it out."""
        return {"toolchain": toolchain.of(*self.code)}

    def record(self, toolchain: Toolchain) -> dict[str, Any]:
        """Return what its key is the digest of, as plain values.

        Raises:
            EpctxError: as `facts`.
        """
        fields = {n: getattr(self, n) for n in self.__struct_fields__ if n not in self.beside}
        whole = {"action": self.kind, "version": self.version, **fields, **self.facts(toolchain)}
        return cast(dict[str, Any], msgspec.to_builtins(whole))


class WorkerContext:
    """The process that carries out an action, as the action sees it.

    Args:
        started: hears of each stage before it begins.

    Attributes:
        sessions: what stays open for the actions that are within this one, or of its kind.
        live: likewise, what those want to know of it.
        done: the results of the job so far.
        kept_open: the next action is within this one.
    """

    def __init__(self, started: Callable[[StageStarted], None]) -> None:
        self.started = started
        self.sessions = ExitStack()
        self.live: Any = None
        self.done: list[Any] = []
        self.kept_open = False
        self._open: object = None

    def opened(self, name: object, make: Callable[[], T]) -> T:
        """Return what an action before has left open under this name; else make it, in the place of
        what is open.
        """
        if self.live is None or self._open != name:
            self.close()
            self.live, self._open = make(), name
        return cast(T, self.live)

    def close(self) -> None:
        """Close what was left open."""
        self.live = None
        self.sessions.close()

    def last(self, kind: type[T]) -> T:
        """Return the last result of a kind in this job."""
        return next(each for each in reversed(self.done) if isinstance(each, kind))


def carry_out(
    actions: Sequence[Action[Any]], started: Callable[[StageStarted], None]
) -> Iterator[Any]:
    """Carry out a job in this process, and give the result of each action when it is finished.

    Raises:
        EpctxError: what an action raises; what the system refuses is a StorageError.
    """
    worker = WorkerContext(started)
    before: type[Action[Any]] | None = None
    with outputs.refusals(), worker.sessions:
        for number, action in enumerate(actions, start=1):
            if action.within is None and before is not type(action):
                worker.close()
            before = type(action)
            worker.kept_open = any(each.within is before for each in actions[number:][:1])
            worker.done.append(action.run(worker))
            yield worker.done[-1]


def peak_memory() -> int:
    """Return the largest resident size of this process so far, in bytes."""
    if sys.platform == "win32":
        peak = int(psutil.Process().memory_info().peak_wset)
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return peak
