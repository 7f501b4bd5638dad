"""What a build has while it runs: what is asked, its output, its cache, its memo, its clock."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

from epctx import lockfile
from epctx.cache import Cache
from epctx.cache.digests import FileDigests, FreshDigests
from epctx.engine import from_cache, ranges
from epctx.engine.actions.base import Actions
from epctx.engine.events import Event, Listener
from epctx.engine.executor import Machines
from epctx.engine.from_cache import RemoteBuilds
from epctx.engine.lookup import Lookup
from epctx.engine.options import BuildOptions
from epctx.engine.output.place import OutputPaths
from epctx.engine.plan import Plan, PlannedGroup
from epctx.engine.progress import Events
from epctx.engine.scheduler import Scheduler
from epctx.engine.staleness import Memo
from epctx.engine.state import GroupState
from epctx.errors import EpctxError


class Building:
    """The surroundings of one build. Used by many threads.

    Attributes:
        plan, options: what is asked.
        machines: carry out its jobs.
        cache: None: nothing is remembered.
        place: where it publishes.
        lookup, memo: what is known of its actions.
        ranges: of models that are quantized.
        events: hear of it.
        repaired: what another build had left half-done in the output was repaired.
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
        # What is locked is read anew; what is remembered is good enough for anything else.
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
        """Where the manifest's lock is."""
        return lockfile.place(self.plan.manifest.path)

    def known(self, planned: PlannedGroup) -> GroupState:
        """Tell what is known of a group; of one that fails, nothing: its build will say why."""
        if self.options.from_cache:
            return self.memo.state(planned)
        if self.cache is not None:
            with contextlib.suppress(EpctxError):
                return self.memo.state(planned)
        return GroupState(planned=planned)

    def took(self, group: GroupState) -> float | None:
        """Return how long a group took when it was compiled last."""
        return self.memo.seconds(group.planned.label)

    def shared(self) -> AbstractContextManager[None]:
        """Keep others from cleaning the cache up meanwhile."""
        if self.cache is None:
            return nullcontext()
        return self.cache.shared(self.once("the cache is being cleaned up"))

    def remember_files(self) -> None:
        """Write what was digested."""
        if self.cache is not None:
            self.cache.digests.flush()

    def carrying_out(self, work: Path, *, threads: int) -> tuple[Scheduler, Actions]:
        """Return what jobs are carried out with, scratch in `work`."""
        executor = self.machines.executors(
            work=work, logs=self.place.logs, variables=self.options.variables
        )
        words = "interrupted, nothing was published"
        scheduler = Scheduler(executor, threads=threads, interrupted=words)
        builds = not self.options.from_cache
        actions = Actions(self.lookup, self.memo, executor, work, builds=builds)
        return scheduler, actions

    def once(self, what: str) -> Callable[[], None]:
        """Return what tells, the first time that it is called, what is waited for."""
        told = False

        def wait() -> None:
            nonlocal told
            if not told:
                name = self.plan.manifest.name
                self.events.emit(Event(group=name, state="waiting", detail=what))
            told = True

        return wait

    def notice(self, text: str) -> None:
        """Tell something of the build."""
        self.events.emit(Event(group=self.plan.manifest.name, state="notice", detail=text))

    def _remote_builds(self, digests: FileDigests) -> RemoteBuilds | None:
        if self.options.reports is not None:
            return from_cache.of_reports(self.options.reports, self.plan.manifest.name, digests)
        if self.options.locked:
            return from_cache.of_lock(lockfile.read(self.lock_file), self.lock_file, digests)
        return None
