"""One of the two builds: in a folder of its own, by a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from epctx import codec
from epctx.commands.reproduce.variations import Circumstances
from epctx.engine import ranges
from epctx.engine.events import Event, Listener
from epctx.engine.report import BuildReport
from epctx.errors import CompileError, EpctxError, Failure, StorageError
from epctx.files import copying
from epctx.graph.serde import locations
from epctx.manifest import Manifest, ModelGroup, ModelSource
from epctx.providers.onnxruntime.native_process import NativeProcess
from epctx.worker import protocol
from epctx.worker.process import exit_words


class BuildJob(Struct, frozen=True, kw_only=True):
    """Job to build a manifest without a cache; models are not run.

    Attributes:
        folder: folder of the build with all of its inputs; it belongs to the user who builds.
        only: value of `epctx build --only`.
    """

    manifest: Path
    folder: Path
    only: tuple[str, ...]
    allow_outside: bool
    circumstances: Circumstances

    @property
    def out(self) -> Path:
        """The folder that gets the outputs."""
        return self.folder / "dist"


class Message(Struct, omit_defaults=True):
    """One message of the building process; exactly one field is set.

    Attributes:
        obstacles: reason why a variation was not applied, by variation; the first message.
        event: event of the build.
        report: report of the build; this or `error` is the last message.
    """

    obstacles: Mapping[str, str] | None = None
    event: Event | None = None
    report: BuildReport | None = None
    error: Failure | None = None


_OLD = 365 * 86_400.0
"""Time of aged files, in seconds after 1970."""


def copy(manifest: Manifest, folder: Path, *, backwards: bool, aged: bool) -> Path:
    """Copy a manifest and its inputs into the new folder `folder`; return the new manifest.

    Relative positions stay the same. Missing files and absolute paths are left to the build. If the
    file system supports it, copies share blocks with the originals.

    Args:
        manifest: the manifest, parsed at its original place.
        folder: destination, which must not exist.
        backwards: write the files in reverse order, because some file systems list files in that
            order.
        aged: set the modification times to a date soon after 1970.

    Raises:
        StorageError: a file cannot be read or written.
    """
    original = manifest.path.absolute()
    referenced = (path for t in manifest.targets for group in t.groups for path in _inputs(group))
    inputs = {path for path in _files(referenced) if path.drive == original.drive}
    paths = sorted({*inputs, original, *_files([ranges.place(original)])})
    root = Path(os.path.commonpath([path.parent for path in paths]))
    for path in reversed(paths) if backwards else paths:
        target = folder / path.relative_to(root)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            copying.copy(path, target)
            if aged:
                os.utime(target, (_OLD, _OLD))
        except OSError as error:
            raise StorageError(
                "cannot be copied for the build",
                file=str(path),
                why=str(error),
                remedy="make room, or name a folder on a larger disk with --out",
            ) from error
    return folder / original.relative_to(root)


def _inputs(group: ModelGroup) -> Iterator[Path]:
    for model in group.models:
        yield from (model.path, *filter(None, [model.custom_ops]))
        yield from _data(model)
    for spec in group.execution_providers:
        yield from (Path(str(spec.options[name])) for name in spec.path_options)
    yield from group.verify.inputs.files
    if group.quantize is not None:
        yield from group.quantize.calibration.files


def _data(source: ModelSource) -> Iterator[Path]:
    """External data files of a model; none if the model cannot be read."""
    folder = source.external_data_dir or source.path.parent
    with contextlib.suppress(EpctxError):
        yield from (folder / name for name in locations.of(source.path))


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """Existing files, and files in existing folders; `..` is removed, links are not followed."""
    for path in paths:
        plain = Path(os.path.abspath(path))  # noqa: PTH100 - `resolve` would follow links
        if plain.is_dir():
            yield from (file for file in plain.rglob("*") if file.is_file())
        elif plain.is_file():
            yield plain


_PLACE = "build"
_ELSEWHERE = Path("another place") / "deeper" / _PLACE


class Request(Struct, frozen=True, kw_only=True):
    """Request for one build.

    Attributes:
        title: name of the build, such as `first`; its outputs are kept under this name.
        only: value of `epctx build --only`.
    """

    title: str
    manifest: Manifest
    only: tuple[str, ...]
    allow_outside: bool
    circumstances: Circumstances


class FinishedBuild(Struct, frozen=True, kw_only=True):
    """Finished build.

    Attributes:
        outputs: folder to compare.
        obstacles: reason why a variation was not applied, by variation.
        listing: its sources, in the order of the file system.
    """

    report: BuildReport
    outputs: Path
    obstacles: Mapping[str, str]
    listing: tuple[str, ...]


def place(root: Path, *, elsewhere: bool) -> Path:
    """Folder of a build, below the folder of all builds."""
    return root / (_ELSEWHERE if elsewhere else _PLACE)


def build(request: Request, root: Path, listener: Listener) -> FinishedBuild:
    """Run a build; afterwards its outputs, report and lock are in `root / title`.

    Raises:
        EpctxError: the build failed.
        StorageError: the sources cannot be copied.
    """
    circumstances = request.circumstances
    folder = place(root, elsewhere=circumstances.elsewhere)
    for each in ("home", "temporary"):
        (folder / each).mkdir(parents=True)
    manifest = copy(
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
    target = root / request.title
    job.out.rename(target)
    for lock in manifest.parent.glob("*.lock.yaml"):
        shutil.copyfile(lock, target / lock.name)
    shutil.rmtree(folder)
    outputs = target / request.manifest.name
    return FinishedBuild(report=report, outputs=outputs, obstacles=obstacles, listing=listing)


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
    with contextlib.suppress(OSError):  # the end of the process is reported below
        process.stdin.write(codec.encode(job) + b"\n")
        process.stdin.flush()
    obstacles: Mapping[str, str] = {}
    for line in process.stdout:
        message = codec.decode(line, Message)
        if message.obstacles is not None:
            obstacles = message.obstacles
        elif message.event is not None:
            listener(replace(message.event, group=f"{title} build: {message.event.group}"))
        elif message.error is not None:
            raise _failed(message.error, log, title)
        elif message.report is not None:
            return obstacles, message.report
    raise CompileError(
        f"the process of the {title} build ended, {exit_words(process.wait())}",
        remedy=f"see its log: {log}",
    )


def _failed(failure: Failure, log: Path, title: str) -> EpctxError:
    """Return the error that ended a build; its place names the build."""
    error = protocol.restore(failure, log=log)
    places = (f"{title} build", failure.group, failure.where)
    failure = dataclasses.replace(
        failure, group=None, where=": ".join(place for place in places if place)
    )
    # For a bug in a worker, the error names the worker's own log.
    return type(error).of(
        failure, remedy=error.remedy if failure.remedy == protocol.REPORT else None
    )


def _end(process: NativeProcess) -> None:
    """End the process, whether it is done, failed or interrupted."""
    assert process.stdin is not None and process.stdout is not None
    process.end()  # end its workers, too: a worker that still runs may write into a deleted folder
    with contextlib.suppress(OSError):
        process.stdin.close()
    process.stdout.close()


def only_of(labels: Sequence[str]) -> tuple[str, ...]:
    """Convert `<target>/<group>` paths of files to values of `--only`."""
    return tuple(f"{group}@{target}" for target, group in (x.split("/")[:2] for x in labels))
