"""Build a plan: find results, run what is missing, check the lock, publish, report."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from epctx import codec, lockfile
from epctx._version import __version__
from epctx.actions.compile import Compile
from epctx.actions.verify import Verify
from epctx.cache import Cache, Location
from epctx.cache import store as caches
from epctx.cache.digests import FileDigests, FreshDigests
from epctx.cache.remote import threads
from epctx.cache.store import Shared
from epctx.engine import from_cache, ranges
from epctx.engine import publish as publishing
from epctx.engine import report as build_report
from epctx.engine.actions.base import Actions
from epctx.engine.actions.compose import Composing
from epctx.engine.build_groups import GroupBuilder
from epctx.engine.events import Event, Listener, notices
from epctx.engine.executor import Cancelled, Machines, Scheduler
from epctx.engine.from_cache import RemoteBuilds
from epctx.engine.lock import locked_mode, packaged, writer
from epctx.engine.lock.writer import keep, require_readable
from epctx.engine.lookup import Lookup
from epctx.engine.options import BuildOptions
from epctx.engine.output import record
from epctx.engine.output.place import OutputPaths
from epctx.engine.output.record import withdraw
from epctx.engine.plan import Plan, PlannedComposition, PlannedGroup
from epctx.engine.progress import Events
from epctx.engine.release import Releasing
from epctx.engine.report import BuildReport, GroupReport
from epctx.engine.staleness import Memo, look_at_composition
from epctx.engine.state import CompositionState, GroupState
from epctx.error_codes import Code
from epctx.errors import EpctxError, ModelError, StorageError, UsageError, VerificationError
from epctx.files import atomic, digest, outputs
from epctx.files.digest import Digest
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock
from epctx.parsing import load

_AT_ONCE: Final = 8
"""Number of groups to look up in the shared cache at the same time."""


def run(
    plan: Plan,
    options: BuildOptions,
    *,
    listener: Listener,
    machines: Machines,
    cache: Cache | None = None,
) -> tuple[BuildReport, EpctxError | None]:
    """Build a plan; return the report, and the first failure in manifest order.

    If everything is up to date, no process starts and no weights are read.

    Args:
        listener: receives events, from several threads, one at a time.
        machines: run the jobs.
        cache: cache of results; None to run everything and remember nothing. Work that several
            targets share runs once in any case.

    Raises:
        UsageError: an input lies in an output folder; only a part of the manifest would be
            released.
        StorageError: the output folder or the cache cannot be used.
        VerificationError: `verify.require` needs numbers that the build would not run.
        LockError: the lock cannot be read; with `locked`, something differs. Nothing was published.
        Interrupted: the user stopped the build; nothing was published, no worker is left.
    """
    _refuse(plan, options, cache)
    if cache is None and len({planned.target for planned in plan.groups}) > 1:
        place = OutputPaths(out=options.out.resolve(), name=plan.manifest.name)
        cache = Cache(Location(folder=place.staging / "cache"), notices(listener))
    with outputs.refusals():
        build = BuildContext(plan, options, machines, cache, listener)
        locked_mode.refuse_sources_in_outputs(plan, build.place)
        packaged.require(plan.manifest)
        if cache is not None:
            cache.sweep()
        with build.place.locked(build.once("another command uses the output")) as build.repaired:
            return _run(build)


def _run(build: BuildContext) -> tuple[BuildReport, EpctxError | None]:
    """Build while the output is locked."""
    old = _lock_of(build)
    groups = _find(build)
    stale = [group for group in groups if not group.up_to_date]
    with build.shared() if stale or build.plan.compositions else nullcontext():
        try:
            built = {group.planned.label: group for group in _carry_out(build, stale)}
            groups = [built.get(group.planned.label, group) for group in groups]
            composed = _compose(build, groups)
            new = _new_lock(build, groups, composed)
            if old is not None and new is not None:
                locked_mode.refuse_differences(old, new, build.plan)
            reports = _publish(build, groups, composed, whole=new is not None)
            return _report(build, groups, composed, reports, old, new)
        finally:
            build.remember_files()
            build.memo.save()


def open_cache(listener: Listener, shared: Shared, options: BuildOptions) -> Cache:
    """Open the user's cache; `listener` receives notices of corrupt entries.

    An attested release uses only results that a trusted key has signed.

    Raises:
        UsageError: an environment variable of the cache is invalid.
    """
    signed = options.locked and options.release.attest
    return caches.open_cache(notices(listener), shared, signed=signed)


def _refuse(plan: Plan, options: BuildOptions, cache: Cache | None) -> None:
    """Refuse options that contradict each other, before anything is read."""
    options.release.refuse(plan)
    if options.requires:
        _refuse_unrun(plan, skipped=not options.numbers)
    if options.locked and options.recalibrate:
        raise UsageError(
            "a locked build cannot calibrate again: it uses the ranges of the lock",
            where="--recalibrate",
            remedy="leave out --locked or --recalibrate",
        )
    if options.reports is not None and not options.from_cache:
        raise UsageError(
            "build reports of other hosts are only used with --from-cache",
            where="--reports",
            remedy="add --from-cache, or leave out --reports",
        )
    if cache is None and options.from_cache:
        raise UsageError(
            "--from-cache and --no-cache contradict each other", remedy="leave out one of the two"
        )


def _refuse_unrun(plan: Plan, *, skipped: bool) -> None:
    """Refuse to skip numbers that the manifest requires, before anything is compiled."""
    settings = {each.label: each.group.verify for each in plan.groups}
    settings |= {each.label: each.composition.verify for each in plan.compositions}
    for label, verify in settings.items():
        if "numbers" in verify.require and (skipped or verify.numbers == "off"):
            raise VerificationError(
                "`verify.require` needs numbers, but this build would not run them",
                where=label,
                why="--no-verify" if skipped else "the manifest says `numbers: off`",
                remedy="build with numbers, and `verify.numbers: full` in the manifest",
                code=Code.NUMBERS,
            )


def _lock_of(build: BuildContext) -> Lock | None:
    """Return the lock's part for this kind of host, for a locked build; None without a lock.

    Raises:
        LockError: the build would differ, as far as that is known before it runs; or the lock, to
            which it would add its outputs, cannot be read.
    """
    lock = lockfile.read(build.lock_file) if build.options.locked else None
    if lock is None:
        require_readable(build.plan, build.memo)
    record.refuse_another_manifest(build.place, build.plan.manifest.path)
    if lock is None:
        return None
    locked_mode.refuse_random_samples(build.plan)
    lock_here = locked_mode.refuse_other_causes(lock, build.plan, build.lookup)
    build.plan = locked_mode.cut_alike(build.plan, lock_here)
    if build.options.release.golden:
        locked_mode.refuse_unknown_golden(lock_here, build.plan)
    all_kinds = hosts.views(lock) if lock.hosts else ()
    locked_mode.refuse_edited_outputs(lock_here, build.plan, build.place, *all_kinds)
    return lock_here


def _find(build: BuildContext) -> list[GroupState]:
    """Return the state of each group. After the first group that is not up to date, look up several
    groups in the shared cache at the same time.
    """
    states: list[GroupState] = []
    for planned in build.plan.groups:
        states.append(build.state(planned))
        if build.cache is not None and build.cache.remote and not states[-1].up_to_date:
            remaining = build.plan.groups[len(states) :]
            states += threads.beside(build.state, remaining, _AT_ONCE)
            break
    build.remember_files()
    if build.options.from_cache:
        from_cache.refuse_missing(states, build.lookup.remote_builds, build.lookup.toolchain)
    return states


def _carry_out(build: BuildContext, groups: Sequence[GroupState]) -> list[GroupState]:
    """Build the groups that are not up to date, into staged folders."""
    if not groups:
        return []
    for planned in build.plan.compositions:
        _refuse_unwirable(planned, build.plan.manifest.path)
    if build.cache is not None:
        build.cache.ready()
    build.place.forget_logs()
    build.options.expect({group.planned.label: build.took(group) for group in groups})
    jobs = build.options.jobs
    if not jobs and build.machines.jobs is not None:
        jobs = build.machines.jobs()
    work = build.place.work
    scheduler, actions = build.carrying_out(work, threads=jobs or os.cpu_count() or 1)
    keep_going = build.options.keep_going
    manifest = build.plan.manifest.path
    builder = GroupBuilder(
        actions, scheduler, build.place, build.events, manifest=manifest, keep_going=keep_going
    )
    # Longest first, so that no machine waits for the last group; groups of unknown time may be
    # long.
    ordered = sorted(groups, key=lambda group: -(build.took(group) or math.inf))
    preparing = threading.Thread(target=_prepare, args=(build, ordered), name="epctx-toolchain")
    preparing.start()
    try:
        return builder.run(ordered)
    finally:
        preparing.join()


def _refuse_unwirable(planned: PlannedComposition, manifest: Path) -> None:
    """Refuse parts that cannot be wired, before anything is compiled. A model that cannot be read
    is reported when it is loaded.
    """
    # Imported here, since it loads onnxruntime, which a build without compositions does not need.
    from epctx.stages import header
    from epctx.verification.numbers.composed import require_wirable

    models = {model.name: model for each in planned.groups for model in each.group.models}
    parts = {part.model for part in planned.composition.parts}
    try:
        headers = {name: header.read(models[name]) for name in parts}
    except ModelError:
        return
    with load.located(manifest):
        require_wirable(planned.composition, headers)


def _prepare(build: BuildContext, groups: Sequence[GroupState]) -> None:
    """Read the toolchain for the keys while workers run their first jobs. An error is ignored here,
    and raised when a key needs the value.
    """
    toolchain = build.lookup.toolchain
    specs = [spec for group in groups for spec in group.planned.group.execution_providers]
    parts: list[Callable[[], object]] = [partial(toolchain.provider, spec) for spec in specs]
    parts += [partial(toolchain.of, *code) for code in (Compile.code, Verify.code)]
    for read in parts:
        with contextlib.suppress(EpctxError):
            read()


def _compose(build: BuildContext, groups: Sequence[GroupState]) -> list[CompositionState]:
    """Compose the groups that were built or are up to date."""
    states = [_look_at(build, each, groups) for each in build.plan.compositions]
    failed = any(group.failure is not None for group in groups)
    if failed and not build.options.keep_going:
        return states
    if all(each.up_to_date or each.failure is not None for each in states):
        return states
    scheduler, actions = build.carrying_out(build.place.work / "compose", threads=1)
    composing = Composing(actions, build.place, build.events)
    with scheduler:
        return [
            each if each.up_to_date or each.failure is not None else composing.compose(each)
            for each in states
        ]


def _look_at(
    build: BuildContext, planned: PlannedComposition, groups: Sequence[GroupState]
) -> CompositionState:
    labels = {each.label for each in planned.groups}
    ready = {
        group.planned.group.name: group
        for group in groups
        if group.planned.label in labels and group.failure is None
    }
    if len(ready) < len(labels):
        failed = Cancelled("a group of its parts failed", remedy="see its error")
        return CompositionState(planned=planned, groups=ready, failure=failed)
    return look_at_composition(planned, ready, build.lookup, build.place)


class BuildContext:
    """Services and settings of one build. Thread-safe.

    Attributes:
        machines: run the jobs.
        cache: None to remember nothing.
        place: paths of the outputs.
        lookup, memo: find results of its actions.
        ranges: ranges of quantized models.
        repaired: whether an earlier build was killed, and its output was repaired.
    """

    def __init__(
        self,
        plan: Plan,
        options: BuildOptions,
        machines: Machines,
        cache: Cache | None,
        listener: Listener,
    ) -> None:
        self.plan, self.options = plan, options
        self.machines, self.cache = machines, cache
        self.events = Events(listener)
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.repaired = False
        self.place = OutputPaths(out=options.out.resolve(), name=plan.manifest.name)
        # A locked build hashes all files again; any other uses remembered digests.
        trusting = cache is not None and not options.locked
        digests: FileDigests = FreshDigests()
        if cache is not None and trusting:
            digests = cache.digests
        self.ranges = ranges.of(plan.manifest, anew=options.recalibrate)
        self.lookup = Lookup(
            cache,
            digests,
            numbers=options.numbers,
            ranges=self.ranges,
            eps=machines.eps,
            remote_builds=self._remote_builds(digests) if options.from_cache else None,
            from_cache=options.from_cache,
        )
        self.memo = Memo(
            self.lookup,
            self.place,
            plan.manifest.path,
            trusting=trusting and not options.from_cache,
        )

    @property
    def lock_file(self) -> Path:
        """Path of the manifest's lock."""
        return lockfile.place(self.plan.manifest.path)

    def state(self, planned: PlannedGroup) -> GroupState:
        """Return the state of a group; an empty state if the look-up fails, since the build will
        say why.
        """
        if self.options.from_cache:
            return self.memo.state(planned)
        if self.cache is not None:
            with contextlib.suppress(EpctxError):
                return self.memo.state(planned)
        return GroupState(planned=planned)

    def took(self, group: GroupState) -> float | None:
        """Return the seconds of the last compile of a group; None if unknown."""
        return self.memo.seconds(group.planned.label)

    def shared(self) -> AbstractContextManager[None]:
        """Keep other processes from cleaning up the cache."""
        if self.cache is None:
            return nullcontext()
        return self.cache.shared(self.once("the cache is being cleaned up"))

    def remember_files(self) -> None:
        """Write the digests of files."""
        if self.cache is not None:
            self.cache.digests.flush()

    def carrying_out(self, work: Path, *, threads: int) -> tuple[Scheduler, Actions]:
        """Return the threads and the actions of a build, with their scratch in `work`."""
        executor = self.machines.executors(
            work=work, logs=self.place.logs, variables=self.options.variables
        )
        words = "interrupted, nothing was published"
        if self.cache is not None and not self.cache.location.readonly:
            words += "; the cache keeps what is finished for the next build"
        scheduler = Scheduler(executor, threads=threads, interrupted=words)
        builds = not self.options.from_cache
        actions = Actions(self.lookup, self.memo, executor, work, builds=builds)
        return scheduler, actions

    def once(self, what: str) -> Callable[[], None]:
        """Return a function whose first call emits a `waiting` event."""
        emitted = False

        def wait() -> None:
            nonlocal emitted
            if not emitted:
                name = self.plan.manifest.name
                self.events.emit(Event(group=name, state="waiting", detail=what))
            emitted = True

        return wait

    def notice(self, text: str) -> None:
        """Emit a notice of the build."""
        self.events.emit(Event(group=self.plan.manifest.name, state="notice", detail=text))

    def _remote_builds(self, digests: FileDigests) -> RemoteBuilds | None:
        if self.options.reports is not None:
            return from_cache.of_reports(self.options.reports, self.plan.manifest.name, digests)
        if self.options.locked:
            return from_cache.of_lock(lockfile.read(self.lock_file), self.lock_file, digests)
        return None


def _new_lock(
    build: BuildContext, groups: Sequence[GroupState], composed: Sequence[CompositionState]
) -> Lock | None:
    """Return the lock of the build; None if something failed."""
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


def _publish(
    build: BuildContext,
    groups: Sequence[GroupState],
    composed: Sequence[CompositionState],
    *,
    whole: bool,
) -> list[GroupReport]:
    """Publish the built folders, and report each group and composition.

    Args:
        whole: whether nothing failed.

    Raises:
        StorageError: the system refuses.
    """
    place, cache, plan = build.place, build.cache, build.plan
    publishes = whole or build.options.keep_going
    if publishes:
        manifest, all_of_it = plan.manifest.path, whole and plan.whole
        withdraw(place, manifest, groups, composed, build.notice, whole=all_of_it)
    targets = {each.planned.target for each in groups}
    targets |= {each.planned.target for each in composed}
    with place.flushing(sorted(targets)):
        reports = [publishing.group(each, place, cache, wanted=publishes) for each in groups]
        compositions = [
            publishing.composition(each, place, cache, wanted=publishes) for each in composed
        ]
    # An event has reported each failure.
    for report, each in zip(compositions, composed, strict=True):
        if not each.up_to_date and report.state != "failed":
            build.events.emit(Event(group=each.planned.label, state=report.state))
    return [*reports, *compositions]


def _report(
    build: BuildContext,
    groups: Sequence[GroupState],
    composed: Sequence[CompositionState],
    published: Sequence[GroupReport],
    old: Lock | None,
    new: Lock | None,
) -> tuple[BuildReport, EpctxError | None]:
    """Write the report, the lock and the release; return the report and the first failure.

    Args:
        old: the lock of a locked build; None without one.
        new: the lock of what was built; None if something failed.

    Raises:
        StorageError: the system refuses.
        LockError: a released file differs from the lock.
    """
    failures = _failures(groups, composed)
    report = BuildReport(
        schema_version=build_report.SCHEMA_VERSION,
        epctx=__version__,
        name=build.plan.manifest.name,
        started=build.started,
        seconds=round(build.events.now(), 3),
        host=build_report.host(),
        groups=publishing.described(published, build.plan.manifest, build.lookup, new),
        lock=new,
        revision=build_report.revision(build.plan.manifest.path.parent),
    )
    ran = any(each.progress is not None for each in groups)
    ran = ran or any(not each.up_to_date for each in composed)
    planned = _planned(report)
    rewrites = ran or build.repaired or not build.memo.has_report(planned, build.place.report)
    if rewrites:
        _write(build, report, failures)
    if not failures and (rewrites or not build.place.traces.exists()):
        _write_traces(build, groups)  # after a failure they would lack those of published folders
    build.memo.note_report(planned)
    if new is not None and build.plan.whole:
        planned_folders = {(p.target, p.group.name) for p in build.plan.groups}
        planned_folders |= {(p.target, p.composition.name) for p in build.plan.compositions}
        build.place.prune(planned_folders)
        if old is None:
            build.ranges.write(whole=True)
            keep(new, build.lock_file, build.memo, build.notice)
    if new is not None and build.options.release.requested:
        report = _released(build, report, old, new)
        _write(build, report, failures)
    report = _pushed(build, report, failures)
    return report, next((f for f in failures if not isinstance(f, Cancelled)), None)


def _released(build: BuildContext, report: BuildReport, old: Lock | None, new: Lock) -> BuildReport:
    """Release the files of the lock: the old one, or the new entry of this host."""
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
    return releasing.release(build.options.release, report)


def _pushed(
    build: BuildContext, report: BuildReport, failures: Sequence[EpctxError]
) -> BuildReport:
    """Wait for uploads to the shared cache, and return the report with their outcome."""
    if build.cache is None or build.cache.remote is None:
        return report
    build.cache.finish(lambda: None)
    report = replace(report, remote=build.cache.remote.report)
    if report.remote is not None:
        _write(build, report, failures)
    return report


def _failures(
    groups: Sequence[GroupState], composed: Sequence[CompositionState]
) -> list[EpctxError]:
    failures = [group.failure for group in groups if group.failure is not None]
    return failures + [each.failure for each in composed if each.failure is not None]


def _write(build: BuildContext, report: BuildReport, failures: Sequence[EpctxError]) -> None:
    try:
        atomic.replace(build.place.report, codec.encode(report, indent=2) + b"\n")
    except StorageError:
        if not failures:  # else the first failure is reported: its reason may be the same
            raise
        with contextlib.suppress(OSError):
            build.place.report.unlink()  # it is of another build


def _write_traces(build: BuildContext, groups: Sequence[GroupState]) -> None:
    sessions = ((group.planned.label, each.result) for group in groups for each in group.sessions)
    traces: dict[str, dict[str, Any]] = {}
    for label, result in sessions:
        if result is not None and result.traces:
            traces.setdefault(label, {}).update(result.traces)
    if traces:
        atomic.replace(build.place.traces, codec.encode(traces, indent=2) + b"\n")
    else:
        with outputs.writing(build.place.traces):
            build.place.traces.unlink(missing_ok=True)


def _planned(report: BuildReport) -> Digest:
    """Return a digest of the planned part of a report, which does not depend on what ran."""
    groups = ((g.target, g.group, g.manifest, g.execution_providers) for g in report.groups)
    return digest.of_bytes(codec.encode(tuple(groups)))
