"""The runner: carries out a plan with worker processes, and publishes what came out whole."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

from epctx import build_report, codec, outputs, publish
from epctx._version import __version__
from epctx.build_report import BuildReport, GroupReport, StageTime
from epctx.errors import EpctxError, Interrupted, VerificationError
from epctx.findings import POLICIES, FolderReport
from epctx.graph.exclusion import refuse_unmatched
from epctx.jobs import (
    CompileJob,
    CompileResult,
    Job,
    OptimizeJob,
    OptimizeResult,
    StageStarted,
)
from epctx.manifest import ModelGroup, ModelSource, OptimizeSettings
from epctx.planning import Plan, PlannedGroup, SessionGroup
from epctx.pool import Pool
from epctx.process import Worker
from epctx.providers import registry
from epctx.verification import VerifyRequest

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that a user waiting for a build may want to see.

    Attributes:
        group: `group@target`.
        subject: the model or sharing group; None: the whole group.
        stage: the stage that `subject` has entered; None with another `state`.
        detail: for people: what failed, what was built.
    """

    group: str
    state: Literal["running", "built", "failed", "skipped", "waiting"]
    subject: str | None = None
    stage: str | None = None
    detail: str | None = None


Listener = Callable[[Event], None]


def run(
    plan: Plan,
    *,
    out: Path,
    jobs: int,
    keep_going: bool,
    numbers: bool,
    listener: Listener,
) -> tuple[BuildReport, EpctxError | None]:
    """Build what is planned; return the report, and the first failure in manifest order.

    Args:
        out: the `dist` folder.
        jobs: how many session groups are worked on at a time.
        keep_going: build and publish the other groups when one fails; else nothing is published.
        numbers: run every model and compare, where the manifest does not say `off`.
        listener: hears of events, from several threads, one at a time.

    Raises:
        StorageError: the output folder cannot be used.
        Interrupted: the user asked to stop; nothing was published, no worker is left.
    """
    place = publish.Place(out=out.resolve(), name=plan.manifest.name)
    with place.locked(lambda: listener(Event(group=plan.manifest.name, state="waiting"))):
        build = _Build(
            plan, place, jobs=jobs, keep_going=keep_going, numbers=numbers, listener=listener
        )
        return build.run()


class _Ended(EpctxError):
    """Why a group that did not fail itself was not built: another failed, or the user stopped."""


@dataclass(kw_only=True)
class _Progress:
    """What is known of one group while it is being built; the lock of the build guards it."""

    planned: PlannedGroup
    compiled: list[Future[CompileResult]] = field(default_factory=list)
    verified: Future[FolderReport] = field(default_factory=Future)
    stages: list[StageTime] = field(default_factory=list)
    peak_memory: int = 0


class _Build:
    """One run of a plan. Session groups are tasks of a thread pool; workers do the work."""

    def __init__(
        self,
        plan: Plan,
        place: publish.Place,
        *,
        jobs: int,
        keep_going: bool,
        numbers: bool,
        listener: Listener,
    ) -> None:
        self._plan = plan
        self._place = place
        self._keep_going = keep_going
        self._numbers = numbers
        self._listener = listener
        self._clock = time.monotonic()
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._pool = Pool(work=place.work, logs=place.logs)
        self._threads = ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="epctx")
        self._lock = threading.RLock()
        self._stopping = False
        self._numbered = itertools.count()
        self._optimized: dict[bytes, Future[Path]] = {}

    def run(self) -> tuple[BuildReport, EpctxError | None]:
        groups = [_Progress(planned=planned) for planned in self._plan.groups]
        try:
            for progress in groups:
                self._submit(progress)
            pending = {progress.verified for progress in groups}
            while pending:
                # In short steps: a wait without an end cannot be interrupted on Windows.
                _, pending = wait(pending, timeout=0.2)
            self._threads.shutdown()
            self._pool.end()
        except KeyboardInterrupt:
            with self._lock:
                self._stopping = True
            self._pool.end(_Ended("interrupted", remedy="run the command again"))
            self._threads.shutdown(cancel_futures=True)
            raise Interrupted(
                "interrupted, nothing was published", remedy="run the command again"
            ) from None
        failures = {p.planned.label: _failure_of(p) for p in groups}
        whole = not any(failures.values())
        reports = [
            self._publish(p, failures[p.planned.label], whole or self._keep_going) for p in groups
        ]
        if whole and self._plan.whole:
            self._place.prune({(p.planned.target, p.planned.group.name) for p in groups})
        built = BuildReport(
            schema_version=build_report.SCHEMA_VERSION,
            epctx=__version__,
            name=self._plan.manifest.name,
            started=self._started,
            seconds=round(self._now(), 3),
            host=build_report.host(),
            groups=tuple(reports),
        )
        publish.replace_file(self._place.report, codec.encode(built, indent=2) + b"\n")
        return built, next((f for f in failures.values() if f and not isinstance(f, _Ended)), None)

    def _submit(self, progress: _Progress) -> None:
        planned = progress.planned
        self._place.staged(planned.target, planned.group.name).mkdir(parents=True)
        progress.compiled = [
            self._threads.submit(self._session_group, progress, session_group)
            for session_group in planned.session_groups
        ]
        left = set(progress.compiled)

        def finished(future: Future[CompileResult]) -> None:
            with self._lock:
                left.discard(future)
                if not left and not self._stopping:
                    self._threads.submit(self._settle, progress)

        for future in list(progress.compiled):
            future.add_done_callback(finished)

    def _session_group(self, progress: _Progress, session_group: SessionGroup) -> CompileResult:
        group = progress.planned.group
        try:
            optimized = {
                model.name: self._optimize(progress, model, group.optimize)
                for model in session_group.models
            }
            scratch = self._place.work / f"s{next(self._numbered)}"
            scratch.mkdir(parents=True)
            job = CompileJob(
                group=group,
                models=tuple(model.name for model in session_group.models),
                optimized=optimized,
                folder=self._place.staged(progress.planned.target, group.name),
                scratch=scratch,
                recorded=self._recorded(progress) if self._records(group) else None,
            )
            subject = session_group.sharing or session_group.models[0].name
            with self._worker(group, f"{progress.planned.label}-{subject}") as worker:
                result = self._do(progress, subject, worker, job, CompileResult)
        except EpctxError as error:
            self._fail(error)
            raise
        self._remember(progress, result.peak_memory)
        return result

    def _optimize(
        self, progress: _Progress, source: ModelSource, settings: OptimizeSettings
    ) -> Path:
        """The folder of the optimized model; whoever asks first does the work."""
        key = codec.encode((source, settings))
        with self._lock:
            future = self._optimized.get(key)
            mine = future is None
            if future is None:
                future = self._optimized[key] = Future()
        if not mine:
            return future.result()
        try:
            folder = self._place.work / f"o{next(self._numbered)}"
            job = OptimizeJob(source=source, settings=settings, folder=folder)
            with self._pool.shared() as worker:
                result = self._do(progress, source.name, worker, job, OptimizeResult)
        except BaseException as error:
            future.set_exception(error)
            raise
        self._remember(progress, result.peak_memory)
        future.set_result(folder)
        return folder

    def _settle(self, progress: _Progress) -> None:
        """After the last session group of a group: sums and checks, before publication."""
        planned = progress.planned
        try:
            results = [future.result() for future in progress.compiled]
            refuse_unmatched(
                [found for result in results for found in result.unmatched],
                where=f"model group {planned.group.name}",
            )
            folder = self._place.staged(planned.target, planned.group.name)
            outputs.write_sums(folder, [f for r in results for f in r.output.files])
            job = VerifyRequest(
                group=planned.group,
                folder=folder,
                label=planned.label,
                recorded=self._recorded(progress) if any(r.recorded for r in results) else None,
                policies=POLICIES if self._numbers else POLICIES[:-1],
            )
            with self._worker(planned.group, f"{planned.label}-verify") as worker:
                found = self._do(progress, planned.group.name, worker, job, FolderReport)
            _refuse(planned, found)
        except BaseException as error:
            if isinstance(error, EpctxError):
                self._fail(error)
            progress.verified.set_exception(error)
        else:
            progress.verified.set_result(found)

    def _do(
        self,
        progress: _Progress,
        subject: str,
        worker: Worker,
        job: Job,
        result: type[R],
    ) -> R:
        stage: str | None = None
        begun = 0.0

        def note(now: float) -> None:
            if stage is not None:
                time_ = StageTime(stage=stage, subject=subject, start=begun, end=now)
                with self._lock:
                    progress.stages.append(time_)

        def started(entered: StageStarted) -> None:
            nonlocal stage, begun
            note(now := self._now())
            stage, begun = entered.stage, now
            self._tell(progress, "running", subject=entered.model or subject, stage=stage)

        try:
            return worker.run(job, result, started=started, timeout=progress.planned.group.timeout)
        finally:
            note(self._now())

    def _records(self, group: ModelGroup) -> bool:
        return self._numbers and group.verify.numbers != "off"

    def _recorded(self, progress: _Progress) -> Path:
        return self._place.work / "recorded" / progress.planned.label

    def _worker(self, group: ModelGroup, label: str) -> AbstractContextManager[Worker]:
        if any(registry.is_isolated(spec) for spec in group.execution_providers):
            return self._pool.isolated(label)
        return self._pool.shared()

    def _fail(self, error: EpctxError) -> None:
        if not self._keep_going and not isinstance(error, _Ended):
            self._pool.end(_Ended("another group failed", remedy="see its error"))

    def _publish(
        self, progress: _Progress, failure: EpctxError | None, wanted: bool
    ) -> GroupReport:
        planned = progress.planned
        base = GroupReport(
            target=planned.target,
            group=planned.group.name,
            state="built",
            stages=tuple(progress.stages),
            peak_memory=progress.peak_memory,
        )
        if failure is None and wanted:
            self._place.publish(planned.target, planned.group.name)
            results = [future.result() for future in progress.compiled]
            found = progress.verified.result()
            place = self._place.group(planned.target, planned.group.name)
            self._tell(progress, "built")
            return replace(
                base,
                folder=place.relative_to(self._place.out).as_posix(),
                files=tuple(f for r in results for f in r.output.files),
                models=tuple(m for r in results for m in r.models),
                verify=found,
            )
        if failure is None or isinstance(failure, _Ended):
            self._tell(progress, "skipped")
            return replace(base, state="skipped")
        self._tell(progress, "failed", detail=str(failure))
        return replace(base, state="failed", failure=build_report.failure(failure))

    def _remember(self, progress: _Progress, peak_memory: int) -> None:
        with self._lock:
            progress.peak_memory = max(progress.peak_memory, peak_memory)

    def _tell(
        self,
        progress: _Progress,
        state: Literal["running", "built", "failed", "skipped"],
        *,
        subject: str | None = None,
        stage: str | None = None,
        detail: str | None = None,
    ) -> None:
        with self._lock:
            label = progress.planned.label
            self._listener(
                Event(group=label, state=state, subject=subject, stage=stage, detail=detail)
            )

    def _now(self) -> float:
        return time.monotonic() - self._clock


def _failure_of(progress: _Progress) -> EpctxError | None:
    error = progress.verified.exception()
    if error is None or isinstance(error, EpctxError):
        return error
    raise error


def _refuse(planned: PlannedGroup, found: FolderReport) -> None:
    failed = [finding for finding in found.findings if finding.outcome == "fail"]
    if failed:
        first = failed[0]
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise VerificationError(
            f"{first.policy}: {first.message}{more}",
            where=f"{planned.label}: {first.subject}",
            remedy=first.remedy,
        )
