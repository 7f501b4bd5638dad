"""Publishing a build's groups, and what the report says of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from epctx import build_report
from epctx.build_report import GroupReport
from epctx.cache import Cache, identity
from epctx.model_report import ModelReport
from epctx.planning import PlannedGroup
from epctx.publish import Place
from epctx.runner.assessment import Assessment, contents_of, files_of
from epctx.runner.building import Built, Ended
from epctx.runner.lookup import Compiled
from epctx.runner.results import model_reports


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
        _swap(built, place, cache)
    built.progress.tell("built")
    return replace(
        _progressed(built),
        state="built",
        folder=_folder(planned, place),
        files=files,
        models=_models(planned, built.sessions),
        verify=built.verify,
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


def _swap(built: Built, place: Place, cache: Cache | None) -> None:
    target, group = built.planned.target, built.planned.group.name
    staged = place.staged(target, group)
    contents = contents_of(files_of(built.sessions))
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
