"""Publish the groups of a build, and report each of them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from epctx.cache import Cache
from epctx.cache.action import Origin
from epctx.cache.digests import FreshDigests
from epctx.engine.executor import Cancelled
from epctx.engine.lookup import Lookup
from epctx.engine.output.place import OutputPaths, contents_of, difference
from epctx.engine.report import ActionReport, EpReport, GroupReport
from epctx.engine.results import model_reports
from epctx.engine.state import CompositionState, GroupState, SessionState
from epctx.errors import EpctxError, LogTail
from epctx.files import identity
from epctx.files.outputs import GOLDEN, OutputFile
from epctx.graph.model import Placement
from epctx.keys import Toolchain
from epctx.lockfile.types import Lock
from epctx.manifest import Manifest, ModelGroup, ProviderSpec
from epctx.stages.report import ModelReport


def group(
    state: GroupState, place: OutputPaths, cache: Cache | None, *, wanted: bool
) -> GroupReport:
    """Report a group; publish it if it was built and `wanted`.

    Raises:
        StorageError: the system refuses.
    """
    planned, progress = state.planned, state.progress
    report = GroupReport(
        target=planned.target,
        group=planned.group.name,
        state="skipped",
        buckets=_buckets(planned.group),
        guessed={model.name: model.guesses for model in planned.group.models if model.guesses},
    )
    if progress is None:
        return replace(_whole_group(report, state, place), state="up to date")
    report = replace(
        report,
        actions=tuple(progress.actions),
        stages=tuple(progress.stages),
        peak_memory=progress.peak_memory,
    )
    if state.failure is not None:
        order = [model.name for model in planned.group.models]
        models = sorted((*_models(state), *progress.models), key=lambda m: order.index(m.name))
        report = replace(
            report,
            models=tuple(models),
            verify=progress.found,
            log=_log(state.failure, place),
        )
        if not isinstance(state.failure, Cancelled):
            failure = dataclasses.replace(state.failure.failure, group=None)
            return replace(report, state="failed", failure=failure)
    if state.failure is not None or not wanted:
        progress.emit("skipped")
        return report
    if state.published is not None:
        _swap(planned.target, planned.group.name, state.files, place, cache)
    progress.emit("built")
    return replace(_whole_group(report, state, place), state="built")


def _buckets(group: ModelGroup) -> dict[str, dict[str, Mapping[str, int]]]:
    buckets: dict[str, dict[str, Mapping[str, int]]] = {}
    for model in group.models:
        if model.bucket is not None:
            buckets.setdefault(model.bucket.model, {})[model.name] = model.bucket.sizes
    return buckets


def _whole_group(report: GroupReport, state: GroupState, place: OutputPaths) -> GroupReport:
    planned = state.planned
    return replace(
        report,
        folder=_folder(planned.target, planned.group.name, place),
        files=state.files,
        models=_models(state),
        verify=state.report,
    )


def composition(
    state: CompositionState, place: OutputPaths, cache: Cache | None, *, wanted: bool
) -> GroupReport:
    """Report a composition; publish it if it was composed and `wanted`.

    Raises:
        StorageError: the system refuses.
    """
    planned, result, progress = state.planned, state.result, state.progress
    target, name = planned.target, planned.composition.name
    report = GroupReport(target=target, group=name, state="skipped")
    if state.failure is not None and not isinstance(state.failure, Cancelled):
        return replace(
            report, state="failed", failure=dataclasses.replace(state.failure.failure, group=None)
        )
    if result is None or not wanted:
        return report
    if progress is not None:
        _swap(target, name, result.files, place, cache)
        report = replace(report, stages=tuple(progress.stages), peak_memory=progress.peak_memory)
    return replace(
        report,
        state="up to date" if progress is None else "built",
        folder=_folder(target, name, place),
        files=result.files,
        models=(_whole(state),),
        verify=result.verify,
        actions=(
            ActionReport.of("compose", name, state.key, None if progress is not None else Origin()),
        ),
        composition=result.report,
    )


def _whole(composed: CompositionState) -> ModelReport:
    """Return the report of a composition's model: the reports of its parts, joined in order."""
    parts = []
    for part in composed.planned.composition.parts:
        group = composed.groups[part.group]
        reports = _session(group, group.session(part.model))
        parts.append(next(model for model in reports if model.name == part.model))
    nodes = sum(part.nodes for part in parts)
    return ModelReport(
        name=composed.planned.composition.name,
        passes=(),
        nodes=nodes,
        coverage=sum(part.coverage * part.nodes for part in parts) / nodes if nodes else 0.0,
        partitions=tuple(each for part in parts for each in part.partitions),
        declined=tuple(each for part in parts for each in part.declined),
        placement=Placement.of_parts(part.placement for part in parts),
    )


def _swap(
    target: str, group: str, files: Sequence[OutputFile], place: OutputPaths, cache: Cache | None
) -> None:
    staged, published = place.staged(target, group), place.group(target, group)
    contents = contents_of(files)
    if (published / GOLDEN).is_dir() and difference(published, files, FreshDigests()) is None:
        return  # the published files are the same: keep them with their golden files
    # Taken before publication, when nobody else can write the files: they are as hashed.
    identities = {name: identity.of_path(staged / name) for name in contents}
    place.publish(target, group)
    if cache is not None:
        for name, content in contents.items():
            cache.digests.remember(place.group(target, group) / name, identities[name], content)


def _log(error: EpctxError, place: OutputPaths) -> LogTail | None:
    """Return the log of the failed process, with its path from the report; None if it is empty."""
    if error.log is None or not error.log.lines:
        return None
    return dataclasses.replace(
        error.log, file=Path(os.path.relpath(error.log.file, place.out)).as_posix()
    )


def _models(state: GroupState) -> tuple[ModelReport, ...]:
    return tuple(report for session in state.sessions for report in _session(state, session))


def _session(state: GroupState, session: SessionState) -> tuple[ModelReport, ...]:
    if session.result is None:
        return ()
    optimized = {m.source.name: m.result for m in session.models if m.result is not None}
    quantized = {
        m.source.name: m.quantized.result.report
        for m in session.models
        if m.quantized is not None and m.quantized.result is not None
    }
    return model_reports(session.result, state.planned.group, optimized, quantized)


def _folder(target: str, group: str, place: OutputPaths) -> str:
    return place.group(target, group).relative_to(place.out).as_posix()


def described(
    reports: Iterable[GroupReport], manifest: Manifest, lookup: Lookup, lock: Lock | None
) -> tuple[GroupReport, ...]:
    """Add to each report its part of the manifest, and its EPs on this host.

    Args:
        lock: the lock of the build; None if a group failed.
    """
    targets = {target.name: target for target in manifest.targets}
    groups = {(t.name, group.name): group for t in manifest.targets for group in t.groups}
    locked = {} if lock is None else lock.groups

    def describe(report: GroupReport) -> GroupReport:
        written = targets[report.target].written[report.group]
        group = groups.get((report.target, report.group))
        if group is None:  # a composition
            return replace(report, manifest=written)
        locked_group = locked.get(f"{report.target}/{report.group}")
        keys = (
            [session.key for session in locked_group.session_groups.values()]
            if locked_group
            else []
        )
        return replace(
            report,
            execution_providers=tuple(_ep(s, lookup.toolchain) for s in group.execution_providers),
            manifest=written,
            devices=lookup.devices(group, keys[0]) if keys else {},
        )

    return tuple(map(describe, reports))


def _ep(spec: ProviderSpec, toolchain: Toolchain) -> EpReport:
    report = EpReport(alias=spec.alias, provider=spec.provider, options=spec.options)
    try:
        record, traits = toolchain.provider(spec), toolchain.traits(spec)
    except EpctxError:  # the group failed for the same reason
        return report
    return replace(report, options=record.options, toolchain=record.toolchain, traits=traits)
