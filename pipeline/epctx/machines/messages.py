"""Messages between coordinator and workers: JSON, bounded, and checked on both sides.

The checks find mistakes. They stop no attacker: dask.distributed unpickles what it receives first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from msgspec import Struct, field

from epctx import codec, limits
from epctx.actions.action import StageStarted
from epctx.errors import CompileError, Failure
from epctx.machines.blobs import Blob
from epctx.machines.portable import Portable, Tree
from epctx.providers.onnxruntime.host import Cpu

T = TypeVar("T")
FACTS = "epctx"
"""Where the scheduler has a worker's facts."""
CALM: Final[Mapping[str, object]] = {
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.tick.interval": "500ms",
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.admin.low-level-log-length": 1000,
    "distributed.scheduler.reuse-broadcast-comm": True,
    "distributed.scheduler.work-stealing": False,
    "distributed.worker.profile.enabled": False,
}
"""What dask does meanwhile that is of no use here, and takes a third of a core; and connections to
workers stay."""
HANDLER = "epctx"
"""What a worker calls that which answers coordinators."""
TOPIC = "epctx-stages"
"""Of the events that tell which stage a job has begun: one for all, since a scheduler forgets none
of its topics, and of each only what is old."""


class Ep(Struct, frozen=True, kw_only=True):
    """An EP as `epctx doctor` finds it: its `state`, `versions`, and why it is not ready."""

    state: str
    versions: Mapping[str, str]
    failure: Failure | None = None


class Facts(Struct, frozen=True, kw_only=True):
    """What a worker says of itself.

    Attributes:
        name: of the machine and the process, for people.
        epctx: its version.
        code: what of epctx and of its libraries an action's result depends on, by action.
        system, machine: as `platform` has them.
        cores, memory, disk: how many; bytes; bytes that are free for its scratch.
        jobs: how many lanes it is to have at a time; it may get more.
        eps: what `epctx doctor` finds, by name; None: nobody asked.
    """

    name: str
    epctx: str
    code: Mapping[str, Mapping[str, str]]
    system: str
    machine: str
    cpu: Cpu
    cores: int
    memory: int
    disk: int
    jobs: int
    eps: Mapping[str, Ep] | None = None


class Request(Struct, frozen=True, kw_only=True):
    """What a worker is to do for a build: a job in a lane, or the end of that lane.

    Attributes:
        lane: its number in the build.
        label: of a lane of its own; None: it shares what carries out others' jobs.
        kind: then, which others' (`worker.pool.kind`).
        number: of this request: events name it.
        job: None: the lane ends.
        last: the lane ends with this job, and how it ends counts.
        timeout: of the job, in seconds.
        budget: of its actions that are bounded, in seconds.
        over: lanes of which nothing is left to do.
    """

    build: str
    lane: int
    label: str | None
    kind: str
    number: int
    job: Portable | None = None
    last: bool = False
    timeout: float | None = None
    budget: float | None = None
    over: tuple[int, ...] = ()


class Began(Struct, frozen=True, kw_only=True):
    """A request has come to stages, the last of which it may be in."""

    build: str
    number: int
    stages: tuple[StageStarted, ...]


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a request.

    Attributes:
        results: of the job's actions, encoded; none: it failed, or there was none.
        peak_memory: of who carried it out, in bytes.
        made: files that it wrote, by the number of their place.
        roots: where its places were on that machine: its messages name them.
        failure: why it failed.
        own: it failed for the machine's own reasons, which another need not have.
        starved, native: as `CompileError` has them.
        log_file: what that machine calls the log of what carried it out; "": there is none.
        log: all of it, if something was printed.
        lines: the last ones of it.
        stages: all that it came to: what was told of them may come later, or not.
    """

    results: tuple[msgspec.Raw, ...] = ()
    peak_memory: int = 0
    made: Mapping[int, Tree] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    failure: Failure | None = None
    own: bool = False
    starved: bool = False
    native: str | None = None
    log_file: str = ""
    log: Blob | None = None
    lines: tuple[str, ...] = ()
    stages: tuple[StageStarted, ...] = ()


def encoded(message: Struct) -> str:
    """A message as it is sent.

    Raises:
        CompileError: it is too large.
    """
    return _bounded(codec.encode(message).decode())


def decoded(text: object, kind: type[T]) -> T:
    """A message that was sent.

    Raises:
        CompileError: it is none of its kind, or too large.
    """
    if not isinstance(text, str):
        raise _strange(f"{type(text).__name__} in the place of a text")
    try:
        return codec.decode(_bounded(text), kind)
    except msgspec.MsgspecError as error:
        raise _strange(str(error)) from error


def _bounded(text: str) -> str:
    if len(text) > limits.MACHINE_JOB.value:
        raise _strange(f"more than {limits.MACHINE_JOB}")
    return text


def _strange(why: str) -> CompileError:
    return CompileError(
        "a message between two machines is not what it should be",
        why=why,
        remedy="use the same version of epctx on all machines; else report it",
    )
