"""quantize: a float model becomes an integer one, on purpose (design section 14).

A stage of its own between optimize and partition: optimize never changes a number. What comes out
is a model file, since what is compiled of it is compared with it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import onnx
from msgspec import Struct

from epctx.files import digest, outputs
from epctx.graph.model import OptimizedModel, SourceFile
from epctx.graph.serde import canonical, data_files
from epctx.manifest import Calibration, Preset, QuantizeSettings
from epctx.quantization import loss, presets, quantizer, samples
from epctx.quantization.report import QuantizeReport

FILE: Final = "model.onnx"
_PLAIN: Final = "float.onnx"
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
) -> QuantizedModel:
    """Quantize a model into the folder `folder`, which exists and is empty.

    Args:
        optimized: the float model, which is used up.
        ranges: of its tensors, as they were found before; None: it is calibrated.

    Raises:
        ManifestError: the settings or the samples do not fit the model.
        ModelError: onnxruntime's tools fail on it; a sample cannot be read.
        StorageError: the disk refuses.
    """
    scratch = folder.with_name(f"{folder.name}w")
    scratch.mkdir()
    try:
        return _run(optimized, settings, preset, folder, ranges, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(
    optimized: OptimizedModel,
    settings: QuantizeSettings,
    preset: Preset,
    folder: Path,
    ranges: str | None,
    scratch: Path,
) -> QuantizedModel:
    name, output = optimized.name, folder / FILE
    plain = _write(optimized, scratch / _PLAIN)
    bare = onnx.load(plain, load_external_data=False)
    quantizer.refuse_quantized(bare, name)
    prepared = quantizer.prepare(plain, preset, name)
    kept, only = scratch / "ranges.json", settings.weight_only
    asked = settings.calibration if only is None else Calibration(random=True, count=1)
    given = samples.of(plain, name, asked)
    if ranges is not None:
        kept.write_text(ranges, encoding="utf-8")
    if only is None:
        quantizer.run(prepared, output, settings, preset, name=name, samples=given, ranges=kept)
    else:
        quantizer.run_weights(prepared, output, settings, name=name)
    ends, others = loss.measure(prepared, output, given.first(), scratch)
    made = onnx.load(output, load_external_data=False)
    chosen = presets.choose(settings, preset)
    files = tuple(map(_file, sorted(folder.iterdir(), key=lambda path: path.name != FILE)))
    return QuantizedModel(
        files=files,
        ranges=kept.read_text(encoding="utf-8") if only is None else None,
        report=QuantizeReport(
            preset=preset,
            activations=None if only is not None else chosen.activations,
            weights=chosen.weights if only is None else f"int{only.bits}",
            samples=len(given) if only is None else 0,
            random=asked.random,
            quantized=quantizer.quantized_nodes(made),
            nodes=len(bare.graph.node),
            size=sum(file.size for file in files),
            float_size=sum(path.stat().st_size for path in scratch.glob(f"{_PLAIN}*")),
            measured=1,
            outputs=ends,
            tensors=others,
        ),
    )


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
