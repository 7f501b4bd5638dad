"""quantize: a float model becomes an integer one, on purpose (design section 14).

A stage of its own between optimize and partition: optimize never changes a number. What comes out
is a model file, since what is compiled of it is compared with it.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import onnx
from msgspec import Struct

from epctx.files import digest, outputs
from epctx.graph.model import OptimizedModel, SourceFile
from epctx.graph.serde import canonical, data_files, protos
from epctx.manifest import Calibration, ModelSource, Preset, QuantizeSettings
from epctx.quantization import loss, presets, quantizer, samples
from epctx.quantization.quantizer import Quantizer
from epctx.quantization.ranges import Ranges, below, parse, text
from epctx.quantization.report import QuantizeReport

FILE: Final = "model.onnx"
_PLAIN: Final = "float.onnx"
_MASK: Final = -1e4
"""Where exporters put what a softmax is to ignore: from here to the least float."""
_ONE_FILE: Final = 1 << 30
"""Bytes of weights up to which the tools are given them in the model file."""


class QuantizedModel(Struct, frozen=True, kw_only=True):
    """What came out: the model and its data, the model first; `ranges` as they were used."""

    files: tuple[SourceFile, ...]
    ranges: str | None
    report: QuantizeReport


def run(
    optimized: OptimizedModel,
    settings: QuantizeSettings,
    preset: Preset,
    folder: Path,
    *,
    ranges: str | None,
    others: Sequence[ModelSource],
) -> QuantizedModel:
    """Quantize a model into the folder `folder`, which exists and is empty.

    Args:
        optimized: the float model, which is used up.
        ranges: of its tensors, as they were found before; None: it is calibrated.
        others: the other models of its group: samples may be of them.

    Raises:
        ManifestError: the settings or the samples do not fit the model.
        ModelError: onnxruntime's tools fail on it; a sample cannot be read.
        StorageError: the disk refuses.
    """
    output = folder / FILE
    with _scratch(folder) as scratch:
        plain = _write(optimized, scratch / _PLAIN)
        tool = Quantizer(name=optimized.name, plain=plain, settings=settings, preset=preset)
        prepared = tool.prepare()
        asked = settings.calibration if settings.calibrated else Calibration(random=True, count=1)
        given = samples.of(plain, optimized.name, asked, others)
        found: Ranges | None = None
        if settings.calibrated:
            found = parse(ranges) if ranges is not None else tool.calibrate(prepared, given)
            tool.run(prepared, output, found)
        else:
            quantizer.move(prepared, output)
            tool.refuse_nothing(output)
        ends, rest = loss.measure(plain, output, given.first(), scratch)
        nodes = len(onnx.load(plain, load_external_data=False).graph.node)
        float_size = sum(path.stat().st_size for path in scratch.glob(f"{_PLAIN}*"))
    made = onnx.load(output, load_external_data=False)
    chosen, blocks = presets.choose(settings, preset), settings.weight_only
    files = tuple(map(_file, sorted(folder.iterdir(), key=lambda path: path.name != FILE)))
    return QuantizedModel(
        files=files,
        ranges=None if found is None else text(found),
        report=QuantizeReport(
            preset=preset,
            activations=chosen.activations if settings.calibrated else None,
            weights=chosen.weights if blocks is None else f"int{blocks.bits}",
            samples=len(given) if settings.calibrated else 0,
            random=settings.calibration.random,
            limited=tuple(_limited(found, settings)),
            range_floor=settings.range_floor,
            bodies=tuple(map(protos.describe, filter(_has_body, made.graph.node))),
            quantized=quantizer.quantized_nodes(made),
            nodes=nodes,
            size=sum(file.size for file in files),
            float_size=float_size,
            outputs=ends,
            tensors=rest,
        ),
    )


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder beside, for what the tools write."""
    scratch = folder.with_name(f"{folder.name}w")
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _has_body(node: onnx.NodeProto) -> bool:
    return any(each.HasField("g") or each.graphs for each in node.attribute)


def _limited(found: Ranges | None, settings: QuantizeSettings) -> list[str]:
    """The tensors whose ranges reach as far as masks do."""
    floor = math.nextafter(_MASK, 0) if settings.range_floor is None else settings.range_floor
    return [] if found is None else below(found, floor)


def _write(optimized: OptimizedModel, path: Path) -> Path:
    """The float model as onnxruntime's tools read it."""
    model = optimized.model
    weights = (value.const_value for value in model.graph.initializers.values())
    if sum(tensor.nbytes for tensor in weights if tensor is not None) > _ONE_FILE:
        data = data_files.place(model, f"{path.name}.data", keep=data_files.inference_may_read)
        if data is not None:
            outputs.write(path.with_name(f"{path.name}.data"), data.chunks())
    outputs.write(path, canonical.chunks(model))
    return path


def _file(path: Path) -> SourceFile:
    return SourceFile(
        path=path,
        location=path.name,
        size=path.stat().st_size,
        digest=digest.of_file(path),
    )
