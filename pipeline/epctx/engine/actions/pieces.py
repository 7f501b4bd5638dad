"""Session groups in pieces: cut them, compile each piece, and assemble the results."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from epctx.actions.action import Action
from epctx.actions.compile import Compile
from epctx.actions.pieces import Assemble, CutResult
from epctx.actions.record import Record, RecordResult
from epctx.engine.actions.base import Actions
from epctx.engine.actions.numbers import Numbers, Unfed, judge
from epctx.engine.executor import Scheduler
from epctx.engine.progress import GroupProgress
from epctx.engine.results import check_compiled, untrue
from epctx.engine.state import PieceState, SessionState
from epctx.errors import ManifestError


class _Group(Struct, frozen=True, kw_only=True):
    """A session group in pieces.

    Attributes:
        state: state of the group; its models are optimized and cut.
        cut: the cut.
        graphs: folder of the pieces, written as optimized models.
        unfed: reasons why sources do not run on generated inputs, by model.
        sources: folder of the sources' outputs; None if they were not run.
    """

    state: SessionState
    cut: CutResult
    graphs: Path
    unfed: Unfed
    sources: Path | None

    def subject(self, piece: int) -> str:
        """Return the name of a piece in messages."""
        return f"{self.state.session.label}.{piece}"


def of_group(error: ManifestError, group: str) -> ManifestError:
    """Return the error of a cut, located in a group of the manifest."""
    where = f"model_groups.{group}.{error.where}"
    return ManifestError(error.what, where=where, why=error.why, remedy=error.remedy)


class Piecing:
    """Compiles session groups in pieces. Thread-safe.

    Args:
        scheduler: its threads call this object.
    """

    def __init__(self, actions: Actions, scheduler: Scheduler, numbers: Numbers) -> None:
        self._actions = actions
        self._scheduler = scheduler
        self._numbers = numbers

    def run(
        self,
        progress: GroupProgress,
        state: SessionState,
        optimized: Mapping[str, Path],
        folder: Path,
    ) -> SessionState:
        """Compile and assemble a session group; put its files into `folder`.

        The sources run before anything is compiled, since each piece runs on their values; some
        pieces run in the session that compiles them.

        Args:
            state: state of the session group; its models are optimized.
            optimized: folders of its optimized models, by name, in the session group's order.

        Raises:
            EpctxError: a job raised it.
        """
        group = self._cut(progress, state, optimized)
        compiles = group.cut.compiles(progress.planned.group, state.digests)
        folders = [self._actions.new_folder("p") for _ in compiles]
        pieces = self._scheduler.together(
            [
                partial(self._piece, progress, group, compile, each)
                for compile, each in zip(compiles, folders, strict=True)
            ]
        )
        whole = self._assemble(progress, group, pieces, optimized, folders, folder)
        for each in (group.graphs, *folders):
            shutil.rmtree(each, ignore_errors=True)
        return whole

    def _cut(
        self, progress: GroupProgress, state: SessionState, optimized: Mapping[str, Path]
    ) -> _Group:
        """Cut the models, and run their sources. A cached cut is made again: it is fast, and the
        cache does not keep the graphs.
        """
        lookup = self._actions.lookup
        action = lookup.cut(progress.planned.group, state)
        graphs, label = self._actions.new_folder("c"), state.session.label
        with self._actions.shared_lease() as lease:
            try:
                result = progress.run(
                    lease, label, replace(action, folders=optimized, folder=graphs)
                )
            except ManifestError as error:
                raise of_group(error, progress.planned.group.name) from error
        if not result.is_of(len(optimized)):
            raise untrue("other cuts than requested", " and ".join(optimized))
        cut = self._actions.store(lookup.unknown(action), "cut", result)
        self._actions.did(progress, "cut", label, cut.key, ran=True)
        state = replace(state, cut=cut)
        unfed: Unfed = {}
        sources: Path | None = None
        if lookup.inputs(progress.planned.group) is not None:
            unfed, sources = self._numbers.run_sources(progress, state)
        return _Group(state=state, cut=result, graphs=graphs, unfed=unfed, sources=sources)

    def _piece(
        self, progress: GroupProgress, group: _Group, action: Compile, folder: Path
    ) -> PieceState:
        """Find or compile a piece of all models in its own worker; put its files into `folder`."""
        settings, lookup = progress.planned.group, self._actions.lookup
        recorded = self._numbers.recorded(progress, group.state.session)

        def find() -> PieceState:
            state = lookup.piece(settings, action)
            recording = None if state.recording is None else state.recording.stored
            compiled = state.compile.stored
            if compiled is None or not state.complete:
                return state
            fetched = recording is None or self._actions.fetch(recording, recorded)
            if fetched and self._actions.fetch(compiled, folder):
                return state
            return replace(state, compile=replace(state.compile, stored=None))

        def run(state: PieceState) -> PieceState:
            return self._compiled(progress, group, state, action, folder)

        folder.mkdir(parents=True)
        subject = group.subject(action.models[0].piece)
        state, _ = self._actions.once(progress, "compile", subject, find, run)
        return state

    def _compiled(
        self,
        progress: GroupProgress,
        group: _Group,
        state: PieceState,
        action: Compile,
        folder: Path,
    ) -> PieceState:
        settings, number = progress.planned.group, action.models[0].piece
        subject = group.subject(number)
        self._actions.refuse_to_build(f"compile of {subject}")
        scratch, recorded = self._actions.new_folder("s"), self._actions.new_folder("r")
        for each in (scratch, recorded):
            each.mkdir(parents=True)
        job: list[Action[Any]] = [
            replace(
                action,
                optimized={name: group.graphs / name for name in action.names},
                folder=folder,
                scratch=scratch,
            )
        ]
        if state.recording is not None:
            record = Record(
                group=progress.group, given=group.sources, folder=folder, recorded=recorded
            )
            job.append(record)
        estimates = (model.reports[number - 1].memory or 0 for model in group.cut.models)
        with self._actions.lease(
            settings.execution_providers, f"{progress.label}-{subject}"
        ) as lease:
            result, *rest = progress.run_all(
                lease,
                subject,
                job,
                budget=settings.verify.budget,
                memory=max(estimates) or None,
            )
            lease.dismiss()
            lease.close()  # checks its exit code before anything is stored
        shutil.rmtree(scratch, ignore_errors=True)
        check_compiled(result, settings, action.names, folder)
        compile = self._actions.store_compiled(state.compile, "compile", settings, result, folder)
        if state.recording is None:
            return replace(state, compile=compile)
        (recording_result,) = rest or (RecordResult(recorded=True),)  # ended by the budget
        unfed = {f"{name}.{number}": why for name, why in group.unfed.items()}
        judge(unfed, recording_result.unrun)
        recording = self._actions.store_recording(
            state.recording, settings, compile.key, recording_result, recorded
        )
        destination = self._numbers.recorded(progress, group.state.session)
        shutil.copytree(recorded, destination, dirs_exist_ok=True)
        return PieceState(compile=compile, recording=recording)

    def _assemble(
        self,
        progress: GroupProgress,
        group: _Group,
        pieces: Sequence[PieceState],
        optimized: Mapping[str, Path],
        folders: Sequence[Path],
        folder: Path,
    ) -> SessionState:
        settings, state = progress.planned.group, group.state
        label = state.session.label
        results = [each.compile.result for each in pieces if each.compile.result is not None]
        action = Assemble.of(settings, state.digests, group.cut, results)
        job = replace(action, optimized=optimized, folders=tuple(folders), folder=folder)
        with self._actions.shared_lease() as lease:
            result = progress.run(lease, label, job)
        check_compiled(result, settings, list(state.digests), folder)
        whole = self._actions.store_compiled(
            self._actions.lookup.unknown(action), "assemble", settings, result, folder
        )
        return replace(state, pieces=tuple(pieces), compile=whole)
