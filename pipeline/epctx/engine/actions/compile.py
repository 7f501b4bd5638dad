"""Compile actions of a build: find each in the cache, or run it in a worker and store its result.

Before an EP starts, the disks must have enough free space for what it writes.
"""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from epctx import codec, limits
from epctx.actions.action import Action
from epctx.actions.compile import MODELS, Compile
from epctx.actions.record import Record, RecordResult
from epctx.actions.verify import Check
from epctx.engine.actions.base import Actions
from epctx.engine.actions.numbers import Numbers, Unfed, judge, request
from epctx.engine.actions.optimize import Optimizing
from epctx.engine.actions.pieces import Piecing
from epctx.engine.actions.quantize import Quantizing
from epctx.engine.executor import Scheduler, WorkerLease
from epctx.engine.plan import SessionGroup
from epctx.engine.progress import GroupProgress
from epctx.engine.results import aliased, check_compiled, check_contents
from epctx.engine.state import ModelState, SessionState
from epctx.errors import CompileError, EpctxError, StorageError
from epctx.files import outputs
from epctx.files.entries import open_entry
from epctx.keys.source_digests import refuse_changed
from epctx.manifest import ModelGroup, ModelSource
from epctx.parsing.schema import providers
from epctx.stages.report import ModelReport
from epctx.text import size_words
from epctx.verification.findings import FolderReport

_LARGE: Final = 16_000_000
"""Minimum bytes of each model file for the models to be optimized in parallel."""


class Compiling:
    """Compiles session groups. Thread-safe.

    Args:
        scheduler: its threads call this object.
    """

    def __init__(self, actions: Actions, scheduler: Scheduler, numbers: Numbers) -> None:
        self._actions = actions
        self._scheduler = scheduler
        self._numbers = numbers
        self._optimizing = Optimizing(actions)
        self._quantizing = Quantizing(actions, self._optimizing)
        self._piecing = Piecing(actions, scheduler, numbers)
        cache = actions.lookup.cache
        stores = [] if cache is None or cache.location.readonly else [cache.location.root]
        self._space = DiskSpace(actions.work, stores)

    def compile(self, progress: GroupProgress, session: SessionGroup, folder: Path) -> SessionState:
        """Find or run the compile of a session group; put its files into `folder`.

        Raises:
            EpctxError: a job raised it; the sources, the EPs or the cache cannot be used.
        """
        group, label = progress.planned.group, f"{progress.label}-{session.label}"
        # Each piece has a lease of its own.
        group_lease = self._actions.lease(group.execution_providers, label)
        with group_lease if group.pieces is None else self._actions.shared_lease() as lease:
            models = self._optimized(progress, session, lease)

            def find() -> SessionState:
                lookup = self._actions.lookup
                if lookup.cache is None:  # no key is needed yet, and hashing an EP takes time
                    return SessionState(session=session, models=models)
                return self._fetched(progress, lookup.session(group, session, models), folder)

            def run(state: SessionState) -> SessionState:
                return self._run(progress, state, folder, lease)

            kind = "compile" if group.pieces is None else "assemble"
            state, _ = self._actions.once(progress, kind, session.label, find, run)
        return state

    def _optimized(
        self, progress: GroupProgress, session: SessionGroup, lease: WorkerLease
    ) -> tuple[ModelState, ...]:
        """Optimize the models of a session group with its worker; large ones in parallel."""

        def with_worker(source: ModelSource) -> ModelState:
            return self._quantizing.model(progress, source, lease)

        def with_other_worker(source: ModelSource) -> ModelState:
            with self._actions.shared_lease() as shared:
                return self._quantizing.model(progress, source, shared)

        first, *remaining = session.models
        if not remaining or not all(map(_is_large, session.models)):
            return tuple(with_worker(source) for source in session.models)
        tasks = [
            partial(with_worker, first),
            *(partial(with_other_worker, source) for source in remaining),
        ]
        return tuple(self._scheduler.together(tasks))

    def _fetched(self, progress: GroupProgress, state: SessionState, folder: Path) -> SessionState:
        """Fetch the files of a complete session group from the cache; return its new state."""
        if state.compile is None or state.compile.stored is None or not state.complete:
            return state
        verified = self._actions.lookup.verification(progress.planned.group, state)
        recordings = [each.stored for each in state.recordings if each.stored is not None]
        if verified.stored is not None:  # verified results are not compared again
            recordings = []
        recorded = self._numbers.recorded(progress, state.session)
        fetched = all(self._actions.fetch(each, recorded) for each in recordings)
        if not fetched or not self._actions.fetch(state.compile.stored, folder):
            for file in (file for each in recordings for file in each.files):
                (recorded / file.name).unlink(missing_ok=True)
            return replace(state, compile=replace(state.compile, stored=None))
        outputs.sync_files(folder / file.name for file in state.files)
        return state

    def _run(
        self, progress: GroupProgress, state: SessionState, folder: Path, lease: WorkerLease
    ) -> SessionState:
        self._actions.refuse_to_build(f"compile of {state.session.label}")
        group = progress.planned.group
        folders = {m.source.name: self._optimizing.folder(progress, m, lease) for m in state.models}
        with self._space.promised(_size(state), progress.notice, copied=lease.own):
            if group.pieces is not None:
                assembled = self._piecing.run(progress, state, folders, folder)
                _refuse_changed(state)
                return assembled
            return self._carried_out(progress, state, folders, folder, lease)

    def _carried_out(
        self,
        progress: GroupProgress,
        state: SessionState,
        folders: Mapping[str, Path],
        folder: Path,
        lease: WorkerLease,
    ) -> SessionState:
        group = progress.planned.group
        scratch = self._actions.new_folder("s")
        scratch.mkdir(parents=True)
        action = Compile.of(group, state.digests)
        compile = replace(action, optimized=folders, folder=folder, scratch=scratch)
        recorded = self._numbers.recorded(progress, state.session)
        following = self._following(progress, compile, recorded)
        with self._numbers.beside(progress, state, lease) as run:
            result, *following_results = self._compiled(
                progress, state, compile, following, lease, run
            )
            lease.dismiss()
            if lease.own:
                # Done while the worker ends. Files in use (on Windows) stay until the scratch is
                # removed.
                shutil.rmtree(scratch, ignore_errors=True)
            lease.close()  # checks its exit code before anything is stored
            check_compiled(result, group, compile.names, folder)
            if not lease.own and len(progress.planned.session_groups) == 1:
                check_contents(result, folder)
            recording = next(
                (each for each in following_results if isinstance(each, RecordResult)), None
            )
            if recording is None:  # there is no recording: not requested, or ended by the budget
                recording = RecordResult(recorded=self._actions.lookup.records(group))
            judge({} if run is None else run.result(), recording.unrun)
        _refuse_changed(state)
        if state.compile is None:
            state = self._actions.lookup.session(group, state.session, state.models)
        assert state.compile is not None
        stored = self._actions.store_compiled(state.compile, "compile", group, result, folder)
        checked = next((each for each in following_results if isinstance(each, FolderReport)), None)
        state = replace(state, compile=stored, checked=checked)
        if state.recording is None:
            return state
        stored_recording = self._actions.store_recording(
            state.recording, group, stored.key, recording, recorded
        )
        return replace(state, recording=stored_recording)

    def _compiled(
        self,
        progress: GroupProgress,
        state: SessionState,
        compile: Compile,
        following: Iterable[Action[Any]],
        lease: WorkerLease,
        run: Future[Unfed] | None,
    ) -> list[Any]:
        """Run a compile and the actions that follow in its process, and return their results. If
        the process crashes in the stage `verify` and the source does not run either, the error
        blames the source.

        Raises:
            EpctxError: the job raised it; a source does not run.
        """
        entered: list[str] = []
        try:
            return progress.run_all(
                lease,
                state.session.label,
                [compile, *following],
                entered=entered.append,
                budget=progress.planned.group.verify.budget,
                memory=_memory(progress.planned.group, state),
                pace=self._actions.pace([state]),
            )
        except EpctxError as error:
            progress.saw(_models(compile))
            crashed = isinstance(error, CompileError) and entered[-1:] == ["verify"]
            if crashed and run is not None and run.result():
                error.remedy = (
                    "its source model does not run on these inputs either: set "
                    "`verify.inputs.ranges`"
                )
            raise

    def _following(
        self, progress: GroupProgress, compile: Compile, recorded: Path
    ) -> Iterator[Action[Any]]:
        """Yield the actions that follow in the compiling process.

        The first records its sessions, if numbers need it. The second checks the group's folder,
        if the build skips numbers and the group has a single session group.
        """
        lookup, group = self._actions.lookup, progress.planned.group
        if lookup.records(group):
            yield Record(group=progress.group, folder=compile.folder, recorded=recorded)
        if len(progress.planned.session_groups) == 1 and lookup.skips(group):
            verify_request = request(progress, compile.folder, skips_numbers=True)
            yield Check(request=verify_request, compiled=True)


def _refuse_changed(state: SessionState) -> None:
    """Refuse sources that changed while they were compiled."""
    for model in state.models:
        for each in (model,) if model.quantized is None else (model, model.origin):
            assert each.found is not None
            refuse_changed(each.source, each.found)


def _is_large(source: ModelSource) -> bool:
    return source.path.is_file() and source.path.stat().st_size >= _LARGE


def _memory(group: ModelGroup, state: SessionState) -> int | None:
    """Estimate the memory of a compile, in bytes; None if its EPs were never measured."""
    measured = providers.compile_memory(each.provider for each in group.execution_providers)
    weights = [model.result.weights for model in state.models if model.result is not None]
    return None if measured is None or not weights else measured.of(weights)


def _size(state: SessionState) -> int:
    """Return the bytes of the existing source files, each content counted once."""
    files = {
        content: path
        for model in state.models
        if model.found is not None
        for path, content in model.found.files(model.source).items()
    }
    return sum(path.stat().st_size for path in files.values() if path.exists())


def _models(compile: Compile) -> tuple[ModelReport, ...]:
    """Read the reports that a failed compile has written; its process may have crashed."""
    try:
        with open_entry(compile.scratch / MODELS) as stream:
            data = stream.read(limits.WORKER_ANSWER.value)
        return aliased(codec.decode(data, tuple[ModelReport, ...]), compile.eps)
    except (OSError, msgspec.MsgspecError, ValueError, IndexError):
        return ()


TOLD: Final = 1_000_000_000
"""Minimum disk space, in bytes, of which a notice is sent before a session group compiles."""
_LEAST: Final = 2
"""Largest ratio of a source to its context: float32 becomes float16."""


class DiskSpace:
    """Disk space of a build. Thread-safe.

    Args:
        work: folder in which EPs compile, on the disk of the output.
        stores: folders that also keep compiled files: the cache, if there is one.
    """

    def __init__(self, work: Path, stores: Iterable[Path] = ()) -> None:
        self._work = _existing(work)
        self._stores = [_existing(folder) for folder in stores]
        self._lock = threading.Lock()
        self._promised: Counter[int] = Counter()

    @contextmanager
    def promised(
        self, size: int, notify: Callable[[str], None], *, copied: bool = False
    ) -> Iterator[None]:
        """Reserve disk space for a session group while it is compiled.

        Args:
            size: bytes of its sources, each content counted once.
            notify: receives a notice if much space is needed.
            copied: whether its EP compiles copies of the weights in its own process; they are
                removed before the cache is written.

        Raises:
            StorageError: a disk has less space than the estimated minimum.
        """
        copies = size if copied else 0
        least, most = self._needed(size // _LEAST, copies), self._needed(size, copies)
        disks = {folder.stat().st_dev: folder for folder in (*self._stores, self._work)}
        with self._lock:
            for disk, folder in disks.items():
                self._require(folder, least[disk], most[disk], notify)
            self._promised += most
        try:
            yield
        finally:
            with self._lock:
                self._promised -= most

    def _needed(self, written: int, copies: int) -> Counter[int]:
        """Return the peak bytes needed on each disk, during the compile or at its end."""
        work = self._work.stat().st_dev
        stored = Counter({work: written})
        for folder in self._stores:
            stored[folder.stat().st_dev] += written
        return Counter({work: copies + written}) | stored

    def _require(self, folder: Path, least: int, most: int, notify: Callable[[str], None]) -> None:
        free = shutil.disk_usage(folder).free - self._promised[folder.stat().st_dev]
        words = (
            f"{size_words(least)} to {size_words(most)} of disk are needed, "
            f"{size_words(max(0, free))} are free"
        )
        if free < least:
            raise StorageError(
                words,
                file=str(folder),
                remedy="free some space, choose another folder with --out or EPCTX_CACHE_DIR, or "
                "build with fewer --jobs",
            )
        if most >= TOLD:
            notify(f"{words} in {folder}")


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest existing folder above it."""
    return next(each for each in (folder, *folder.parents) if each.exists())
