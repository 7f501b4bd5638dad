"""Runs of models in a build: find each in the cache, or run it in a worker and store its result.

Sources run while their EP compiles. A source that cannot run ends the compile, which may take
minutes, and the EP is not blamed. The compiled files run after that, each session group in its own
job. Each result is stored at once, so a build that ends early loses only the present run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from epctx.actions.action import Action
from epctx.actions.run_models import RunFiles, RunResult, RunSource, SourceResult, of_group
from epctx.actions.verify import Check, Verify, reports
from epctx.engine.actions.base import Actions, stored_files
from epctx.engine.executor import Cancelled, Scheduler, WorkerLease
from epctx.engine.plan import SessionGroup
from epctx.engine.progress import GroupProgress
from epctx.engine.state import Known, SessionState
from epctx.errors import CompileError, EpctxError, Failure, ModelError
from epctx.files import paths
from epctx.keys.records import InputsRecord
from epctx.manifest import ModelGroup
from epctx.text import size_words
from epctx.verification.findings import POLICIES, FolderReport, joined
from epctx.verification.request import Kept, VerifyRequest

Run = TypeVar("Run", RunSource, RunFiles)
Unfed = Mapping[str, str]
"""Reasons why models do not run on generated inputs, by model. Models that run are not in it."""


_LOADED: Final = 4
"""Upper bound for bytes of memory per byte of a loaded file: QNN's simulator takes 1.7 for float16,
3.6 for 4 bits (onnxruntime-qnn 2.7.0)."""
_BASE: Final = 250_000_000
"""Bytes of a process that compiles or runs, without weights."""


class _Runs:
    """Finds and stores runs of models. Files are stored by their path below the model's folder,
    since the name of the model is in no key.
    """

    def __init__(self, actions: Actions) -> None:
        self._actions = actions

    def missing(self, runs: Sequence[Run]) -> list[Run]:
        """Fetch the outputs of cached runs, and return the other runs."""
        if self._actions.lookup.cache is None:
            return list(runs)
        missing = []
        for run in runs:
            state: Known[Any] = self._actions.lookup.find(run)
            if state.stored is None or not self._actions.fetch(state.stored, run.place):
                missing.append(run)
        return missing

    def store(self, run: RunSource | RunFiles, result: SourceResult | RunResult) -> None:
        """Store the existing outputs of a run."""
        lookup = self._actions.lookup
        if lookup.cache is None or run.model is None or not result.ran:
            return
        state: Known[Any] = lookup.unknown(run)
        names = (name for name in result.made if paths.missing(run.place, name) is None)
        files = stored_files(run.place, map(run.place.joinpath, names))
        self._actions.store(state, run.kind, result, folder=run.place, files=files)


class Numbers:
    """Runs the models of a build, and judges their outputs. Thread-safe."""

    def __init__(self, actions: Actions, scheduler: Scheduler) -> None:
        self._actions = actions
        self._scheduler = scheduler
        self._runs = _Runs(actions)
        self._ran: set[tuple[Path, bool, int]] = set()

    def recorded(self, progress: GroupProgress, session: SessionGroup) -> Path:
        """Return the folder of the recorded outputs of a session group's generating sessions."""
        return self._folder(progress, session) / "generating"

    def _folder(self, progress: GroupProgress, session: SessionGroup) -> Path:
        """Return the folder of a session group's outputs. One job at a time writes to each folder
        in it.
        """
        return self._actions.work / "kept" / progress.label / session.label

    @contextmanager
    def beside(
        self, progress: GroupProgress, session: SessionState, compiling: WorkerLease
    ) -> Iterator[Future[Unfed] | None]:
        """Run the sources of a session group while the body compiles; cancel the compile if one of
        them does not run.

        Yields:
            The future of these runs. None if no model of the group is run, or if verification runs
            the sources later, because the EPs compile in less time than a process takes to start.
        """
        group = progress.planned.group
        if not compiling.own or self._actions.lookup.inputs(group) is None:
            yield None
            return
        outcome: Future[Unfed] = Future()
        with self._actions.shared_lease(group.execution_providers) as lease:

            def run() -> None:
                try:
                    outcome.set_result(self._run_sources(progress, session, lease))
                except EpctxError as error:
                    outcome.set_exception(error)
                    if not isinstance(error, Cancelled):  # a cancelled run is not the cause
                        compiling.cancel(error)
                except BaseException as error:  # a bug: raised by the future
                    outcome.set_exception(error)

            thread = threading.Thread(target=run, name="epctx-source")
            thread.start()
            try:
                yield outcome
            finally:
                if not outcome.done():
                    lease.cancel(Cancelled("its compile failed", remedy="see its error"))
                thread.join()

    def run_sources(self, progress: GroupProgress, session: SessionState) -> tuple[Unfed, Path]:
        """Run the sources of a session group, piece by piece if it is cut. Return why models do not
        run on generated inputs, and the folder of the outputs. Raises as `_run_sources`.
        """
        kept = Kept.below(self._folder(progress, session.session))
        eps, label = progress.planned.group.execution_providers, session.session.label
        # The sources run in their own process, whose end frees their memory before a piece is
        # compiled.
        with self._actions.lease(eps, f"{progress.label}-{label}-source") as lease:
            return self._run_sources(progress, session, lease), kept.source

    def _run_sources(
        self, progress: GroupProgress, session: SessionState, lease: WorkerLease
    ) -> Unfed:
        """Run the sources of a session group on all input sets.

        Raises:
            ModelError: a source runs on none of the inputs that were tried.
            EpctxError: the job raised it.
        """
        settings = progress.planned.group.verify
        kept = Kept.below(self._folder(progress, session.session))
        runs = self._sources_of(progress, session, kept)
        missing = self._runs.missing(runs)
        unfed: dict[str, str] = {}

        def ran(run: RunSource, result: SourceResult | None) -> None:
            if result is not None and result.unfed is not None:
                unfed[run.source.name] = result.unfed
            if result is not None and result.ran:
                self._ran.add((run.place, run.reference, run.index))

        def finished(number: int, result: SourceResult) -> None:
            self._runs.store(missing[number], result)
            ran(missing[number], result)

        for run in runs:
            if run not in missing:
                ran(run, self._actions.lookup.find(run).result)
        try:
            if missing:
                budget, label = settings.budget, session.session.label
                progress.run_all(lease, label, missing, finished=finished, budget=budget)
        except CompileError as error:  # no EP is in that process
            if error.starved:  # verification runs them later, when nothing compiles
                return {}
            raise _crashed(error, session) from error
        return unfed

    def _sources_of(
        self,
        progress: GroupProgress,
        session: SessionState,
        kept: Kept,
        built: Path | None = None,
    ) -> list[RunSource]:
        """Return the runs of a session group's sources, with the fields of their keys."""
        lookup, group = self._actions.lookup, progress.planned.group
        inputs = lookup.inputs(group)
        assert inputs is not None
        models = {model.source.name: model for model in session.models}
        sources = replace(progress.group, models=tuple(models[name].source for name in models))
        keyed = lookup.cache is not None
        runs: list[RunSource] = []
        native = lookup.toolchain.native(group.execution_providers)
        cut = None if session.cut is None else session.cut.result
        cuts = {} if cut is None else dict(zip(models, cut.crossing, strict=True))
        for run in of_group(sources, kept.source, built, magnitudes=native, cuts=cuts):
            model = models[run.source.name]
            whole = run
            if keyed and model.found is not None:
                named = replace(lookup.model_of(model), name="")
                whole = replace(
                    run,
                    model=named if run.reference else replace(named, reference=None),
                    inputs=_given(inputs, run.index, group),
                    devices=lookup.toolchain.devices(()),
                )
            runs.append(whole)
        return runs

    def verify(
        self,
        progress: GroupProgress,
        new: Sequence[SessionState],
        request: VerifyRequest,
    ) -> FolderReport:
        """Check a group's folder; run and judge its new session groups.

        Args:
            request: request for the whole folder; without numbers if the build skips them.

        Raises:
            EpctxError: a job raised it.
        """
        group, begun = progress.planned.group, time.monotonic()
        check = Check(request=request)

        def checked() -> FolderReport:
            with self._actions.shared_lease(group.execution_providers) as lease:
                return progress.run(lease, group.name, check)

        if "numbers" not in request.policies:
            return next((each.checked for each in new if each.checked), None) or checked()
        together = group.verify.numbers == "off" or len(new) == 1
        parts = [list(new)] if together else [[each] for each in new]
        folder_reports = [] if together else [checked()]

        def part(sessions: Sequence[SessionState]) -> FolderReport:
            files = {name for each in sessions for name in each.outputs}
            other_files = {name for each in new for name in each.outputs} - files
            kept = Kept.below(self._folder(progress, sessions[0].session))
            if sessions[0].recorded:
                recorded = self.recorded(progress, sessions[0].session)
                kept = replace(kept, generating=recorded)
            part_request = replace(
                request,
                policies=("numbers",),
                only_pieces=_too_large(sessions),
                kept=kept,
                passed=(*request.passed, *sorted(other_files)),
                earlier=tuple(f for report in folder_reports for f in report.findings),
            )
            spent = time.monotonic() - begun
            checks = () if folder_reports else (check,)
            return self._judged(
                progress, sessions, part_request, checks, spent, alone=len(parts) == 1
            )

        folder_reports += self._scheduler.together([partial(part, each) for each in parts])
        return joined(request.label, folder_reports)

    def _judged(
        self,
        progress: GroupProgress,
        sessions: Sequence[SessionState],
        request: VerifyRequest,
        checks: Sequence[Check],
        spent: float,
        *,
        alone: bool,
    ) -> FolderReport:
        """Do the missing runs of session groups, and judge them. Several session groups come
        together only if numbers are off: their files are only loaded.
        """
        group, kept = progress.planned.group, request.kept
        assert kept is not None
        missing: list[RunSource | RunFiles] = []
        if group.verify.numbers != "off":
            source_runs = [
                each
                for session in sessions
                for each in self._sources_of(progress, session, kept, request.folder)
                if (each.place, each.reference, each.index) not in self._ran
            ]
            missing += self._runs.missing(source_runs)
        if group.verify.numbers == "full":
            missing += self._runs.missing(self._files_of(progress, sessions, request))
        else:
            missing.append(RunFiles(request=request, folder=kept.files))
        job: list[Action[Any]] = [*checks, *missing, Verify(request=request)]

        def finished(number: int, result: Any) -> None:
            run = job[number]
            if isinstance(run, RunSource | RunFiles) and not isinstance(result, FolderReport):
                self._runs.store(run, result)

        label = sessions[0].session.label if not alone else group.name
        budget = group.verify.budget if group.verify.numbers != "off" else None
        with self._actions.shared_lease(group.execution_providers) as lease:
            carry_out = partial(
                progress.run_all,
                lease,
                label,
                finished=finished,
                budget=None if budget is None else max(0.0, budget - spent),
                memory=self._memory(progress, sessions),
                pace=self._actions.pace(sessions),
            )
            return joined(request.label, reports(job, carry_out))

    def _files_of(
        self, progress: GroupProgress, sessions: Sequence[SessionState], request: VerifyRequest
    ) -> list[RunFiles]:
        """Return the runs of session groups' files, with the fields of their keys."""
        lookup, group = self._actions.lookup, progress.planned.group
        inputs, keyed = lookup.inputs(group), lookup.cache is not None
        assert inputs is not None and request.kept is not None
        runs: list[RunFiles] = []
        for session in sessions:
            outputs = {name: str(content) for name, content in session.outputs.items()}
            for model in session.models:
                for index in range(group.verify.inputs.sets + 1):
                    run = RunFiles(
                        index=index,
                        only=model.source.name,
                        request=request,
                        folder=request.kept.files,
                    )
                    if keyed:
                        run = replace(
                            run,
                            compile=str(session.key),
                            outputs=outputs,
                            model=replace(lookup.model_of(model), name="", reference=None),
                            inputs=_given(inputs, index, group),
                            devices=lookup.devices(group, str(session.key)),
                        )
                    runs.append(run)
        return runs

    def _memory(self, progress: GroupProgress, sessions: Sequence[SessionState]) -> int | None:
        """Estimate the memory of a process in bytes: as measured before, else as much as the
        compile took. None if the EPs share a process.
        """
        if not self._actions.isolated(progress.planned.group.execution_providers):
            return None
        pace = self._actions.pace(sessions)
        peaks = [measured.peak_memory for model in pace.compiled if (measured := pace.find(model))]
        return max(peaks, default=progress.peak_memory)


def _too_large(sessions: Sequence[SessionState]) -> str | None:
    """Return why models in pieces are not loaded whole, in words; None if they are loaded whole, or
    are not cut.

    This keeps the memory of verification within that of the compile of the largest piece.
    """
    whole = sum(_LOADED * file.size for each in sessions for file in each.files)
    cuts = [each.cut.result for each in sessions if each.cut is not None]
    pieces = [
        _BASE + 2 * piece.weights if piece.memory is None else piece.memory
        for model in (model for cut in cuts if cut is not None for model in cut.models)
        for piece in model.reports
    ]
    largest = max(pieces, default=whole)
    if whole <= largest:
        return None
    words = f"the whole may take {size_words(whole)} of memory, but the compile of a piece at most"
    return f"{words} {size_words(largest)}"


def request(
    progress: GroupProgress,
    folder: Path,
    *,
    skips_numbers: bool,
    written: Sequence[Any] = (),
    passed: Sequence[str] = (),
) -> VerifyRequest:
    """Request all policies for a staged folder, without numbers if the build skips them."""
    return VerifyRequest(
        group=progress.group,
        folder=folder,
        label=progress.label,
        passed=tuple(passed),
        written=tuple(written),
        policies=tuple(p for p in POLICIES if p != "numbers" or not skips_numbers),
    )


def judge(unfed: Unfed, unrun: Sequence[Failure]) -> None:
    """Blame the EP for models that its generating sessions did not run, but whose sources run.

    Args:
        unfed: models whose sources do not run.
        unrun: failures of models in the generating sessions.

    Raises:
        CompileError: the EP is to blame.
    """
    for failure in unrun:
        if failure.model not in unfed:
            raise CompileError.of(failure)


def _given(inputs: InputsRecord, index: int, group: ModelGroup) -> InputsRecord:
    """Return the inputs for the key of a run. Only the last index depends on the number of input
    sets, so other runs have the number 0.
    """
    return inputs if index == group.verify.inputs.sets else replace(inputs, count=0)


def _crashed(error: CompileError, session: SessionState) -> ModelError:
    models = " and ".join(model.source.name for model in session.models)
    return ModelError(
        f"ONNX Runtime's CPU EP cannot run the source model: {error.what}",
        model=models,
        why=error.why,
        remedy="run the source model with onnxruntime alone, and correct it",
    )
