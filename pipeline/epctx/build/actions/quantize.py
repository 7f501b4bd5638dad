"""Quantize: a float model becomes an integer one, with ranges that were found or are known."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from epctx.build.action import Action, StageStarted, WorkerContext
from epctx.graph.model import SourceFile
from epctx.manifest import ModelSource, Preset, QuantizeSettings
from epctx.quantization.report import QuantizeReport


class QuantizeResult(Struct, frozen=True, kw_only=True):
    """What was written.

    Attributes:
        sources: its files: the model first.
        ranges: of its tensors; None: only weights are quantized.
    """

    sources: tuple[SourceFile, ...]
    ranges: str | None
    report: QuantizeReport


class Quantize(Action[QuantizeResult], frozen=True, kw_only=True):
    """Quantize one model; write it to the new folder `folder`.

    Attributes:
        name: of the model.
        optimized: the folder that Optimize wrote.
        preset: whose settings, resolved.
        ranges: of its tensors, as they were found before; None: they are to be found.
        others: the other models of its group: samples may be of them.
    """

    result = QuantizeResult
    writes = ("folder",)

    name: str
    optimized: Path
    settings: QuantizeSettings
    preset: Preset
    ranges: str | None
    others: tuple[ModelSource, ...]
    folder: Path

    def run(self, worker: WorkerContext) -> QuantizeResult:
        """Raises what `stages.quantize` raises."""
        from epctx.graph.optimized import store
        from epctx.stages import quantize

        worker.started(StageStarted(stage="quantize", model=self.name))
        self.folder.mkdir(parents=True)
        optimized = replace(store.read(self.optimized), name=self.name)
        made = quantize.run(
            optimized,
            self.settings,
            self.preset,
            self.folder,
            ranges=self.ranges,
            others=self.others,
        )
        return QuantizeResult(sources=made.files, ranges=made.ranges, report=made.report)
