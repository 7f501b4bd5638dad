"""A build: carries out a plan, publishes what came out whole, writes report and lock."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from epctx import codec, lockfile
from epctx._version import __version__
from epctx.cache import Cache, Location
from epctx.cache.digests import FileDigests, FreshDigests
from epctx.cache.opening import Shared, opened
from epctx.cache.remote import threads
from epctx.engine import elsewhere, publish, ranges, settings
from epctx.engine import report as build_report
from epctx.engine.actions.base import Actions
from epctx.engine.actions.compose import Composing
from epctx.engine.asked import Release
from epctx.engine.build_groups import GroupBuilder
from epctx.engine.elsewhere import Elsewhere
from epctx.engine.events import Event, Expect, Listener, notices
from epctx.engine.executor import Cancelled, Machines
from epctx.engine.lock import locked_mode, packaged, writer
from epctx.engine.lock.keep import keep
from epctx.engine.lookup import Lookup
from epctx.engine.output import record
from epctx.engine.output.place import Place
from epctx.engine.output.withdraw import withdraw
from epctx.engine.plan import Plan, PlannedComposition, PlannedGroup
from epctx.engine.progress import Events
from epctx.engine.release import Releasing
from epctx.engine.report import BuildReport, GroupReport
from epctx.engine.scheduler import Scheduler
from epctx.engine.staleness import Memo, look_at_composition
from epctx.engine.state import CompositionState, GroupState
from epctx.error_codes import Code
from epctx.errors import EpctxError, StorageError, UsageError, VerificationError
from epctx.files import atomic, outputs
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock

_ASKED: Final = 8
"""Groups at a time that the shared cache is asked for."""


class Options(Struct, frozen=True, kw_only=True):
    """How a plan is carried out.

    Attributes:
        out: the `dist` folder.
        jobs: how many session groups are worked on at a time; 0: one for each core.
        keep_going: build and publish the other groups when one fails; else nothing is published.
        numbers: run every model and compare, where the manifest does not say `off`.
        requires: hold the build to `verify.require` of the manifest.
        locked: hold the build to the lock, and never write it.
        from_cache: build nothing: publish what is in the cache, and fail if something is not.
        reports: with that, a folder with the build reports of those who built; None: with a lock,
            their EPs are the lock's, else this host's.
        recalibrate: find the ranges of models that are quantized anew.
        variables: of the workers' environment, which is else the same whoever builds.
        release: what else to make of a whole successful build.
        expect: hears what is going to be built.
    """

    out: Path
    jobs: int = 0
    keep_going: bool = False
    numbers: bool = True
    requires: bool = True
    locked: bool = False
    from_cache: bool = False
    reports: Path | None = None
    recalibrate: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    release: Release = field(default_factory=Release)
    expect: Expect = lambda groups: None


def run(
    plan: Plan,
    options: Options,
    *,
    listener: Listener,
    machines: Machines,
    cache: Cache | None = None,
) -> tuple[BuildReport, EpctxError | None]:
    """Build what is planned; return the report, and the first failure in manifest order.

    What is up to date is left alone; then no process is started and no weight is read.

    Args:
        listener: hears of events, from several threads, one at a time.
        machines: carry out its jobs.
        cache: None: everything is carried out, and nothing remembered; what several targets share
            is carried out once all the same.

    Raises:
        UsageError: an input lies where outputs go; a part of a manifest was to be released.
        StorageError: the output folder or the cache cannot be used.
        VerificationError: `verify.require` asks for numbers that the build is not to run.
        LockError: `locked`, and something differs; nothing was published.
        Interrupted: the user asked to stop; nothing was published, no worker is left.
    """
    options.release.refuse(plan)
    if options.requires:
        _refuse_unrun(plan, skipped=not options.numbers)
    if options.locked and options.recalibrate:
        raise UsageError(
            "a locked build cannot calibrate anew: the lock has the ranges",
            where="--recalibrate",
            remedy="leave out one of --locked and --recalibrate",
        )
    if options.reports is not None and not options.from_cache:
        raise UsageError(
            "build reports of others are of use only where nothing is built",
            where="--reports",
            remedy="add --from-cache, or leave it out",
        )
    if cache is None and options.from_cache:
        raise UsageError(
            "--from-cache and --no-cache contradict each other", remedy="leave out one of them"
        )
    if cache is None and len({planned.target for planned in plan.groups}) > 1:
        place = Place(out=options.out.resolve(), name=plan.manifest.name)
        cache = Cache(Location(folder=place.staging / "cache"), notices(listener))
    with outputs.refusals():
        return _Run(plan, options, machines, cache, Events(listener)).run()


def _refuse_unrun(plan: Plan, *, skipped: bool) -> None:
    """Refuse, before anything is compiled, to leave out numbers that the manifest requires."""
    settings = {each.label: each.group.verify for each in plan.groups}
    settings |= {each.label: each.composition.verify for each in plan.compositions}
    for label, asked in settings.items():
        if "numbers" in asked.require and (skipped or asked.numbers == "off"):
            raise VerificationError(
                "requires numbers (`verify.require`), and they are not to be run",
                where=label,
                why="--no-verify" if skipped else "the manifest says `numbers: off`",
                remedy="build with numbers, and `verify.numbers: full` in the manifest",
                code=Code.NUMBERS,
            )


def open_cache(listener: Listener, shared: Shared, options: Options) -> Cache:
    """The user's cache; what is found corrupt in it is told to `listener`.

    A release takes nothing from it that nobody who is trusted has signed.

    Raises:
        UsageError: an environment variable that names it is no good.
    """
    signed = options.locked and options.release.attest
    return opened(notices(listener), shared, signed=signed)


class _Run:
    """One run of a plan."""

    def __init__(
        self,
        plan: Plan,
        options: Options,
        machines: Machines,
        cache: Cache | None,
        events: Events,
    ) -> None:
        self._plan = plan
        self._options = options
        self._machines = machines
        self._cache = cache
        self._events = events
        self._repaired = False
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._place = Place(out=options.out.resolve(), name=plan.manifest.name)
        # What is locked is read anew; what is remembered is good enough for anything else.
        trusting = cache is not None and not options.locked
        digests: FileDigests = FreshDigests()
        if cache is not None and trusting:
            digests = cache.digests
        self._ranges = ranges.of(plan.manifest, anew=options.recalibrate)
        self._lookup = Lookup(
            cache,
            digests,
            numbers=options.numbers,
            ranges=self._ranges,
            eps=machines.eps,
            elsewhere=self._elsewhere(digests) if options.from_cache else None,
            gathers=options.from_cache,
        )
        self._memo = Memo(
            self._lookup,
            self._place,
            plan.manifest.path,
            trusting=trusting and not options.from_cache,
        )

    def run(self) -> tuple[BuildReport, EpctxError | None]:
        locked_mode.refuse_sources_in_outputs(self._plan, self._place)
        packaged.require(self._plan.manifest)
        if self._cache is not None:
            self._cache.sweep()
        with self._place.locked(self._once("another command uses the output")) as self._repaired:
            lock = lockfile.read(self._lock_file) if self._options.locked else None
            record.refuse_another_manifest(self._place, self._plan.manifest.path)
            old = None if lock is None else self._held_to(lock)
            groups = self._all_known()
            self._remember_files()
            if self._options.from_cache:
                elsewhere.refuse_missing(groups)
            left = [group for group in groups if not group.up_to_date]
            with self._shared() if left or self._plan.compositions else nullcontext():
                try:
                    built = {group.planned.label: group for group in self._build(left)}
                    groups = [built.get(group.planned.label, group) for group in groups]
                    report, failure = self._finish(groups, self._compose(groups), old)
                    return self._pushed(report, failure), failure
                finally:
                    self._remember_files()
                    self._memo.save()

    def _pushed(self, report: BuildReport, failure: EpctxError | None) -> BuildReport:
        """The report with what became of the shared cache, for which this waits."""
        if self._cache is None or self._cache.remote is None:
            return report
        self._cache.finish(lambda: None)
        report = replace(report, remote=self._cache.remote.report)
        if report.remote is not None:
            self._write_report(report, () if failure is None else (failure,))
        return report

    def _held_to(self, lock: Lock) -> Lock:
        """What a lock says for this kind of host, if nothing in the way of it can be seen yet."""
        locked_mode.refuse_random_samples(self._plan)
        own = locked_mode.refuse_other_causes(lock, self._plan, self._lookup)
        if self._options.release.golden:
            locked_mode.refuse_unknown_golden(own, self._plan)
        others = hosts.views(lock) if lock.hosts else ()
        locked_mode.refuse_edited_outputs(own, self._plan, self._place, *others)
        return own

    def _elsewhere(self, digests: FileDigests) -> Elsewhere | None:
        if self._options.reports is not None:
            return elsewhere.of_reports(self._options.reports, self._plan.manifest.name, digests)
        if self._options.locked:
            return elsewhere.of_lock(lockfile.read(self._lock_file), self._lock_file, digests)
        return None

    def _remember_files(self) -> None:
        if self._cache is not None:
            self._cache.digests.flush()

    @property
    def _lock_file(self) -> Path:
        return lockfile.place(self._plan.manifest.path)

    def _all_known(self) -> list[GroupState]:
        """What is known of each group. After the first that is not up to date, which may have to be
        asked for elsewhere, several at a time.
        """
        known: list[GroupState] = []
        for planned in self._plan.groups:
            known.append(self._known(planned))
            if self._cache is not None and self._cache.remote and not known[-1].up_to_date:
                left = self._plan.groups[len(known) :]
                return known + threads.beside(self._known, left, _ASKED)
        return known

    def _known(self, planned: PlannedGroup) -> GroupState:
        """What is known of a group; of one that fails, nothing: the build of it will say why."""
        if self._options.from_cache:
            return self._memo.state(planned)
        if self._cache is not None:
            with contextlib.suppress(EpctxError):
                return self._memo.state(planned)
        return GroupState(planned=planned)

    def _shared(self) -> AbstractContextManager[None]:
        if self._cache is None:
            return nullcontext()
        return self._cache.shared(self._once("the cache is being cleaned up"))

    def _once(self, what: str) -> Callable[[], None]:
        """Tells, the first time that it is called, what is waited for."""
        told = False

        def wait() -> None:
            nonlocal told
            if not told:
                name = self._plan.manifest.name
                self._events.emit(Event(group=name, state="waiting", detail=what))
            told = True

        return wait

    def _build(self, groups: list[GroupState]) -> list[GroupState]:
        if not groups:
            return []
        if self._cache is not None:
            self._cache.ready()
        self._place.forget_logs()
        self._options.expect({group.planned.label: self._took(group) for group in groups})
        jobs = self._options.jobs
        if not jobs and self._machines.jobs is not None:
            jobs = self._machines.jobs()
        scheduler, actions = self._carry_out(self._place.work, threads=jobs or os.cpu_count() or 1)
        keep_going = self._options.keep_going
        build = GroupBuilder(actions, scheduler, self._place, self._events, keep_going=keep_going)
        # Longest first, so that no machine waits for the last; what is not known may be long.
        ordered = sorted(groups, key=lambda group: -(self._took(group) or math.inf))
        with self._lookup.preparing([group.planned.group for group in ordered]):
            return build.run(ordered)

    def _compose(self, groups: Sequence[GroupState]) -> list[CompositionState]:
        """The compositions of the groups that were built or are up to date."""
        known = [self._assess_composition(each, groups) for each in self._plan.compositions]
        failed = any(group.failure is not None for group in groups)
        if failed and not self._options.keep_going:
            return known
        if all(each.up_to_date or each.failure is not None for each in known):
            return known
        scheduler, actions = self._carry_out(self._place.work / "compose", threads=1)
        composing = Composing(actions, self._place, self._events)
        with scheduler:
            return [
                each if each.up_to_date or each.failure is not None else composing.compose(each)
                for each in known
            ]

    def _assess_composition(
        self, planned: PlannedComposition, groups: Sequence[GroupState]
    ) -> CompositionState:
        wanted = {each.label for each in planned.groups}
        ready = {
            group.planned.group.name: group
            for group in groups
            if group.planned.label in wanted and group.failure is None
        }
        if len(ready) < len(wanted):
            failed = Cancelled("a group of its parts failed", remedy="see its error")
            return CompositionState(planned=planned, groups=ready, failure=failed)
        return look_at_composition(planned, ready, self._lookup, self._place)

    def _carry_out(self, work: Path, *, threads: int) -> tuple[Scheduler, Actions]:
        """What jobs are carried out with, scratch in `work`."""
        executor = self._machines.executors(
            work=work, logs=self._place.logs, variables=self._options.variables
        )
        words = "interrupted, nothing was published"
        scheduler = Scheduler(executor, threads=threads, interrupted=words)
        builds = not self._options.from_cache
        actions = Actions(self._lookup, self._memo, executor, work, builds=builds)
        return scheduler, actions

    def _took(self, group: GroupState) -> float | None:
        return self._memo.seconds(group.planned.label)

    def _finish(
        self,
        groups: Sequence[GroupState],
        composed: Sequence[CompositionState],
        old: Lock | None,
    ) -> tuple[BuildReport, EpctxError | None]:
        """Hold to the lock, publish, write report and lock."""
        failures = [group.failure for group in groups if group.failure is not None]
        failures += [each.failure for each in composed if each.failure is not None]
        new = None if failures else self._lock(groups, composed)
        if old is not None and new is not None:
            locked_mode.refuse_differences(old, new, self._plan)
        wanted = not failures or self._options.keep_going
        if wanted:
            whole = new is not None and self._plan.whole
            manifest = self._plan.manifest.path
            withdraw(self._place, manifest, groups, composed, self._notice, whole=whole)
        place, cache = self._place, self._cache
        targets = {each.planned.target for each in groups}
        targets |= {each.planned.target for each in composed}
        with place.settling(sorted(targets)):
            reports = [publish.group(each, place, cache, wanted=wanted) for each in groups]
            reports += [publish.composition(each, place, cache, wanted=wanted) for each in composed]
        self._emit_composed(reports, composed)
        report = BuildReport(
            schema_version=build_report.SCHEMA_VERSION,
            epctx=__version__,
            name=self._plan.manifest.name,
            started=self._started,
            seconds=round(self._events.now(), 3),
            host=build_report.host(),
            groups=settings.described(reports, self._plan.manifest, self._lookup, new),
            lock=new,
        )
        ran = any(each.progress is not None for each in groups)
        ran = ran or any(not each.up_to_date for each in composed)
        if ran or self._repaired or not self._place.report.exists():
            self._write_report(report, failures)
        if new is not None and self._plan.whole:
            kept = {(p.target, p.group.name) for p in self._plan.groups}
            kept |= {(p.target, p.composition.name) for p in self._plan.compositions}
            self._place.prune(kept)
            if old is None:
                self._ranges.write(whole=True)
                keep(new, self._lock_file, self._memo, self._notice)
        asked = self._options.release
        if new is not None and asked.asked:
            written = lockfile.read(self._lock_file)
            anchor = old if old is not None else hosts.on(written, hosts.kind(new))

            releasing = Releasing(
                self._plan,
                self._place,
                self._events,
                anchor,
                executors=self._machines.executors,
                locked=old is not None,
                signers=self._cache.signers if self._cache is not None else {},
            )
            report = releasing.release(asked, report)
            self._write_report(report, failures)
        return report, next((f for f in failures if not isinstance(f, Cancelled)), None)

    def _notice(self, text: str) -> None:
        self._events.emit(Event(group=self._plan.manifest.name, state="notice", detail=text))

    def _emit_composed(
        self, reports: Sequence[GroupReport], composed: Sequence[CompositionState]
    ) -> None:
        """What became of compositions that were not up to date; what failed was told already."""
        for report, each in zip(reports[len(reports) - len(composed) :], composed, strict=True):
            if not each.up_to_date and report.state != "failed":
                self._events.emit(Event(group=each.planned.label, state=report.state))

    def _write_report(self, report: BuildReport, failures: Sequence[EpctxError]) -> None:
        try:
            atomic.replace(self._place.report, codec.encode(report, indent=2) + b"\n")
        except StorageError:
            if not failures:  # else the first of them is told: it may be for the same reason
                raise

    def _lock(self, groups: Sequence[GroupState], composed: Sequence[CompositionState]) -> Lock:
        return writer.make(
            self._plan.manifest,
            [(group.planned, group.sessions) for group in groups],
            self._lookup.toolchain,
            [(each.planned, each.files) for each in composed],
            whole=self._plan.whole,
            ranges=self._ranges.locked(whole=self._plan.whole),
        )
