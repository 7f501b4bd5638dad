"""An action: a request to one worker process, its result, and its code.

A job is an ordered list of actions for one process. Each result is sent when it is finished, so a
later crash of the process does not lose it. An action that is *within* another uses the sessions
that the other opened. They are closed before the first action that is not within it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Struct

from epctx.files import outputs
from epctx.graph import native
from epctx.manifest import ModelSource

if TYPE_CHECKING:
    from epctx.keys.toolchain import Toolchain

if sys.platform == "win32":
    import psutil
else:
    import resource

R = TypeVar("R")
T = TypeVar("T")


class StageStarted(Struct, frozen=True, kw_only=True):
    """A worker has begun a stage; the model is given if the stage goes model by model.

    Attributes:
        provider: ONNX Runtime's name of the EP at work, whose code may crash.
        number: number of the input set of a run, from 1 on; 0 if there is none.
        of: number of input sets.
        ago: seconds since the beginning, if it is reported later.
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
    """Code that carries out an action, beside that of all actions (`keys.toolchain.EVERY`).

    Attributes:
        sources: glob patterns of epctx's sources. A test follows imports, so that none is missing;
            the package of an EP is in its ProviderRecord.
        libraries: distributions whose version can change the result. Python's version cannot: all
            that it computes for output bytes is defined exactly.
    """

    sources: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ("ml-dtypes", "numpy", "onnx", "onnx-ir", "protobuf")


RUNNING: Final = ("inference/*.py", "verification/**/*.py")
"""Sources of code that runs models."""
SESSIONS: Final = (*Code().libraries, "onnxruntime")
"""Libraries of code that opens sessions."""


class Action(Struct, Generic[R], frozen=True, kw_only=True):
    """A request to a worker, and the key of its result; `kinds.KINDS` has all actions.

    The fields determine the result: digests stand for contents. Fields in `beside` do not affect
    it: paths, and names in messages.

    Attributes:
        result: type of the result.
        kind: name for users, reports and the cache; empty if it has no key.
        version: version of the meaning of its fields.
        code: code that carries it out, if it has a key.
        beside: fields that are not in its key.
        writes: fields with folders that it writes to.
        adds: fields among `writes` whose folders it reads and adds to.
        failed: for a field in `writes`, the one file in its folder that counts if the action fails.
        within: action that it must follow, and whose open sessions it uses; None if none.
        bounded: true if the budget of numbers may end it early or leave it out.
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

    def run(self, worker: WorkerContext) -> R:
        """Carry the action out. Raises EpctxError as described in its class."""
        raise NotImplementedError  # a Struct cannot be abstract; test_kinds checks all actions

    def facts(self, toolchain: Toolchain) -> dict[str, Any]:
        """Return further facts that determine the result: the code and the libraries."""
        return {"toolchain": toolchain.of(*self.code)}

    def record(self, toolchain: Toolchain) -> dict[str, Any]:
        """Return the content of its key as plain values.

        Raises:
            EpctxError: as `facts`.
        """
        fields = {n: getattr(self, n) for n in self.__struct_fields__ if n not in self.beside}
        whole = {"action": self.kind, "version": self.version, **fields, **self.facts(toolchain)}
        return cast(dict[str, Any], msgspec.to_builtins(whole))


class WorkerContext:
    """The worker process, as an action sees it.

    Args:
        started: gets each stage before it begins.

    Attributes:
        sessions: open sessions, for actions within this one or of its kind.
        live: object about these sessions, for the same actions.
        done: results of the job so far.
        kept_open: true if the next action is within this one.
    """

    def __init__(self, started: Callable[[StageStarted], None]) -> None:
        self.started = started
        self.sessions = ExitStack()
        self.live: Any = None
        self.done: list[Any] = []
        self.kept_open = False
        self._open: object = None

    def opened(self, name: object, make: Callable[[], T]) -> T:
        """Return the object that an earlier action left open under this name; else close the open
        one and make it.
        """
        if self.live is None or self._open != name:
            self.close()
            self.live, self._open = make(), name
        return cast(T, self.live)

    def close(self) -> None:
        """Close the open sessions."""
        self.live = None
        self.sessions.close()

    def last(self, kind: type[T]) -> T:
        """Return the job's last result of a type."""
        return next(each for each in reversed(self.done) if isinstance(each, kind))


def carry_out(
    actions: Sequence[Action[Any]], started: Callable[[StageStarted], None]
) -> Iterator[Any]:
    """Carry out a job in this process; yield the result of each action when it is finished.

    Raises:
        EpctxError: an action raised it; refusals of the system are StorageErrors.
    """
    worker = WorkerContext(started)
    before: type[Action[Any]] | None = None
    with outputs.refusals(), worker.sessions:
        for number, action in enumerate(actions, start=1):
            if action.within is None and before is not type(action):
                worker.close()
            before = type(action)
            native.use_libraries(_custom_ops(action))
            worker.kept_open = any(each.within is before for each in actions[number:][:1])
            worker.done.append(action.run(worker))
            yield worker.done[-1]


def _custom_ops(value: object) -> Iterator[Path]:
    """Yield the libraries of custom operators of all source models in a value."""
    if isinstance(value, ModelSource) and value.custom_ops is not None:
        yield value.custom_ops
    elif isinstance(value, Struct):
        yield from _custom_ops(tuple(getattr(value, name) for name in value.__struct_fields__))
    elif isinstance(value, tuple):
        for each in value:
            yield from _custom_ops(each)


def peak_memory() -> int:
    """Return the largest resident size of this process so far, in bytes."""
    if sys.platform == "win32":
        peak = int(psutil.Process().memory_info().peak_wset)
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return peak
