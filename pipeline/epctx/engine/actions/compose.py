"""The compose actions of a build: after the groups are built, before anything is published."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from epctx.engine.actions.base import Actions
from epctx.engine.lookup import Lookup
from epctx.engine.output.place import Place
from epctx.engine.output.published import difference
from epctx.engine.plan import PlannedComposition
from epctx.engine.progress import Events, Progress
from epctx.engine.results import StoredCompose, refuse
from epctx.engine.state import CompositionState, GroupState
from epctx.errors import EpctxError
from epctx.files import outputs
from epctx.keys import ComposeRecord, key, make
from epctx.keys.records import ComposedModel
from epctx.verification.findings import POLICIES, FolderReport, on_inputs
from epctx.verification.request import Composed, VerifyRequest
from epctx.worker.jobs import ComposeJob, ComposeResult


def assess(
    planned: PlannedComposition,
    groups: Mapping[str, GroupState],
    lookup: Lookup,
    place: Place,
) -> CompositionState:
    """What is known of a composition whose groups are built.

    Raises:
        ModelError: a file with inputs cannot be read.
    """
    record = _record(planned, groups, lookup)
    name = key(record)
    known = CompositionState(planned=planned, groups=groups, record=record, key=name)
    action = None if lookup.cache is None else lookup.cache.find(name, StoredCompose)
    required = planned.composition.verify.require
    if action is None or action.result.verify != action.result.verify.with_required(required):
        return known
    folder = place.group(planned.target, planned.composition.name)
    changed = difference(folder, action.result.files, lookup.digests)
    return replace(known, result=action.result, published=changed)


class Composing:
    """Carries out compositions, into staged folders."""

    def __init__(self, actions: Actions, place: Place, events: Events) -> None:
        self._actions = actions
        self._place = place
        self._events = events

    def compose(self, known: CompositionState) -> CompositionState:
        """Join, check, run and compare; a failure is in what is returned."""
        planned = known.planned
        progress = Progress(planned.label, self._events)
        try:
            result = self._run(known, progress)
        except EpctxError as error:
            progress.emit("failed", detail=error.head)
            error.group = planned.label
            return replace(known, result=None, progress=progress, failure=error)
        progress.emit("verified", detail=result.verify.unrun or on_inputs(result.verify.numbers))
        return replace(known, result=result, published="it was composed anew", progress=progress)

    def _run(self, known: CompositionState, progress: Progress) -> StoredCompose:
        planned, name = known.planned, known.planned.composition.name
        groups = (each.group for each in planned.groups)
        whole = Composed.of(
            planned.composition, groups, lambda group: self._folder(known.groups[group])
        )
        folder = self._place.staged(planned.target, name)
        folder.mkdir(parents=True)
        contents = {
            group: {file: content for s in state.sessions for file, content in s.outputs.items()}
            for group, state in known.groups.items()
        }
        job = ComposeJob(composed=whole, contents=contents, folder=folder)
        with self._actions.shared_lane() as lane:
            made = progress.run(lane, name, job, ComposeResult)
        progress.remember(made.peak_memory)
        outputs.write_sums(folder, made.files)
        found = self._verify(planned, whole, folder, progress)
        refuse(found)
        result = StoredCompose(files=made.files, report=made.report, verify=found)
        assert known.key is not None and known.record is not None
        self._actions.store(known.key, "compose", known.record, result)
        self._actions.did(progress, "compose", name, known.key, ran=True)
        return result

    def _verify(
        self, planned: PlannedComposition, whole: Composed, folder: Path, progress: Progress
    ) -> FolderReport:
        runs = self._actions.lookup.runs_models or planned.composition.verify.numbers == "off"
        request = VerifyRequest(
            folder=folder,
            label=planned.label,
            composed=whole,
            policies=tuple(p for p in POLICIES if p != "numbers" or runs),
        )
        with self._actions.lane(whole.providers, f"{planned.label}-verify") as lane:
            found = progress.run(lane, planned.composition.name, request, FolderReport)
        return found.with_skipped()

    def _folder(self, group: GroupState) -> Path:
        """Where the files of a group are: staged, if it was built; else published."""
        place = self._place.group if group.progress is None else self._place.staged
        return place(group.planned.target, group.planned.group.name)


def _record(
    planned: PlannedComposition, groups: Mapping[str, GroupState], lookup: Lookup
) -> ComposeRecord:
    composition, settings = planned.composition, planned.composition.verify
    parts: list[ComposedModel] = []
    for part in composition.parts:
        state = groups[part.group]
        compiled = state.session(part.model)
        model = next(m for m in compiled.models if m.source.name == part.model)
        assert model.found is not None
        source = (model.source, model.found)
        group = state.planned.group
        parts.append(make.part(part, group, compiled.outputs, source, lookup.toolchain))
    specs = [s for each in groups.values() for s in each.planned.group.execution_providers]
    return make.compose(
        composition,
        parts,
        inputs=make.inputs(settings.inputs, lookup.digests)
        if settings.numbers != "off" and lookup.runs_models
        else None,
        devices=lookup.toolchain.devices(specs),
        toolchain=lookup.toolchain,
    )
