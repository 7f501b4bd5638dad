"""How a build ends: what is published, the report of it, the lock, and what is released."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from epctx import codec, lockfile
from epctx._version import __version__
from epctx.engine import publish as publishing
from epctx.engine import report as build_report
from epctx.engine import settings
from epctx.engine.building import Building
from epctx.engine.events import Event
from epctx.engine.executor import Cancelled
from epctx.engine.lock import writer
from epctx.engine.lock.keep import keep
from epctx.engine.output.withdraw import withdraw
from epctx.engine.release import Releasing
from epctx.engine.report import BuildReport, GroupReport
from epctx.engine.state import CompositionState, GroupState
from epctx.errors import EpctxError, StorageError
from epctx.files import atomic, digest
from epctx.files.digest import Digest
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock


def lock_of(
    build: Building, groups: Sequence[GroupState], composed: Sequence[CompositionState]
) -> Lock | None:
    """The lock of what was built; None: something failed."""
    if _failures(groups, composed):
        return None
    return writer.make(
        build.plan.manifest,
        [(group.planned, group.sessions) for group in groups],
        build.lookup.toolchain,
        [(each.planned, each.files) for each in composed],
        whole=build.plan.whole,
        ranges=build.ranges.locked(whole=build.plan.whole),
    )


def publish(
    build: Building,
    groups: Sequence[GroupState],
    composed: Sequence[CompositionState],
    *,
    whole: bool,
) -> list[GroupReport]:
    """Swap in what was built, and say what became of each group and composition.

    Args:
        whole: nothing failed.

    Raises:
        StorageError: the system refuses.
    """
    place, cache, plan = build.place, build.cache, build.plan
    wanted = whole or build.options.keep_going
    if wanted:
        manifest, all_of_it = plan.manifest.path, whole and plan.whole
        withdraw(place, manifest, groups, composed, build.notice, whole=all_of_it)
    targets = {each.planned.target for each in groups}
    targets |= {each.planned.target for each in composed}
    with place.settling(sorted(targets)):
        reports = [publishing.group(each, place, cache, wanted=wanted) for each in groups]
        made = [publishing.composition(each, place, cache, wanted=wanted) for each in composed]
    for report, each in zip(made, composed, strict=True):  # what failed was told already
        if not each.up_to_date and report.state != "failed":
            build.events.emit(Event(group=each.planned.label, state=report.state))
    return [*reports, *made]


def report(
    build: Building,
    groups: Sequence[GroupState],
    composed: Sequence[CompositionState],
    published: Sequence[GroupReport],
    old: Lock | None,
    new: Lock | None,
) -> tuple[BuildReport, EpctxError | None]:
    """Write report and lock, and what is released; return the report and the first failure.

    Args:
        old: the lock that the build was held to; None: to none.
        new: as `lock_of` gave it.

    Raises:
        StorageError: the system refuses.
        LockError: what is released is not what the lock says.
    """
    failures = _failures(groups, composed)
    made = BuildReport(
        schema_version=build_report.SCHEMA_VERSION,
        epctx=__version__,
        name=build.plan.manifest.name,
        started=build.started,
        seconds=round(build.events.now(), 3),
        host=build_report.host(),
        groups=settings.described(published, build.plan.manifest, build.lookup, new),
        lock=new,
        revision=build_report.revision(build.plan.manifest.path.parent),
    )
    ran = any(each.progress is not None for each in groups)
    ran = ran or any(not each.up_to_date for each in composed)
    planned = _planned(made)
    if ran or build.repaired or not build.memo.has_report(planned, build.place.report):
        _write(build, made, failures)
    build.memo.note_report(planned)
    if new is not None and build.plan.whole:
        kept = {(p.target, p.group.name) for p in build.plan.groups}
        kept |= {(p.target, p.composition.name) for p in build.plan.compositions}
        build.place.prune(kept)
        if old is None:
            build.ranges.write(whole=True)
            keep(new, build.lock_file, build.memo, build.notice)
    if new is not None and build.options.release.requested:
        made = _released(build, made, old, new)
        _write(build, made, failures)
    made = _pushed(build, made, failures)
    return made, next((f for f in failures if not isinstance(f, Cancelled)), None)


def _released(build: Building, made: BuildReport, old: Lock | None, new: Lock) -> BuildReport:
    """What is released follows from the lock: the old one, or what was written of this host."""
    anchor = old
    if anchor is None:
        anchor = hosts.on(lockfile.read(build.lock_file), hosts.kind(new))
    releasing = Releasing(
        build.plan,
        build.place,
        build.events,
        anchor,
        executors=build.machines.executors,
        locked=old is not None,
        signers=build.cache.signers if build.cache is not None else {},
    )
    return releasing.release(build.options.release, made)


def _pushed(build: Building, made: BuildReport, failures: Sequence[EpctxError]) -> BuildReport:
    """The report with what became of the shared cache, for which this waits."""
    if build.cache is None or build.cache.remote is None:
        return made
    build.cache.finish(lambda: None)
    made = replace(made, remote=build.cache.remote.report)
    if made.remote is not None:
        _write(build, made, failures)
    return made


def _failures(
    groups: Sequence[GroupState], composed: Sequence[CompositionState]
) -> list[EpctxError]:
    failures = [group.failure for group in groups if group.failure is not None]
    return failures + [each.failure for each in composed if each.failure is not None]


def _write(build: Building, made: BuildReport, failures: Sequence[EpctxError]) -> None:
    try:
        atomic.replace(build.place.report, codec.encode(made, indent=2) + b"\n")
    except StorageError:
        if not failures:  # else the first of them is told: it may be for the same reason
            raise


def _planned(made: BuildReport) -> Digest:
    """A digest of what is in a report because it is planned, whatever ran."""
    groups = ((g.target, g.group, g.manifest, g.execution_providers) for g in made.groups)
    return digest.of_bytes(codec.encode(tuple(groups)))
