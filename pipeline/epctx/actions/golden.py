"""Golden: inputs and expected outputs of a group's source models, written to ship with it."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from epctx.actions.action import Action, StageStarted, WorkerContext
from epctx.files.outputs import OutputFile
from epctx.manifest import ModelGroup
from epctx.verification.request import Composed


class GoldenResult(Struct, frozen=True, kw_only=True):
    """Written files, SHA256SUMS included."""

    files: tuple[OutputFile, ...]


class Golden(Action[GoldenResult], frozen=True, kw_only=True):
    """Write golden inputs and outputs of a group, or of a composition.

    Attributes:
        group, composed: the group or the composition.
        built: folder of its outputs.
        folder: new folder for the golden files.
        two_answers: EPContext models that verification compared with the kernels of their source.
    """

    result = GoldenResult
    writes = ("folder",)

    group: ModelGroup | None = None
    composed: Composed | None = None
    built: Path
    folder: Path
    two_answers: tuple[str, ...] = ()

    def run(self, worker: WorkerContext) -> GoldenResult:
        """Raises the errors of `golden.make`."""
        from epctx.verification.numbers import golden

        worker.started(StageStarted(stage="golden"))
        if self.group is not None:
            files = golden.make(self.group, self.built, self.folder, self.two_answers)
            return GoldenResult(files=files)
        assert self.composed is not None
        return GoldenResult(files=golden.make_composed(self.composed, self.built, self.folder))
