"""The runner: carries out a plan, publishes what came out whole, writes report and lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from epctx import codec, lockfile
from epctx._version import __version__
from epctx.cache import Cache, Location, locate
from epctx.cache.digests import FileDigests, FreshDigests
from epctx.engine import publish as publishing
from epctx.engine import report as build_report
from epctx.engine.actions.compose import ComposedGroup, Composing, ReadyGroup
from epctx.engine.events import Event, Listener
from epctx.engine.group import Telling
from epctx.engine.last_keys import History
from epctx.engine.lock import locked_mode, writer
from epctx.engine.lookup import Lookup
from epctx.engine.noop import Watched, Watching
from epctx.engine.output import place as publish
from epctx.engine.output.place import Place
from epctx.engine.plan import Plan, PlannedGroup
from epctx.engine.release import Release, release
from epctx.engine.report import BuildReport, GroupReport
from epctx.engine.scheduler import Build
from epctx.engine.state import Built, Compiled, Ended
from epctx.engine.up_to_date import Assessment, assess
from epctx.errors import EpctxError, LockError, StorageError
from epctx.files import outputs
from epctx.files.entries import open_entry
from epctx.lockfile.differences import between_locks
from epctx.lockfile.types import Lock

NOTHING_ELSE = Release()
"""No release: what a build makes anyway."""


@dataclass(frozen=True, kw_only=True)
class _Options:
    """How a plan is carried out: the arguments of `run`."""

    out: Path
    jobs: int
    keep_going: bool
    numbers: bool
    locked: bool
    variables: Mapping[str, str]
    release: Release


def run(
    plan: Plan,
    *,
    out: Path,
    jobs: int,
    keep_going: bool,
    numbers: bool,
    listener: Listener,
    cache: Cache | None = None,
    locked: bool = False,
    watched: Watched | None = None,
    variables: Mapping[str, str] | None = None,
    release: Release = NOTHING_ELSE,
) -> tuple[BuildReport, EpctxError | None]:
    """Build what is planned; return the report, and the first failure in manifest order.

    What is up to date is left alone; then no process is started and no weight is read.

    Args:
        out: the `dist` folder.
        jobs: how many session groups are worked on at a time.
        keep_going: build and publish the other groups when one fails; else nothing is published.
        numbers: run every model and compare, where the manifest does not say `off`.
        listener: hears of events, from several threads, one at a time.
        cache: None: everything is carried out, and nothing remembered; what several targets share
            is carried out once all the same.
        locked: hold the build to the lock, and never write it.
        variables: of the workers' environment, which is else the same whoever builds.
        release: what else to make of a whole successful build.

    Raises:
        UsageError: an input lies where outputs go; a part of a manifest was to be released.
        StorageError: the output folder or the cache cannot be used.
        LockError: `locked`, and something differs; nothing was published.
        Interrupted: the user asked to stop; nothing was published, no worker is left.
    """
    release.refuse_parts(plan)
    options = _Options(
        out=out,
        jobs=jobs,
        keep_going=keep_going,
        numbers=numbers,
        locked=locked,
        variables=variables or {},
        release=release,
    )
    if cache is None and len({planned.target for planned in plan.groups}) > 1:
        place = Place(out=out.resolve(), name=plan.manifest.name)
        cache = _cache_at(Location(folder=place.staging / "cache"), listener)
    with outputs.refusals():
        return _Run(plan, options, cache, Telling(listener), watched).run()


def open_cache(listener: Listener) -> Cache:
    """The user's cache; what is found corrupt in it is told to `listener`.

    Raises:
        UsageError: an environment variable that names it is no good.
    """
    return _cache_at(locate(), listener)


def _cache_at(location: Location, listener: Listener) -> Cache:
    def notice(text: str) -> None:
        listener(Event(group="cache", state="notice", detail=text))

    return Cache(location, notice)


class _Run:
    """One run of a plan."""

    def __init__(
        self,
        plan: Plan,
        options: _Options,
        cache: Cache | None,
        telling: Telling,
        watched: Watched | None,
    ) -> None:
        self._plan = plan
        self._options = options
        self._cache = cache
        self._telling = telling
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._place = Place(out=options.out.resolve(), name=plan.manifest.name)
        # What is locked is read anew; what is remembered is good enough for anything else.
        trusting = cache is not None and not options.locked
        digests: FileDigests = FreshDigests()
        if cache is not None and trusting:
            digests = cache.digests
        if watched is not None:
            digests = self._watch(digests, watched)
        self._lookup = Lookup(cache, digests, numbers=options.numbers)

    def run(self) -> tuple[BuildReport, EpctxError | None]:
        locked_mode.refuse_sources_in_outputs(self._plan, self._place)
        if self._cache is not None:
            self._cache.sweep()
        with self._place.locked(self._once("another build holds the output")):
            old = lockfile.read(self._lock_file) if self._options.locked else None
            if old is not None:
                locked_mode.refuse_other_causes(old, self._plan, self._lookup)
                locked_mode.refuse_edited_outputs(old, self._plan, self._place)
            known = {planned.label: self._assess(planned) for planned in self._plan.groups}
            left = [p for p in self._plan.groups if not self._up_to_date(known[p.label])]
            with self._shared() if left or self._plan.compositions else nullcontext():
                built = self._build(left)
                composed = self._compose(known, built)
                return self._finish(known, built, composed, old)

    def _watch(self, digests: FileDigests, watched: Watched) -> FileDigests:
        """Note what is looked at beside what is digested."""
        targets = {self._place.root / planned.target for planned in self._plan.groups}
        watched.note((self._lock_file, self._place.report, self._place.root, *targets))
        watched.absent(self._place.staging)
        verified = [planned.group.verify for planned in self._plan.groups]
        verified += [planned.composition.verify for planned in self._plan.compositions]
        if any(settings.inputs.files for settings in verified):
            watched.give_up()  # a pattern may match a new file anywhere
        return Watching(digests, watched)

    @property
    def _lock_file(self) -> Path:
        return lockfile.place(self._plan.manifest.path)

    def _assess(self, planned: PlannedGroup) -> Assessment | None:
        """What is known of a group; None: it fails, as the build of it will say."""
        if self._cache is None:
            return None
        try:
            return assess(planned, self._lookup, self._place)
        except EpctxError:
            return None

    @staticmethod
    def _up_to_date(known: Assessment | None) -> bool:
        return known is not None and known.up_to_date

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
                self._telling.tell(Event(group=name, state="waiting", detail=what))
            told = True

        return wait

    def _build(self, groups: list[PlannedGroup]) -> dict[str, Built]:
        if not groups:
            return {}
        self._place.forget_logs()
        build = Build(
            self._lookup,
            self._history(),
            self._place,
            self._telling,
            jobs=self._options.jobs,
            keep_going=self._options.keep_going,
            variables=self._options.variables,
        )
        return {built.planned.label: built for built in build.run(groups)}

    def _compose(
        self, known: dict[str, Assessment | None], built: dict[str, Built]
    ) -> list[ComposedGroup]:
        """The compositions of the groups that were built or are up to date."""
        composing = Composing(
            self._lookup,
            self._history(),
            self._place,
            self._telling,
            variables=self._options.variables,
        )
        looked = []
        for planned in self._plan.compositions:
            ready: dict[str, ReadyGroup] = {}
            for each in planned.groups:
                made = built.get(each.label)
                if made is None or made.failure is None:
                    ready[each.group.name] = self._ready(each, made, known[each.label])
            if len(ready) < len(planned.groups):
                ended = Ended("a group of its parts failed", remedy="see its error")
                looked.append(ComposedGroup(planned=planned, groups=ready, failure=ended))
            else:
                looked.append(composing.look(planned, ready))
        if any(b.failure is not None for b in built.values()) and not self._options.keep_going:
            return looked
        return composing.run(looked)

    def _ready(
        self, planned: PlannedGroup, built: Built | None, known: Assessment | None
    ) -> ReadyGroup:
        target, name = planned.target, planned.group.name
        if built is not None:
            folder, sessions = self._place.staged(target, name), built.sessions
        else:
            assert known is not None
            folder, sessions = self._place.group(target, name), known.sessions
        return ReadyGroup(planned=planned, folder=folder, sessions=sessions)

    def _history(self) -> History | None:
        cache = self._cache
        if cache is None:
            return None
        return History(records=cache.records, manifest=self._plan.manifest.path)

    def _finish(
        self,
        known: dict[str, Assessment | None],
        built: dict[str, Built],
        composed: list[ComposedGroup],
        old: Lock | None,
    ) -> tuple[BuildReport, EpctxError | None]:
        """Hold to the lock, publish, write report and lock."""
        failures = [b.failure for b in built.values() if b.failure is not None]
        failures += [c.failure for c in composed if c.failure is not None]
        new = None if failures else self._lock(known, built, composed)
        if old is not None and new is not None:
            locked_mode.refuse_differences(old, new, self._plan)
        reports = [
            self._report(known[p.label], built.get(p.label), publish=not failures)
            for p in self._plan.groups
        ]
        publish_them = not failures or self._options.keep_going
        reports += [
            publishing.composition(each, self._place, self._cache, publish=publish_them)
            for each in composed
        ]
        self._tell_composed(reports, composed)
        report = BuildReport(
            schema_version=build_report.SCHEMA_VERSION,
            epctx=__version__,
            name=self._plan.manifest.name,
            started=self._started,
            seconds=round(self._telling.now(), 3),
            host=build_report.host(),
            groups=tuple(reports),
            lock=new,
        )
        ran = bool(built) or any(not each.up_to_date for each in composed)
        if ran or not self._place.report.exists():
            self._write_report(report, failures)
        if new is not None and self._plan.whole:
            kept = {(p.target, p.group.name) for p in self._plan.groups}
            kept |= {(p.target, p.composition.name) for p in self._plan.compositions}
            self._place.prune(kept)
            if old is None:
                self._write_lock(new)
        asked = self._options.release
        if new is not None and asked.asked:
            report = release(asked, self._plan, self._place, self._telling, report, new)
            self._write_report(report, failures)
        return report, next((f for f in failures if not isinstance(f, Ended)), None)

    def _tell_composed(self, reports: list[GroupReport], composed: list[ComposedGroup]) -> None:
        """What became of compositions that were not up to date; what failed was told already."""
        for report, each in zip(reports[len(reports) - len(composed) :], composed, strict=True):
            if not each.up_to_date and report.state != "failed":
                self._telling.tell(Event(group=each.planned.label, state=report.state))

    def _write_report(self, report: BuildReport, failures: Sequence[EpctxError]) -> None:
        try:
            publish.replace_file(self._place.report, codec.encode(report, indent=2) + b"\n")
        except StorageError:
            if not failures:  # else the first of them is told: it may be for the same reason
                raise

    def _report(
        self, known: Assessment | None, built: Built | None, *, publish: bool
    ) -> GroupReport:
        if built is None:
            assert known is not None
            return publishing.unchanged(known, self._place)
        if built.failure is None and (publish or self._options.keep_going):
            return publishing.published(built, known, self._place, self._cache)
        return publishing.unpublished(built)

    def _lock(
        self,
        known: dict[str, Assessment | None],
        built: dict[str, Built],
        composed: list[ComposedGroup],
    ) -> Lock:
        def sessions(planned: PlannedGroup) -> tuple[Compiled, ...]:
            made, assessed = built.get(planned.label), known[planned.label]
            if made is not None:
                return made.sessions
            return assessed.sessions if assessed is not None else ()

        groups = [(planned, sessions(planned)) for planned in self._plan.groups]
        compositions = [(each.planned, each.files) for each in composed]
        return writer.make(self._plan.manifest, groups, self._lookup.toolchain, compositions)

    def _write_lock(self, new: Lock) -> None:
        """Write the lock, if it says something else: no build that gives the same is a change."""
        content = lockfile.text(new).encode()
        try:
            with open_entry(self._lock_file) as stream:
                if stream.read() == content:
                    return
            if not between_locks(lockfile.read(self._lock_file), new):
                return
        except (OSError, LockError):
            pass  # there is none, or what is there is replaced
        publish.replace_file(self._lock_file, content)
