"""Messages between machines: JSON of bounded size, checked on both sides.

The checks find mistakes. They stop no attacker, since dask.distributed unpickles all input first.
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
"""Key of a worker's facts in the scheduler."""
TOPIC: Final = "epctx-stages"
"""Topic of events about stages of jobs. All builds share it, since a scheduler forgets old events,
but never a topic.
"""
CALM: Final[Mapping[str, object]] = {
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.tick.interval": "500ms",
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.admin.low-level-log-length": 1000,
    "distributed.worker.profile.enabled": False,
}
"""Settings of dask that turn off unused work, which takes a third of a core."""


class Facts(Struct, frozen=True, kw_only=True):
    """Facts about a worker.

    Attributes:
        name: machine and process, for people.
        epctx: version of epctx.
        code: code of epctx and its libraries that a result depends on, by action.
        jobs: number of jobs that it runs at the same time.
    """

    name: str
    epctx: str
    code: Mapping[str, Mapping[str, str]]
    cpu: Cpu
    jobs: int


class Question(Struct, frozen=True, kw_only=True):
    """Question to a worker about its fingerprints and traits of EPs."""

    eps: tuple[ProviderSpec, ...]
    files: Files


class Request(Struct, frozen=True, kw_only=True):
    """A job for a worker.

    Attributes:
        nonce: name of the answer.
        label: label of an own process; None for a shared process.
        kind: kind of the shared process (`worker.pool.kind`).
        timeout: limit in seconds.
        budget: limit of its bounded actions, in seconds.
        memory: bytes that it waits for.
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
    """Event: a job entered a stage, on the machine of this address."""

    nonce: Digest
    address: str
    stage: StageStarted


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to a request or a question.

    Attributes:
        address: address of the worker.
        results: encoded results of the job's actions, or descriptions of EPs; empty after a
            failure.
        peak_memory: resident size of the process, in bytes.
        made: written files.
        failure: why the job or question failed; None if it did not.
        own: whether it failed because of the machine, so that another machine may succeed.
        starved, native: as in `CompileError`.
        log_file: path of the process's log on that machine; "" if there is none.
        log: the whole log; None if it is empty.
        lines: last lines of the log.
        stages: all stages of the job, since events may come late or not at all.
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
    """Return this machine's code of epctx and its libraries that results depend on, by action."""
    toolchain = Toolchain(FreshDigests())
    return {name: toolchain.of(*code) for name, code in CODE.items()}


def encoded(message: Struct) -> str:
    """Encode a message. Raises CompileError if it is too large."""
    return _bounded(codec.encode(message).decode())


def decoded(text: object, kind: type[T]) -> T:
    """Decode a message. Raises CompileError if it is invalid or too large."""
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
        "a message between two machines is invalid",
        why=why,
        remedy="use the same version of epctx on all machines; else report it",
    )
