"""Session groups in pieces: cut, compiled piece by piece, and assembled."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from epctx.actions.compile import Compile, CompileResult
from epctx.actions.pieces import Assemble, CutResult
from epctx.engine.actions.answer_checks import check_compiled
from epctx.engine.actions.base import Actions
from epctx.engine.progress import GroupProgress
from epctx.engine.scheduler import Scheduler
from epctx.engine.state import Known, SessionState
from epctx.errors import ManifestError


class _Piece(Struct, frozen=True, kw_only=True):
    """A piece that is compiled: its action, and the folder of its files."""

    compile: Known[CompileResult]
    folder: Path


class Piecing:
    """Makes what session groups in pieces are compiled into. Used by many threads.

    Args:
        scheduler: of the threads that use it.
    """

    def __init__(self, actions: Actions, scheduler: Scheduler) -> None:
        self._actions = actions
        self._scheduler = scheduler

    def run(
        self,
        progress: GroupProgress,
        known: SessionState,
        optimized: Mapping[str, Path],
        folder: Path,
    ) -> SessionState:
        """Return the session group assembled, with its files in `folder`.

        Args:
            known: its models are optimized.
            optimized: the folders of these, by name, in the session group's order.

        Raises:
            EpctxError: what a job raised.
        """
        cut, folders = self._cut(progress, known, optimized)
        assert cut.result is not None
        group = progress.planned.group
        pieces = self._scheduler.together(
            [
                partial(self._piece, progress, known, asked, folders, cut.result)
                for asked in cut.result.compiles(group, known.digests)
            ]
        )
        compiled = tuple(each.compile for each in pieces)
        made = [each.result for each in compiled if each.result is not None]
        asked = Assemble.of(group, known.digests, cut.result, made)
        job = replace(
            asked,
            optimized=optimized,
            folders=tuple(each.folder for each in pieces),
            folder=folder,
        )
        label = known.session.label
        with self._actions.shared_lane() as lane:
            result = progress.run(lane, label, job)
        check_compiled(result, group, list(known.digests), folder)
        unknown = self._actions.lookup.unknown(asked)
        whole = self._actions.store_compiled(unknown, "assemble", group, result, folder)
        self._actions.did(progress, "assemble", label, whole.key, ran=True)
        shutil.rmtree(folders, ignore_errors=True)
        for piece in pieces:
            shutil.rmtree(piece.folder, ignore_errors=True)
        return replace(known, cut=cut, pieces=compiled, compile=whole)

    def _cut(
        self, progress: GroupProgress, known: SessionState, optimized: Mapping[str, Path]
    ) -> tuple[Known[CutResult], Path]:
        """Cut the models; what is in the cache of it has no graphs, which take no time to make."""
        asked = self._actions.lookup.cut(progress.planned.group, known)
        folder, label = self._actions.new_folder("c"), known.session.label
        job = replace(asked, folders=optimized, folder=folder)
        with self._actions.shared_lane() as lane:
            try:
                result = progress.run(lane, label, job)
            except ManifestError as error:
                where = f"model_groups.{progress.planned.group.name}.{error.where}"
                raise ManifestError(
                    error.what, where=where, why=error.why, remedy=error.remedy
                ) from error
        cut = self._actions.store(self._actions.lookup.unknown(asked), "cut", result)
        self._actions.did(progress, "cut", label, cut.key, ran=True)
        return cut, folder

    def _piece(
        self,
        progress: GroupProgress,
        known: SessionState,
        asked: Compile,
        graphs: Path,
        cut: CutResult,
    ) -> _Piece:
        """Find or compile a piece of all models, in a lane of its own."""
        group, number = progress.planned.group, asked.models[0].piece
        subject = f"{known.session.label}.{number}"
        folder = self._actions.new_folder("p")
        folder.mkdir(parents=True)

        def find() -> Known[CompileResult]:
            found = self._actions.lookup.compiled(group, asked)
            if found.stored is None or self._actions.fetch(found.stored, folder):
                return found
            return replace(found, stored=None)

        def run(found: Known[CompileResult]) -> Known[CompileResult]:
            self._actions.refuse_to_build(f"compile of {subject}")
            scratch = self._actions.new_folder("s")
            scratch.mkdir(parents=True)
            compile = replace(
                asked,
                optimized={name: graphs / name for name in asked.names},
                folder=folder,
                scratch=scratch,
            )
            memory = max(model.reports[number - 1].memory or 0 for model in cut.models) or None
            eps = group.execution_providers
            with self._actions.lane(eps, f"{progress.label}-{subject}") as lane:
                (result,) = progress.run_all(lane, subject, [compile], memory=memory)
                lane.dismiss()
                lane.close()  # its exit code counts before anything is kept
            shutil.rmtree(scratch, ignore_errors=True)
            check_compiled(result, group, asked.names, folder)
            return self._actions.store_compiled(found, "compile", group, result, folder)

        found, _ = self._actions.once(progress, "compile", subject, find, run)
        return _Piece(compile=found, folder=folder)
