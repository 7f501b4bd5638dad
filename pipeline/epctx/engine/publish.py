"""Publishing a build's groups, and what the report says of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from epctx.cache import Cache
from epctx.engine import report as build_report
from epctx.engine.actions.compose import ComposedGroup
from epctx.engine.output.place import Place
from epctx.engine.output.published import contents_of
from epctx.engine.plan import PlannedGroup
from epctx.engine.report import ActionReport, GroupReport
from epctx.engine.results import model_reports
from epctx.engine.state import Built, Compiled, Ended
from epctx.engine.up_to_date import Assessment, files_of
from epctx.files import identity
from epctx.files.outputs import OutputFile
from epctx.stages.report import ModelReport


def published(
    built: Built, known: Assessment | None, place: Place, cache: Cache | None
) -> GroupReport:
    """Swap a built group in, unless just the same is there already.

    Raises:
        StorageError: the system refuses.
    """
    planned = built.planned
    files = files_of(built.sessions)
    same = (
        known is not None
        and known.published is None
        and contents_of(known.files) == contents_of(files)
    )
    if not same:
        _swap(planned.target, planned.group.name, files, place, cache)
    built.progress.tell("built")
    return replace(
        _progressed(built),
        state="built",
        folder=_folder(planned, place),
        files=files,
        models=_models(planned, built.sessions),
        verify=built.verify,
    )


def composition(
    composed: ComposedGroup, place: Place, cache: Cache | None, *, publish: bool
) -> GroupReport:
    """Swap a composition in, if it was composed and is to be published.

    Raises:
        StorageError: the system refuses.
    """
    planned, result = composed.planned, composed.result
    target, name = planned.target, planned.composition.name
    report = GroupReport(target=target, group=name, state="skipped")
    if composed.failure is not None and not isinstance(composed.failure, Ended):
        return replace(report, state="failed", failure=build_report.failure(composed.failure))
    if result is None or not publish:
        return report
    if composed.ran:
        _swap(target, name, result.files, place, cache)
    return replace(
        report,
        state="built" if composed.ran else "up to date",
        folder=place.group(target, name).relative_to(place.out).as_posix(),
        files=result.files,
        models=(_whole(composed),),
        verify=result.verify,
        actions=(
            ActionReport(action="compose", subject=name, key=str(composed.name), ran=composed.ran),
        ),
        peak_memory=composed.peak_memory,
        composition=result.report,
    )


def _whole(composed: ComposedGroup) -> ModelReport:
    """What is told of a composition's model: its parts', one after the other."""
    parts = []
    for part in composed.planned.composition.parts:
        ready = composed.groups[part.group]
        found = _models(ready.planned, [ready.session(part.model)])
        parts.append(next(model for model in found if model.name == part.model))
    nodes = sum(part.nodes for part in parts)
    return ModelReport(
        name=composed.planned.composition.name,
        passes=(),
        nodes=nodes,
        coverage=sum(part.coverage * part.nodes for part in parts) / nodes if nodes else 0.0,
        partitions=tuple(each for part in parts for each in part.partitions),
        declined=tuple(each for part in parts for each in part.declined),
    )


def unpublished(built: Built) -> GroupReport:
    """Of a group that failed, or was not published because another did."""
    report = _progressed(built)
    if built.failure is None or isinstance(built.failure, Ended):
        built.progress.tell("skipped")
        return report
    return replace(report, state="failed", failure=build_report.failure(built.failure))


def unchanged(known: Assessment, place: Place) -> GroupReport:
    """Of a group of which nothing was to be done."""
    planned = known.planned
    return GroupReport(
        target=planned.target,
        group=planned.group.name,
        state="up to date",
        folder=_folder(planned, place),
        files=known.files,
        models=_models(planned, known.sessions),
        verify=known.report,
    )


def _swap(
    target: str, group: str, files: Sequence[OutputFile], place: Place, cache: Cache | None
) -> None:
    staged = place.staged(target, group)
    contents = contents_of(files)
    # Taken while nobody else knows the files: what settled by now is as it was hashed.
    seen = {name: identity.of_path(staged / name) for name in contents}
    place.publish(target, group)
    if cache is not None:
        for name, content in contents.items():
            cache.digests.remember(place.group(target, group) / name, seen[name], content)


def _progressed(built: Built) -> GroupReport:
    progress = built.progress
    return GroupReport(
        target=built.planned.target,
        group=built.planned.group.name,
        state="skipped",
        actions=tuple(progress.actions),
        stages=tuple(progress.stages),
        peak_memory=progress.peak_memory,
    )


def _models(planned: PlannedGroup, sessions: Sequence[Compiled]) -> tuple[ModelReport, ...]:
    return tuple(
        report
        for session in sessions
        if session.action is not None
        for report in model_reports(
            session.action.result,
            planned.group,
            {m.source.name: m.action.result.passes for m in session.models if m.action},
        )
    )


def _folder(planned: PlannedGroup, place: Place) -> str:
    folder: Path = place.group(planned.target, planned.group.name)
    return folder.relative_to(place.out).as_posix()
