"""Compose actions of a build, after the groups are built and before anything is published."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from epctx.actions import verify
from epctx.actions.compose import ComposeResult
from epctx.engine.actions.base import Actions
from epctx.engine.output.place import OutputPaths
from epctx.engine.plan import PlannedComposition
from epctx.engine.progress import Events, Progress
from epctx.engine.results import refuse
from epctx.engine.state import CompositionState, GroupState, Known
from epctx.errors import EpctxError
from epctx.files import outputs
from epctx.verification.findings import POLICIES, FolderReport, on_inputs
from epctx.verification.request import Composed, Kept, VerifyRequest


class Composing:
    """Runs compositions into staged folders."""

    def __init__(self, actions: Actions, place: OutputPaths, events: Events) -> None:
        self._actions = actions
        self._place = place
        self._events = events

    def compose(self, state: CompositionState) -> CompositionState:
        """Join the parts, check the result, run it and compare; the returned state has the failure,
        if any.
        """
        planned = state.planned
        progress = Progress(planned.label, self._events)
        try:
            stored, report = self._run(state, progress)
        except EpctxError as error:
            progress.emit("failed", detail=error.head)
            error.group = planned.label
            return replace(state, compose=None, progress=progress, failure=error)
        progress.emit("verified", detail=report.unrun or on_inputs(report.numbers))
        return replace(state, compose=stored, published="it was composed again", progress=progress)

    def _run(
        self, composition: CompositionState, progress: Progress
    ) -> tuple[Known[ComposeResult], FolderReport]:
        planned, name = composition.planned, composition.planned.composition.name
        groups = (each.group for each in planned.groups)
        whole = Composed.of(
            planned.composition, groups, lambda group: self._folder(composition.groups[group])
        )
        folder = self._place.staged(planned.target, name)
        folder.mkdir(parents=True)
        contents = {
            group: {file: content for s in state.sessions for file, content in s.outputs.items()}
            for group, state in composition.groups.items()
        }
        assert composition.compose is not None and composition.request is not None
        job = replace(composition.request, composed=whole, contents=contents, folder=folder)
        with self._actions.shared_lease() as lease:
            result = progress.run(lease, name, job)
        outputs.write_sums(folder, result.files)
        report = self._verify(planned, whole, folder, progress)
        refuse(report)
        stored = self._actions.store(composition.compose, "compose", replace(result, verify=report))
        self._actions.did(progress, "compose", name, stored.key, ran=True)
        return stored, report

    def _verify(
        self, planned: PlannedComposition, whole: Composed, folder: Path, progress: Progress
    ) -> FolderReport:
        runs = self._actions.lookup.runs_models or planned.composition.verify.numbers == "off"
        kept = Kept.below(self._actions.new_folder("k"))
        request = VerifyRequest(
            folder=folder,
            label=planned.label,
            composed=whole,
            kept=kept,
            policies=tuple(p for p in POLICIES if p != "numbers" or runs),
        )
        name = planned.composition.name
        with self._actions.shared_lease(whole.providers) as lease:
            report = verify.verified(request, lambda job: progress.run_all(lease, name, job))
        return report.with_skipped()

    def _folder(self, group: GroupState) -> Path:
        """Return the folder of a group's files: staged, if it was built; else published."""
        place = self._place.group if group.progress is None else self._place.staged
        return place(group.planned.target, group.planned.group.name)
