"""quantize: a float model becomes an integer one, on purpose (design section 14).

This is a stage between optimize and partition, since optimize never changes a number. The result is
a model file, with which the compiled model is compared.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import onnx
import onnx_ir as ir
from msgspec import Struct

from epctx.files import digest, outputs
from epctx.graph.model import OptimizedModel, Partition, SourceFile
from epctx.graph.partition import surgery
from epctx.graph.serde import canonical, data_files, protos
from epctx.manifest import Calibration, ModelSource, Pieces, Preset, QuantizeSettings
from epctx.quantization import loss, presets, quantizer, samples
from epctx.quantization import pieces as in_pieces
from epctx.quantization.pieces import Crossing
from epctx.quantization.presets import Override
from epctx.quantization.quantizer import Quantizer
from epctx.quantization.ranges import Ranges, below, parse, text
from epctx.quantization.report import QuantizeReport
from epctx.quantization.samples import Samples

FILE: Final = "model.onnx"
_PLAIN: Final = "float.onnx"
_MASK: Final = -1e4
"""Greatest of the values that exporters add to elements so that a softmax ignores them. The least
is the lowest float.
"""
_ONE_FILE: Final = 1 << 30
"""Maximum bytes of weights that the tools get inside the model file."""


class QuantizedModel(Struct, frozen=True, kw_only=True):
    """Files of the quantized model, the model first, and the ranges that were used."""

    files: tuple[SourceFile, ...]
    ranges: str | None
    report: QuantizeReport


def run(
    optimized: OptimizedModel,
    settings: QuantizeSettings,
    preset: Preset,
    folder: Path,
    *,
    pieces: Pieces | None,
    ranges: str | None,
    others: Sequence[ModelSource],
) -> QuantizedModel:
    """Quantize a model into the folder `folder`, which exists and is empty.

    Args:
        optimized: the float model, which is used up.
        pieces: cuts of the quantized model; None if it is quantized whole.
        ranges: known ranges of its tensors; None if it is calibrated.
        others: other models of its group: samples may belong to them.

    Raises:
        ManifestError: the settings or the samples do not fit the model.
        ModelError: onnxruntime's tools fail on it; a sample cannot be read.
        StorageError: a file cannot be written.
    """
    output, model = folder / FILE, optimized.model
    outputs_, nodes = [value.name or "" for value in model.graph.outputs], len(model.graph)
    with _scratch(folder) as scratch:
        parts = in_pieces.cut(model, pieces)
        tools = [
            Quantizer(name=optimized.name, plain=plain, settings=settings, preset=preset)
            for plain in _write_pieces(model, parts, scratch)
        ]
        calibration = (
            settings.calibration if settings.calibrated else Calibration(random=True, count=1)
        )
        prepared = quantizer.prepare(tools)
        given = samples.of(scratch / _PLAIN, optimized.name, calibration, others)
        quantized_files = [each.with_name(FILE) for each in prepared] if parts else [output]
        used_ranges: Ranges | None = None
        if settings.calibrated:
            used_ranges = _quantize(tools, prepared, quantized_files, given, ranges, scratch)
        else:
            for each, quantized in zip(prepared, quantized_files, strict=True):
                quantizer.move(each, quantized)
        pairs = [(tool.plain, each) for tool, each in zip(tools, quantized_files, strict=True)]
        ends, rest = loss.measure(pairs, outputs_, given.feeds(0), scratch)
        if parts:
            in_pieces.join(model, parts, quantized_files)
            _write(model, output)
        tools[0].require_effect(prepared, output)
        float_size = sum(
            path.stat().st_size for tool in tools for path in tool.plain.parent.glob(f"{_PLAIN}*")
        )
    proto = onnx.load(output, load_external_data=False)
    chosen, blocks = presets.choose(settings, preset), settings.weight_only
    files = tuple(map(_file, sorted(folder.iterdir(), key=lambda path: path.name != FILE)))
    return QuantizedModel(
        files=files,
        ranges=None if used_ranges is None else text(used_ranges),
        report=QuantizeReport(
            preset=preset,
            activations=chosen.activations if settings.calibrated else None,
            weights=chosen.weights if blocks is None else f"int{blocks.bits}",
            samples=len(given) if settings.calibrated else 0,
            random=settings.calibration.random,
            limited=tuple(_limited(used_ranges, settings)),
            range_floor=settings.range_floor,
            bodies=tuple(map(protos.describe, filter(_has_body, proto.graph.node))),
            quantized=quantizer.quantized_nodes(proto),
            nodes=nodes,
            size=sum(file.size for file in files),
            float_size=float_size,
            outputs=ends,
            tensors=rest,
        ),
    )


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Make a folder beside `folder` for files of the tools; remove it at the end."""
    scratch = folder.with_name(f"{folder.name}w")
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _has_body(node: onnx.NodeProto) -> bool:
    return any(each.HasField("g") or each.graphs for each in node.attribute)


def _limited(ranges: Ranges | None, settings: QuantizeSettings) -> list[str]:
    """Return the tensors whose ranges reach as far as masks do."""
    floor = math.nextafter(_MASK, 0) if settings.range_floor is None else settings.range_floor
    return [] if ranges is None else below(ranges, floor)


def _quantize(
    tools: Sequence[Quantizer],
    prepared: Sequence[Path],
    quantized: Sequence[Path],
    given: Samples,
    ranges: str | None,
    scratch: Path,
) -> Ranges:
    """Quantize piece after piece, which are calibrated if `ranges` is None; return the ranges."""
    used_ranges = {} if ranges is None else parse(ranges)
    crossing = Crossing(given, scratch / "crossing")
    fixed: dict[str, Override] = {}
    taken = [set(in_pieces.inputs(each)) for each in prepared]
    for number, (tool, piece) in enumerate(zip(tools, prepared, strict=True)):
        later = set[str]().union(*taken[number + 1 :])
        if ranges is None:
            used_ranges = {**tool.calibrate(piece, crossing.samples(piece)), **used_ranges}
            if later:
                crossing.run(piece, later)
        tool.run(piece, quantized[number], used_ranges, fixed)
        fixed |= in_pieces.overrides(quantized[number], later)
    return used_ranges


def _write_pieces(model: ir.Model, parts: Sequence[Partition], scratch: Path) -> list[Path]:
    """Write the float model, or its pieces and the whole without weights. Return the files to be
    quantized.
    """
    pieces = [surgery.extract(model, part) for part in parts]
    whole = _write(model, scratch / _PLAIN, data=not parts)
    if not parts:
        return [whole]
    places = [scratch / str(number) / _PLAIN for number in range(len(parts))]
    for place, piece in zip(places, pieces, strict=True):
        place.parent.mkdir()
        _write(piece, place)
    return places


def _write(model: ir.Model, path: Path, *, data: bool = True) -> Path:
    """Write a model as onnxruntime's tools read it; without `data`, its weights are left out."""
    weights = (value.const_value for value in model.graph.initializers.values())
    if not data or sum(tensor.nbytes for tensor in weights if tensor is not None) > _ONE_FILE:
        file = data_files.place(model, f"{path.name}.data", keep=data_files.inference_may_read)
        if file is not None and data:
            outputs.write(path.with_name(f"{path.name}.data"), file.chunks())
    outputs.write(path, canonical.chunks(model))
    return path


def _file(path: Path) -> SourceFile:
    return SourceFile(
        path=path,
        location=path.name,
        size=path.stat().st_size,
        digest=digest.of_file(path),
    )
