"""Exports of transformers after ONNX Runtime's own optimizer for them, with its fused ops."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.zoo.recipes import Recipe
from tests.zoo.sources import audio, exporting, sequences, text, vision

KINDS = {
    "bert.script": "bert",
    "distilbert.script": "bert",
    "roberta.dynamo": "bert",
    "gpt2.script": "gpt2",
    "bart.script": "bart",
    "t5.script": "t5",
    "whisper.dynamo": "bart",
    "clip.dynamo": "clip",
    "vit.script": "vit",
    "swin.script": "swin",
    "llama.script": "gpt2",
}
"""Which `model_type` of the optimizer an export is given as."""
PRECISIONS = ("fp32", "fp16")


def recipes() -> Iterator[Recipe]:
    """Each export in both precisions."""
    for export, kind in KINDS.items():
        for precision in PRECISIONS:
            name = f"{export.replace('.', '_')}.optimized_{precision}"
            source = f"onnxruntime.transformers.optimizer, {precision}"
            yield Recipe(name, source, partial(_optimize, export, kind, precision))


def _optimize(export: str, kind: str, precision: str, folder: Path) -> None:
    from onnxruntime.transformers import optimizer

    name, exporter = export.split(".")
    makers = {**text.MAKERS, **sequences.MAKERS, **vision.MAKERS, **audio.MAKERS}
    before = folder / "export"
    before.mkdir()
    exporting.export(makers[name], exporter, before)
    made = optimizer.optimize_model(
        str(before / "model.onnx"), model_type=kind, num_heads=4, hidden_size=64, opt_level=0
    )
    if precision == "fp16":
        made.convert_float_to_float16(keep_io_types=True)
    made.save_model_to_file(str(folder / "model.onnx"))
