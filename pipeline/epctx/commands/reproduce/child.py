"""One of the two builds: in a folder of its own, by a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from epctx import codec
from epctx.commands.reproduce import copy_sources
from epctx.commands.reproduce.circumstances import Circumstances
from epctx.commands.reproduce.jobs import BuildJob, Said
from epctx.engine.events import Listener
from epctx.engine.report import BuildReport
from epctx.errors import CompileError, EpctxError, Failure
from epctx.manifest import Manifest
from epctx.providers.onnxruntime.native_process import NativeProcess
from epctx.worker import protocol
from epctx.worker.process import exit_words

_PLACE = "build"
_ELSEWHERE = Path("another place") / "deeper" / _PLACE


class Request(Struct, frozen=True, kw_only=True):
    """How one build is made.

    Attributes:
        title: what it is called: `first`; its outputs are kept under this name.
        only: as `epctx build --only`.
    """

    title: str
    manifest: Manifest
    only: tuple[str, ...]
    allow_outside: bool
    circumstances: Circumstances


class Made(Struct, frozen=True, kw_only=True):
    """A build that was made.

    Attributes:
        outputs: the folder that is compared.
        obstacles: by variation, what kept it from that.
        listing: its sources in the order in which the file system lists them.
    """

    report: BuildReport
    outputs: Path
    obstacles: Mapping[str, str]
    listing: tuple[str, ...]


def place(root: Path, *, elsewhere: bool) -> Path:
    """Where a build takes place, below the folder of all of them."""
    return root / (_ELSEWHERE if elsewhere else _PLACE)


def build(request: Request, root: Path, listener: Listener) -> Made:
    """Make a build; its outputs, report and lock are then in `root / title`.

    Raises:
        EpctxError: it failed.
        StorageError: the sources cannot be copied.
    """
    circumstances = request.circumstances
    folder = place(root, elsewhere=circumstances.elsewhere)
    for each in ("home", "temporary"):
        (folder / each).mkdir(parents=True)
    manifest = copy_sources.copy(
        request.manifest,
        folder / "source",
        backwards=circumstances.files_reversed,
        aged=circumstances.files_aged,
    )
    job = BuildJob(
        manifest=manifest,
        folder=folder,
        only=request.only,
        allow_outside=request.allow_outside,
        circumstances=circumstances,
    )
    listing = tuple(_listing(folder / "source"))
    log = root / f"{request.title}.log"
    obstacles, report = _run(job, request.title, log, listener)
    log.unlink()
    kept = root / request.title
    job.out.rename(kept)
    for lock in manifest.parent.glob("*.lock.yaml"):
        shutil.copyfile(lock, kept / lock.name)
    shutil.rmtree(folder)
    outputs = kept / request.manifest.name
    return Made(report=report, outputs=outputs, obstacles=obstacles, listing=listing)


def _listing(folder: Path) -> list[str]:
    return [
        os.path.relpath(os.path.join(place, name), folder)  # noqa: PTH118 - `os.walk` gives text
        for place, folders, files in os.walk(folder)
        for name in (*folders, *files)
    ]


def _run(
    job: BuildJob, title: str, log: Path, listener: Listener
) -> tuple[Mapping[str, str], BuildReport]:
    with log.open("wb") as stream:
        process = NativeProcess(
            [sys.executable, "-P", "-m", "epctx.commands.reproduce"],
            folder=job.folder,
            variables=os.environ | job.circumstances.variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
        )
    try:
        return _talk(process, job, title, log, listener)
    finally:
        _end(process)


def _talk(
    process: NativeProcess, job: BuildJob, title: str, log: Path, listener: Listener
) -> tuple[Mapping[str, str], BuildReport]:
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(OSError):  # a dead process is reported below
        process.stdin.write(codec.encode(job) + b"\n")
        process.stdin.flush()
    obstacles: Mapping[str, str] = {}
    for line in process.stdout:
        said = codec.decode(line, Said)
        if said.obstacles is not None:
            obstacles = said.obstacles
        elif said.event is not None:
            listener(replace(said.event, group=f"{title} build: {said.event.group}"))
        elif said.error is not None:
            raise _failed(said.error, log, title)
        elif said.report is not None:
            return obstacles, said.report
    raise CompileError(
        f"the process of the {title} build ended, {exit_words(process.wait())}",
        remedy=f"see its log: {log}",
    )


def _failed(told: Failure, log: Path, title: str) -> EpctxError:
    """The error that a build ended with; which build is part of where it is."""
    error = protocol.restore(told, log=log)
    places = (f"{title} build", told.group, told.where)
    told = dataclasses.replace(
        told, group=None, where=": ".join(place for place in places if place)
    )
    # Of a bug in a worker it names the worker's own log.
    return type(error).of(told, remedy=error.remedy if told.remedy == protocol.REPORT else None)


def _end(process: NativeProcess) -> None:
    """Whether it is done, failed, or the user wants no more: nothing of it is left."""
    assert process.stdin is not None and process.stdout is not None
    process.end()  # its workers, too: one that ends by itself may write into a folder that is gone
    with contextlib.suppress(OSError):
        process.stdin.close()
    process.stdout.close()


def only_of(labels: Sequence[str]) -> tuple[str, ...]:
    """`<target>/<group>` as `--only` takes it."""
    return tuple(f"{group}@{target}" for target, group in (x.split("/")[:2] for x in labels))
