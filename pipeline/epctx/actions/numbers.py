"""The actions that run models: sources, what compiles, what was built.

They go through the requests that verification has, until numbers have one runner.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from epctx.actions.action import (
    RUNNING,
    SESSIONS,
    Action,
    Code,
    StageStarted,
    WorkerContext,
    peak_memory,
)
from epctx.actions.compile import Compile, CompileResult
from epctx.errors import Failure
from epctx.files import outputs
from epctx.files.outputs import OutputFile
from epctx.manifest import ModelGroup, ModelSource, VerifySettings
from epctx.runtime.trial import RunJob, RunReport
from epctx.verification.findings import FolderReport
from epctx.verification.request import Composed, VerifyRequest

if TYPE_CHECKING:
    from epctx.verification.numbers.runs import Pause

_SENDING: Final = 20
"""Between two pauses that are told lies so many times what it took to tell the first."""


class SourceResult(Struct, frozen=True, kw_only=True):
    """The models that run on other inputs than were generated only, and why: `unfed`."""

    unfed: Mapping[str, str]


class RunSources(Action[SourceResult], frozen=True, kw_only=True):
    """Run source models on the inputs that verification uses, and keep what they give.

    Attributes:
        folder: where it is kept.
    """

    result = SourceResult
    writes = ("folder",)

    sources: tuple[ModelSource, ...]
    settings: VerifySettings
    folder: Path

    def run(self, worker: WorkerContext) -> SourceResult:
        """Raises what `expected.keep` raises."""
        from epctx.verification.numbers import expected

        if self.settings.budget is not None:  # verification runs what did not end
            worker.settle(SourceResult(unfed={}), self.settings.budget)
        unfed: dict[str, str] = {}
        for model, reason in expected.keep(self.sources, self.settings, self.folder):
            if reason is None:  # it is run now: native code may crash
                worker.started(StageStarted(stage="source", model=f"{model} (source)"))
            else:
                unfed[model] = reason
        return SourceResult(unfed=unfed)


class RecordResult(Struct, frozen=True, kw_only=True):
    """The outcome of running the sessions that compile.

    Attributes:
        recorded: they were run.
        unrun: of each model that they did not run, why: the EP's fault if the source does run.
    """

    recorded: bool
    unrun: tuple[Failure, ...] = ()


class Record(Action[RecordResult], frozen=True, kw_only=True):
    """Run the sessions that compile a group, while they are open, and keep what they compute.

    Attributes:
        group: the model group.
        folder: where the compile has put its outputs.
        recorded: where what they compute is kept.
    """

    result = RecordResult
    writes = ("recorded",)
    within = Compile

    group: ModelGroup
    folder: Path
    recorded: Path

    def run(self, worker: WorkerContext) -> RecordResult:
        """Raises what `record_outputs.record` raises."""
        from epctx.actions import record_outputs

        live = worker.live
        if live.generating is None:
            return RecordResult(recorded=False)

        def running(model: str, provider: str) -> None:
            worker.started(StageStarted(stage="verify", model=model, provider=provider))

        pausing = _Pausing(worker)
        whole = RecordResult(recorded=True)
        unrun = record_outputs.record(
            live.generating,
            live.compiled,
            self.group,
            self.folder,
            self.recorded,
            running,
            lambda pause: pausing(pause, lambda: whole),
        )
        worker.settle(whole, None)
        return RecordResult(recorded=unrun is not None, unrun=unrun or ())


class Verify(Action[FolderReport], frozen=True, kw_only=True):
    """Verify one folder.

    Attributes:
        compiled: the job has compiled all that is in it: `SHA256SUMS` is still to be written.
    """

    result = FolderReport
    code = Code((*RUNNING, "stages/verify.py"), SESSIONS)

    request: VerifyRequest
    compiled: bool = False

    def run(self, worker: WorkerContext) -> FolderReport:
        """Raises what `stages.verify` raises."""
        from epctx.stages import verify

        request = self.request
        if self.compiled:
            made = worker.last(CompileResult).output.files
            outputs.write_sums(request.folder, made)
            request = replace(request, written=tuple(made))
        worker.started(StageStarted(stage="verify"))

        def running(model: str) -> None:
            worker.started(StageStarted(stage="verify", model=model))

        return verify.run(request, running, _Pausing(worker))


class GoldenResult(Struct, frozen=True, kw_only=True):
    """The files that were written, SHA256SUMS too."""

    files: tuple[OutputFile, ...]


class Golden(Action[GoldenResult], frozen=True, kw_only=True):
    """Write golden inputs and outputs of a group, or of a composition.

    Attributes:
        group, composed: one of them.
        built: its folder.
        folder: where they go: new.
        two_answers: files of the group's models whose outputs are those of the kernels.
    """

    result = GoldenResult
    writes = ("folder",)

    group: ModelGroup | None = None
    composed: Composed | None = None
    built: Path
    folder: Path
    two_answers: tuple[str, ...] = ()

    def run(self, worker: WorkerContext) -> GoldenResult:
        """Raises what `golden.make` raises."""
        from epctx.verification.numbers import golden

        worker.started(StageStarted(stage="golden"))
        if self.group is not None:
            made = golden.make(self.group, self.built, self.folder, self.two_answers)
            return GoldenResult(files=made)
        assert self.composed is not None
        return GoldenResult(files=golden.make_composed(self.composed, self.built, self.folder))


class Trial(Action[RunReport], frozen=True, kw_only=True):
    """Run a model, as `epctx run` does."""

    result = RunReport

    job: RunJob

    def run(self, worker: WorkerContext) -> RunReport:
        """Raises what `trial.run` raises."""
        from epctx.runtime import trial

        return trial.run(self.job)


class _Pausing:
    """Tells before a run which one it is, and what holds if the process is ended in it.

    A result may be large, and a run short: then not every one is told.
    """

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker
        self._next = 0.0
        self._bound = False

    def __call__(self, pause: Pause, result: Callable[[], object]) -> None:
        begun, bound = time.monotonic(), pause.left is not None
        if begun < self._next and bound == self._bound:
            return
        if bound or self._bound:
            self._worker.settle(result(), pause.left)
        self._bound = bound
        if pause.of:
            self._worker.started(
                StageStarted(
                    stage="verify",
                    model=pause.model,
                    number=pause.number,
                    of=pause.of,
                    peak_memory=peak_memory(),
                )
            )
        now = time.monotonic()
        self._next = now + _SENDING * (now - begun)
