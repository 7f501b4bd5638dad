"""Trial: a model run once, as `epctx run` does."""

from __future__ import annotations

from epctx.actions.action import Action, WorkerContext
from epctx.inference.trial import RunJob, RunReport


class Trial(Action[RunReport], frozen=True, kw_only=True):
    """Run a model, as `epctx run` does."""

    result = RunReport

    job: RunJob

    def run(self, worker: WorkerContext) -> RunReport:
        """Raises the errors of `trial.run`."""
        from epctx.inference import trial

        return trial.run(self.job)
