"""Progress of a group while it is built: its jobs, their durations, and its events.

The time of each model's run is measured and kept in the cache, to estimate the time left.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from epctx.actions.action import Action, StageStarted
from epctx.cache.action import Origin
from epctx.cache.contents import Records
from epctx.engine.events import Event, Listener, State
from epctx.engine.executor import WorkerLease
from epctx.engine.plan import PlannedGroup
from epctx.engine.report import ActionReport, StageTime
from epctx.files import digest
from epctx.files.digest import Digest
from epctx.manifest import ModelGroup, ModelSource
from epctx.stages.report import ModelReport
from epctx.verification.findings import FolderReport

R = TypeVar("R")


class Events:
    """Passes events to the listener of a build, one at a time, and keeps the time. Thread-safe."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._begun = time.monotonic()

    def emit(self, event: Event) -> None:
        """Pass an event to the listener."""
        with self._lock:
            self._listener(event)

    def now(self) -> float:
        """Seconds since the build began."""
        return time.monotonic() - self._begun


class Progress:
    """Progress of one group or composition. Used by the threads of its jobs.

    Args:
        label: its name in events: `group@target`.
        timeout: limit for each of its jobs, in seconds; None for no limit.

    Attributes:
        stages: times of its stages.
        actions: its actions, run or found in the cache.
        peak_memory: largest resident size of its workers, in bytes.
        models: models of failed session groups, as far as they got.
        found: report of a verification that failed.
    """

    def __init__(self, label: str, events: Events, *, timeout: float | None = None) -> None:
        self.label = label
        self.stages: list[StageTime] = []
        self.actions: list[ActionReport] = []
        self.peak_memory = 0
        self.models: tuple[ModelReport, ...] = ()
        self.found: FolderReport | None = None
        self._events = events
        self._timeout = timeout
        self._lock = threading.Lock()

    def run(self, lease: WorkerLease, subject: str, action: Action[R]) -> R:
        """Run an action for `subject`, as `run_all`."""
        (result,) = self.run_all(lease, subject, [action])
        return cast(R, result)

    def run_all(
        self,
        lease: WorkerLease,
        subject: str,
        job: Sequence[Action[Any]],
        *,
        entered: Callable[[str], None] = lambda stage: None,
        finished: Callable[[int, Any], None] = lambda number, result: None,
        budget: float | None = None,
        memory: int | None = None,
        pace: RunTimes | None = None,
    ) -> list[Any]:
        """Run a job for `subject`; `entered` receives its stages. The other arguments and the
        errors are as in `WorkerLease.run`.

        Args:
            pace: run times of its models, to count runs and estimate the time left.
        """
        stage: str | None = None
        shown: str | None = None
        begun = 0.0
        timing = None if pace is None else Eta(pace)

        def enter(next_stage: str | None, next_shown: str | None, now: float) -> None:
            nonlocal stage, shown, begun
            if stage is not None:
                ended = StageTime(
                    stage=stage, subject=subject, start=begun, end=now, machine=lease.machine
                )
                with self._lock:
                    self.stages.append(ended)
            stage, begun = next_stage, now
            if shown is not None and shown != next_shown:
                self.emit("done", subject=shown)
            shown = next_shown

        def started(now_in: StageStarted) -> None:
            entered(now_in.stage)
            now = self._events.now() - now_in.ago
            description = timing.announce(now_in, now) if timing is not None else None
            name = now_in.model or subject
            if now_in.stage != stage or (stage != "verify" and name != shown):
                enter(now_in.stage, name, now)
            elif description is None:
                return  # another EP or input: kept for crashes, not shown
            self.emit("running", subject=shown, stage=stage, detail=description)

        def ended(number: int, result: Any) -> None:
            if timing is not None:
                timing.ended(self._events.now())
            finished(number, result)

        try:
            results = lease.run(
                job,
                started=started,
                finished=ended,
                timeout=self._timeout,
                budget=budget,
                memory=memory,
            )
        finally:
            enter(None, None, self._events.now())
        with self._lock:
            self.peak_memory = max(self.peak_memory, lease.peak_memory)
        if timing is not None:
            timing.note(lease.peak_memory)
        return results

    def saw(self, models: Iterable[ModelReport]) -> None:
        """Note the models of a failed session group."""
        with self._lock:
            self.models = (*self.models, *models)

    def did(self, action: str, subject: str, key: Digest | None, origin: Origin | None) -> None:
        """Note that an action ran, or the origin of its result."""
        report = ActionReport.of(action, subject, key, origin)
        with self._lock:
            stages = [each for each in self.stages if each.subject == subject] or self.stages
            machine = stages[-1].machine if origin is None and stages else None
            self.actions.append(replace(report, machine=machine))

    @property
    def compiled(self) -> bool:
        """Tell whether no compile came from the cache."""
        return all(each.ran for each in self.actions if each.action == "compile")

    @property
    def seconds(self) -> float:
        """Total time of its stages."""
        return sum(each.end - each.start for each in self.stages)

    def emit(
        self,
        state: State,
        *,
        subject: str | None = None,
        stage: str | None = None,
        detail: str | None = None,
    ) -> None:
        """Emit an event about this group or composition."""
        self._events.emit(
            Event(group=self.label, state=state, subject=subject, stage=stage, detail=detail)
        )

    def notice(self, words: str) -> None:
        """Emit a notice about this group or composition."""
        self.emit("notice", detail=words)

    def waiting(self, what: str, subject: str, proceed: Callable[[], None]) -> Callable[[], None]:
        """Return a function to call while waiting for another process; its first call emits an
        event.

        Args:
            what: what the other process does.
            proceed: raises if the build was cancelled.
        """
        emitted = False

        def wait() -> None:
            nonlocal emitted
            proceed()
            if not emitted:
                self.emit("waiting", subject=subject, detail=what)
            emitted = True

        return wait


class GroupProgress(Progress):
    """The progress of a model group."""

    def __init__(self, planned: PlannedGroup, events: Events) -> None:
        super().__init__(planned.label, events, timeout=planned.group.timeout)
        self.planned = planned
        self._quantized: dict[str, ModelSource] = {}

    def quantized(self, source: ModelSource) -> None:
        """Note that a model of the group is built from its quantized source."""
        with self._lock:
            self._quantized[source.name] = source

    @property
    def group(self) -> ModelGroup:
        """The group, with quantized sources in the place of the manifest's."""
        group = self.planned.group
        with self._lock:
            models = tuple(self._quantized.get(model.name, model) for model in group.models)
        return replace(group, models=models)


_QUIET = 2.0
"""Seconds between two descriptions of runs of one job."""


class RunTime(Struct, frozen=True, kw_only=True):
    """Measurements of a model: seconds of a run on one input set, and the largest resident size of
    its process in bytes.
    """

    seconds: float
    peak_memory: int


class RunTimes(Struct, frozen=True, kw_only=True):
    """Run times of models.

    Attributes:
        records: records of the cache; None to remember nothing.
        compiled: keys of the models' compiles, by model, in the order of the runs.
    """

    records: Records | None
    compiled: Mapping[str, Digest]

    def find(self, model: str) -> RunTime | None:
        """Return the last measurement of a model, on any host; None if there is none."""
        if self.records is None or model not in self.compiled:
            return None
        return self.records.read("pace", self._name(model), RunTime)

    def note(self, model: str, measured: RunTime) -> None:
        """Remember a measurement.

        Raises:
            StorageError: the cache cannot be written.
        """
        if self.records is not None and model in self.compiled:
            self.records.write("pace", self._name(model), measured)

    def _name(self, model: str) -> str:
        return digest.of_json([str(self.compiled[model]), model]).hex


class Eta:
    """Counts the runs of one job, and estimates the time left."""

    def __init__(self, pace: RunTimes) -> None:
        self.measured: dict[str, float] = {}
        self._pace = pace
        self._now: tuple[StageStarted, float] | None = None
        self._begun: dict[str, None] = {}
        self._told = -math.inf

    def ended(self, now: float) -> None:
        """Note that the last announced run has ended."""
        if self._now is not None and self._now[0].number:
            self.measured[self._now[0].model or ""] = now - self._now[1]
        self._now = None

    def announce(self, run: StageStarted, now: float) -> str | None:
        """Note that a run begins, and return its description for people; None if the last one was
        returned a moment ago, or if models are being loaded.
        """
        self.ended(now)
        self._now = run, now
        if not run.number:
            return None
        model = run.model or ""
        self._begun[model] = None
        if now - self._told < _QUIET:
            return None
        self._told = now
        models = tuple(self._pace.compiled)
        position = (
            f"model {len(self._begun)} of {len(models)}, {model}, " if len(models) > 1 else ""
        )
        seconds = self._seconds(run)
        remaining = "" if seconds is None else f", about {words(seconds)} left"
        return f"numbers: {position}set {run.number} of {run.of}{remaining}"

    def note(self, peak_memory: int) -> None:
        """Remember the measured times, with the size of the process.

        Raises:
            StorageError: the cache cannot be written.
        """
        for model, seconds in self.measured.items():
            self._pace.note(model, RunTime(seconds=seconds, peak_memory=peak_memory))

    def _seconds(self, run: StageStarted) -> float | None:
        """Estimate the seconds until all models are done; None if this one was never measured."""
        model = run.model or ""
        last = self._pace.find(model)
        per_run = self.measured.get(model, last.seconds if last else None)
        if per_run is None:
            return None
        total = (run.of - run.number + 1) * per_run
        for other in self._pace.compiled.keys() - self._begun.keys():
            paced = self._pace.find(other)
            total += run.of * (paced.seconds if paced else per_run)
        return total


def words(seconds: float) -> str:
    """Return an estimated time in words."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min"
