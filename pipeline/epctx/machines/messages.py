"""Messages between machines: JSON, bounded, and checked on both sides.

The checks find mistakes. They stop no attacker: dask.distributed unpickles what it receives first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from msgspec import Struct, field

from epctx import codec, limits
from epctx.actions.action import StageStarted
from epctx.actions.kinds import CODE
from epctx.cache.digests import FreshDigests
from epctx.errors import CompileError, Failure
from epctx.files.digest import Digest
from epctx.keys.toolchain import Toolchain
from epctx.machines.portable import Blob, Files
from epctx.manifest import ProviderSpec
from epctx.providers.onnxruntime.host import Cpu
from epctx.worker.protocol import EncodedAction

T = TypeVar("T")
FACTS: Final = "epctx"
"""Where the scheduler has a worker's facts."""
TOPIC: Final = "epctx-stages"
"""Topic of the events that tell which stage a job has begun. It is one for all builds: a scheduler
forgets none of its topics, and of each only what is old."""
CALM: Final[Mapping[str, object]] = {
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.tick.interval": "500ms",
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.admin.low-level-log-length": 1000,
    "distributed.worker.profile.enabled": False,
}
"""Settings of dask without the work that is of no use here and takes a third of a core."""


class Facts(Struct, frozen=True, kw_only=True):
    """What a worker says of itself.

    Attributes:
        name: of the machine and the process, for people.
        epctx: its version.
        code: what of epctx and of its libraries an action's result depends on, by action.
        jobs: how many it carries out at a time.
    """

    name: str
    epctx: str
    code: Mapping[str, Mapping[str, str]]
    cpu: Cpu
    jobs: int


class Question(Struct, frozen=True, kw_only=True):
    """A question to a worker: fingerprints and traits of these EPs there."""

    eps: tuple[ProviderSpec, ...]
    files: Files


class Request(Struct, frozen=True, kw_only=True):
    """A job for a worker.

    Attributes:
        nonce: what the answer is called.
        label: of a process of its own; None: one that has carried out others' jobs will do.
        kind: then, which others' (`worker.pool.kind`).
        timeout: in seconds.
        budget: of its actions that are bounded, in seconds.
        memory: bytes that it needs: it waits until they are free.
    """

    nonce: Digest
    label: str | None
    kind: str
    job: tuple[EncodedAction, ...]
    files: Files
    timeout: float | None = None
    budget: float | None = None
    memory: int | None = None


class Began(Struct, frozen=True, kw_only=True):
    """A job has come to a stage, on the machine of this address."""

    nonce: Digest
    address: str
    stage: StageStarted


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a request.

    Attributes:
        address: of the worker.
        results: of the job's actions, encoded; of a question each EP, as `Described`; none: it
            failed.
        peak_memory: of the process that carried it out, in bytes.
        made: files that it wrote.
        failure: why it failed.
        own: it failed for the machine's own reasons, which another need not have.
        starved, native: as `CompileError` has them.
        log_file: what that machine calls the log of the process; "": there is none.
        log: all of it, if something was printed.
        lines: the last ones of it.
        stages: all that it came to: what was told of them may come later, or not.
    """

    address: str
    results: tuple[msgspec.Raw, ...] = ()
    peak_memory: int = 0
    made: Mapping[str, Blob] = field(default_factory=dict)
    failure: Failure | None = None
    own: bool = False
    starved: bool = False
    native: str | None = None
    log_file: str = ""
    log: Blob | None = None
    lines: tuple[str, ...] = ()
    stages: tuple[StageStarted, ...] = ()


def own_code() -> Mapping[str, Mapping[str, str]]:
    """Return what of epctx and its libraries an action's result depends on here, by action."""
    toolchain = Toolchain(FreshDigests())
    return {name: toolchain.of(*code) for name, code in CODE.items()}


def encoded(message: Struct) -> str:
    """A message as it is sent. Raises CompileError: it is too large."""
    return _bounded(codec.encode(message).decode())


def decoded(text: object, kind: type[T]) -> T:
    """A message that was sent. Raises CompileError: it is none of its kind, or too large."""
    if not isinstance(text, str):
        raise _strange(f"{type(text).__name__} in the place of a text")
    try:
        return codec.decode(_bounded(text), kind)
    except msgspec.MsgspecError as error:
        raise _strange(str(error)) from error


def _bounded(text: str) -> str:
    if len(text.encode()) > limits.MACHINE_JOB.value:
        raise _strange(f"more than {limits.MACHINE_JOB}")
    return text


def _strange(why: str) -> CompileError:
    return CompileError(
        "a message between two machines is not what it should be",
        why=why,
        remedy="use the same version of epctx on all machines; else report it",
    )
