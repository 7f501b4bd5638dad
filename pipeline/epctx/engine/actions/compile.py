"""The compile actions of a build: found in the cache, or carried out by a worker and put there."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from epctx import codec, limits
from epctx.actions.action import Action
from epctx.actions.compile import MODELS, Compile, CompileResult
from epctx.actions.numbers import Record, RecordResult, Verify
from epctx.cache import StoredFile
from epctx.engine.actions import checks, source
from epctx.engine.actions.answer_checks import check_compiled, check_contents
from epctx.engine.actions.base import Actions, files_in
from epctx.engine.actions.beside import SideBySide
from epctx.engine.actions.optimize import Optimizing
from epctx.engine.actions.quantize import Quantizing
from epctx.engine.disk_space import DiskSpace
from epctx.engine.executor import Lane
from epctx.engine.plan import SessionGroup
from epctx.engine.progress import GroupProgress
from epctx.engine.results import StoredRecording, aliased
from epctx.engine.scheduler import Scheduler
from epctx.engine.state import SessionState
from epctx.errors import CompileError, EpctxError
from epctx.files import outputs
from epctx.files.entries import open_entry
from epctx.keys import Toolchain
from epctx.keys.source_digests import refuse_changed
from epctx.manifest import ModelGroup
from epctx.providers.onnxruntime.host import Cpu
from epctx.stages.report import ModelReport
from epctx.verification.findings import FolderReport


class _Made(Struct, frozen=True, kw_only=True):
    """What came of a job that compiles; `checked` None: that is still to come."""

    compiled: CompileResult
    recording: RecordResult
    checked: FolderReport | None

    @classmethod
    def of(cls, results: Sequence[Any]) -> _Made:
        """What the results of its actions say."""
        (compiled, *rest) = results
        recordings = (each for each in rest if isinstance(each, RecordResult))
        reports = (each for each in rest if isinstance(each, FolderReport))
        return cls(
            compiled=compiled,
            recording=next(recordings, RecordResult(recorded=False)),
            checked=next(reports, None),
        )


class Compiling:
    """Compiles session groups. Used by many threads.

    Args:
        scheduler: of the threads that use it.
    """

    def __init__(self, actions: Actions, scheduler: Scheduler) -> None:
        self._actions = actions
        self._scheduler = scheduler
        self._optimizing = Optimizing(actions)
        self._quantizing = Quantizing(actions, self._optimizing)
        cache = actions.lookup.cache
        stores = [] if cache is None or cache.location.readonly else [cache.location.root]
        self._space = DiskSpace(actions.work, stores)

    def compile(self, progress: GroupProgress, session: SessionGroup, folder: Path) -> SessionState:
        """The compile action of a session group, with its files in `folder`.

        Raises:
            EpctxError: what a job raised; the sources, the EPs or the cache cannot be used.
        """
        group, label = progress.planned.group, f"{progress.label}-{session.label}"
        with self._actions.lane(group.execution_providers, label) as lane:
            beside = SideBySide(self._actions, self._quantizing, self._scheduler, progress, session)
            models = beside.run(lane)

            def find() -> SessionState:
                lookup = self._actions.lookup
                if lookup.cache is None:  # nothing waits for keys: to hash an EP takes its time
                    return SessionState(session=session, models=models)
                return self._fetched(progress, lookup.session(group, session, models), folder)

            def run(known: SessionState) -> SessionState:
                return self._run(progress, known, folder, lane)

            known, _ = self._actions.once(progress, "compile", session.label, find, run)
        return known

    def recorded(self, progress: GroupProgress) -> Path:
        """Where the recordings of a group's session groups are."""
        return self._actions.work / "recorded" / progress.label

    def computed(self, progress: GroupProgress) -> Path:
        """Where the outputs of a group's sources are that were run beside its compiles."""
        return self._actions.work / "computed" / progress.label

    def _fetched(self, progress: GroupProgress, known: SessionState, folder: Path) -> SessionState:
        """A session group with its files from the cache, where they are there."""
        if known.compile is None or known.compile.stored is None or not known.complete:
            return known
        verified = self._actions.lookup.verification(progress.planned.group, known)
        recording = None if known.recording is None else known.recording.stored
        if verified.stored is not None:  # what was verified before is not compared again
            recording = None
        recorded = self.recorded(progress)
        gone = replace(known, compile=replace(known.compile, stored=None))
        if recording is not None and not self._actions.fetch(recording, recorded):
            return gone
        if not self._actions.fetch(known.compile.stored, folder):
            for file in recording.files if recording is not None else ():
                (recorded / file.name).unlink(missing_ok=True)
            return gone
        outputs.sync_files(folder / file.name for file in known.files)
        return known

    def _run(
        self, progress: GroupProgress, known: SessionState, folder: Path, lane: Lane
    ) -> SessionState:
        self._actions.refuse_to_build(f"compile of {known.session.label}")
        with self._space.promised(_size(known), progress.notice, copied=lane.own):
            return self._carried_out(progress, known, folder, lane)

    def _carried_out(
        self, progress: GroupProgress, known: SessionState, folder: Path, lane: Lane
    ) -> SessionState:
        group = progress.planned.group
        scratch = self._actions.new_folder("s")
        scratch.mkdir(parents=True)
        folders = {m.source.name: self._optimizing.folder(progress, m, lane) for m in known.models}
        digests = {m.source.name: m.result.digest for m in known.models if m.result}
        asked = Compile.of(group, digests)
        compile = replace(asked, optimized=folders, folder=folder, scratch=scratch)
        following = self._following(progress, compile, lane)
        kept = self.computed(progress)
        with source.beside(self._actions, progress, known, kept, lane) as run:
            made = self._compiled(progress, known, compile, following, lane, run)
            result = made.compiled
            lane.dismiss()
            if lane.own:
                # While the worker ends. What stays (Windows: files in use) goes with the scratch.
                shutil.rmtree(scratch, ignore_errors=True)
            lane.close()  # its exit code counts before anything is kept
            check_compiled(result, group, compile.names, folder)
            if made.checked is not None and not lane.own:
                check_contents(result, folder)
            source.judge(run, made.recording.unrun)
        for model in known.models:
            for each in (model,) if model.quantized is None else (model, model.origin):
                assert each.found is not None
                refuse_changed(each.source, each.found)
        if known.compile is None:
            known = self._actions.lookup.session(group, known.session, known.models)
        return _stored(self._actions, group, known, made, folder, self.recorded(progress))

    def _compiled(
        self,
        progress: GroupProgress,
        known: SessionState,
        compile: Compile,
        following: Iterable[Action[Any]],
        lane: Lane,
        run: source.SourceRun | None,
    ) -> _Made:
        """What came of a compile; a crash on what the source does not run either is the source's.

        Raises:
            EpctxError: what the job raised; the source does not run.
        """
        entered: list[str] = []
        try:
            results = progress.run_all(
                lane,
                known.session.label,
                [compile, *following],
                entered=entered.append,
                pace=self._actions.pace([known]),
            )
            return _Made.of(results)
        except EpctxError as error:
            progress.saw(_models(compile))
            crashed = isinstance(error, CompileError) and entered[-1:] == ["verify"]
            if crashed and run is not None and run.wait().unfed:
                error.remedy = "its source refuses these inputs: set `verify.inputs.ranges`"
            raise

    def _following(
        self, progress: GroupProgress, compile: Compile, lane: Lane
    ) -> Iterator[Action[Any]]:
        """What is done in the process that compiles, too: its sessions are run where numbers need
        them; and a group is verified of which nothing is loaded, or whose EPs leave nothing behind
        in a process.
        """
        lookup, group = self._actions.lookup, progress.planned.group
        if lookup.records(group):
            kept = self.recorded(progress)
            yield Record(group=progress.group, folder=compile.folder, recorded=kept)
        skips = lookup.skips(group)
        if len(progress.planned.session_groups) == 1 and (skips or not lane.own):
            request = checks.request(progress, compile.folder, skips_numbers=skips)
            yield Verify(request=request, compiled=True)


def _stored(
    actions: Actions,
    group: ModelGroup,
    known: SessionState,
    made: _Made,
    folder: Path,
    recorded: Path,
) -> SessionState:
    """A session group that was compiled, put into the cache with its recording."""
    assert known.compile is not None
    result = replace(made.compiled, cpu=_cpu(actions.lookup.toolchain, group))
    files = [StoredFile(name=f.name, size=f.size, digest=f.blake3) for f in result.output.files]
    compile = actions.store(known.compile, "compile", result, folder=folder, files=files)
    known, recording = replace(known, compile=compile, checked=made.checked), known.recording
    if recording is None:
        return known
    ran = made.recording.recorded
    if not ran:
        record = dict(recording.record) | {"inputs": None, "budget": None}
        recording = actions.lookup.known(record, StoredRecording, here=True)
    roots = [recorded / model.source.name for model in known.models] if ran else []
    found = StoredRecording(recorded=ran)
    files = files_in(recorded, roots)
    return replace(
        known,
        recording=actions.store(recording, "recording", found, folder=recorded, files=files),
    )


def _cpu(toolchain: Toolchain, group: ModelGroup) -> Cpu | None:
    """Where a real EP compiles; None: the EPs are the same everywhere."""
    eps = group.execution_providers
    return toolchain.cpu(eps) if toolchain.native(eps) else None


def _size(known: SessionState) -> int:
    """Bytes of what its models are made of, each content once; of what is gone meanwhile none."""
    files = {
        content: path
        for model in known.models
        if model.found is not None
        for path, content in model.found.files(model.source).items()
    }
    return sum(path.stat().st_size for path in files.values() if path.exists())


def _models(compile: Compile) -> tuple[ModelReport, ...]:
    """The models of a compile that failed, as far as it got; its process may have crashed."""
    try:
        with open_entry(compile.scratch / MODELS) as stream:
            data = stream.read(limits.WORKER_ANSWER.value)
        return aliased(codec.decode(data, tuple[ModelReport, ...]), compile.eps)
    except (OSError, msgspec.MsgspecError, ValueError, IndexError):
        return ()
