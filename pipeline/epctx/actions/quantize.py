"""Quantize: a float model becomes an integer one, with calibrated or known ranges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from epctx.actions.action import RUNNING, SESSIONS, Action, Code, StageStarted, WorkerContext
from epctx.files import digest
from epctx.files.digest import Digest
from epctx.manifest import (
    Calibration,
    ModelGroup,
    ModelSource,
    Pieces,
    Preset,
    QuantizeSettings,
)
from epctx.quantization.report import QuantizeReport

if TYPE_CHECKING:
    from epctx.keys.toolchain import Toolchain

_NOTHING: Final = Calibration()
_NO_BYTES: Final = ("calibration", "preset", "tolerance")
"""Fields of `quantize` that are in the record in another form, or affect no byte."""


class QuantizeResult(Struct, frozen=True, kw_only=True):
    """The quantized model and its losses.

    Attributes:
        model: digest of the model file, whose name does not depend on the model's.
        locations, data: external data files, as in SourceDigests.
        ranges: ranges of its tensors; None if only weights are quantized.
    """

    model: Digest
    locations: tuple[str, ...]
    data: tuple[Digest, ...]
    ranges: str | None
    report: QuantizeReport


class Quantize(Action[QuantizeResult], frozen=True, kw_only=True):
    """Quantize one model; write it to the new folder `folder`.

    Attributes:
        model: digest of the optimized float model.
        preset: resolved preset of the settings.
        pieces: pieces in which it is quantized and compiled; None if whole.
        settings: settings of its group; those that change bytes are in the key.
        ranges: known ranges of its tensors; None if it is calibrated, or only weights are
            quantized.
        samples: digests of the calibration files, in the manifest's order; losses are measured on
            them.
        name: name of the model.
        optimized: the folder that Optimize wrote.
        others: other models of its group: samples may belong to them.
    """

    result = QuantizeResult
    kind = "quantize"
    code = Code((*RUNNING, "quantization/*.py", "stages/quantize.py"), SESSIONS)
    beside = ("name", "optimized", "others", "folder")
    writes = ("folder",)

    model: str
    preset: Preset
    pieces: Pieces | None
    settings: QuantizeSettings
    ranges: str | None
    samples: tuple[str, ...]
    name: str = ""
    optimized: Path = Path()
    others: tuple[ModelSource, ...] = ()
    folder: Path = Path()

    @classmethod
    def of(
        cls,
        group: ModelGroup,
        model: Digest,
        samples: Sequence[Digest],
        ranges: str | None,
    ) -> Quantize:
        """Return the quantize action of an optimized model of a group, without folders."""
        assert group.quantize is not None
        return cls(
            model=str(model),
            preset=group.preset,
            pieces=group.pieces,
            settings=group.quantize,
            ranges=ranges,
            samples=tuple(map(str, samples)),
        )

    def record(self, toolchain: Toolchain) -> dict[str, Any]:
        """Return the key's content, with digests of sample files and ranges."""
        ranges = None if self.ranges is None else str(digest.of_bytes(self.ranges.encode()))
        plain = replace(self, ranges=ranges, settings=replace(self.settings, calibration=_NOTHING))
        return super(Quantize, plain).record(toolchain) | {"settings": settings_of(self.settings)}

    def run(self, worker: WorkerContext) -> QuantizeResult:
        """Raises the errors of `stages.quantize`."""
        from epctx.graph import store
        from epctx.stages import quantize

        worker.started(StageStarted(stage="quantize", model=self.name))
        self.folder.mkdir(parents=True)
        optimized = replace(store.read(self.optimized), name=self.name)
        quantized = quantize.run(
            optimized,
            self.settings,
            self.preset,
            self.folder,
            pieces=self.pieces,
            ranges=self.ranges,
            others=self.others,
        )
        model, *data = quantized.files
        return QuantizeResult(
            model=model.digest,
            locations=tuple(file.location for file in data),
            data=tuple(file.digest for file in data),
            ranges=quantized.ranges,
            report=quantized.report,
        )


def settings_of(settings: QuantizeSettings) -> dict[str, Any]:
    """Return the settings of `quantize` that change bytes, without preset and samples."""
    plain: dict[str, Any] = msgspec.to_builtins(replace(settings, calibration=_NOTHING))
    return {name: value for name, value in plain.items() if name not in _NO_BYTES}
