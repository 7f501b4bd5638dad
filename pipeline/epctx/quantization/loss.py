"""Loss of a model by quantization, tensor by tensor, on a sample.

Both models run with every float tensor as an output, as `onnxruntime.quantization.qdq_loss_debug`
makes them, and are compared by name: a tensor of the float model corresponds to the output of the
DequantizeLinear behind it, if there is one.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.quantization import qdq_loss_debug
from onnxruntime.quantization.quant_utils import DEQUANT_OUTPUT_SUFFIX

from epctx.graph.inputs import Array
from epctx.inference.feeds import Feeds
from epctx.quantization.report import TensorLoss

_SAVED: Final = "_ReshapedSavedOutput"
"""Suffix of tensors' names from `modify_model_output_intermediate_tensors`."""


def measure(
    pieces: Sequence[tuple[Path, Path]], outputs: Sequence[str], sample: Feeds, scratch: Path
) -> tuple[tuple[TensorLoss, ...], tuple[TensorLoss, ...]]:
    """Return the losses of the outputs, in order, and of all other tensors, the worst first.

    Args:
        pieces: pieces of the model, in order, each with its quantized form.
        outputs: names of the outputs of the whole model.
        sample: input of both models.
        scratch: a folder for the models that run.
    """
    losses: dict[str, TensorLoss] = {}
    float_values, values = dict(sample), dict(sample)
    for float_piece, quantized_piece in pieces:
        graph = onnx.load(float_piece, load_external_data=False).graph
        makers = {name: node.op_type for node in graph.node for name in node.output}
        tensors = {*makers, *(name + DEQUANT_OUTPUT_SUFFIX for name in makers)}
        del graph
        right = _activations(float_piece, float_values, tensors, scratch / "float-all.onnx")
        actual = _activations(quantized_piece, values, tensors, scratch / "quantized-all.onnx")
        for each in _losses(right, actual, makers):
            losses.setdefault(each.name, each)
    other_losses = sorted(
        (each for name, each in losses.items() if name not in outputs),
        key=lambda each: (math.inf if each.sqnr is None else each.sqnr, each.name),
    )
    return tuple(losses[name] for name in outputs if name in losses), tuple(other_losses)


def _activations(
    model: Path, values: dict[str, Array], tensors: Collection[str], augmented: Path
) -> dict[str, Array]:
    """Run a model; return the wanted float tensors, flat, by name. The model's outputs are added to
    `values`, which holds its inputs.
    """
    qdq_loss_debug.modify_model_output_intermediate_tensors(
        model, augmented, save_as_external_data=model.with_suffix(".onnx.data").exists()
    )
    gc.collect()  # objects of the tool refer to each other, and to the model
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(augmented, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    names = [n for n in names if not n.endswith(_SAVED) or n.removesuffix(_SAVED) in tensors]
    feeds = {value.name: values[value.name] for value in session.get_inputs()}
    outputs = dict(zip(names, session.run(names, feeds), strict=True))
    # An array of onnxruntime keeps all memory of its session.
    values |= {name: each.copy() for name, each in outputs.items() if not name.endswith(_SAVED)}
    return {n.removesuffix(_SAVED): each for n, each in outputs.items() if n.endswith(_SAVED)}


def _losses(
    right: Mapping[str, Array], actual: Mapping[str, Array], makers: Mapping[str, str]
) -> Iterator[TensorLoss]:
    for name, expected in right.items():
        value = actual.get(name + DEQUANT_OUTPUT_SUFFIX, actual.get(name))
        if value is None or value.shape != expected.shape:
            continue
        yield TensorLoss(name=name, op_type=makers.get(name, ""), sqnr=sqnr(expected, value))


def sqnr(right: Array, actual: Array) -> float | None:
    """Return the signal-to-quantization-noise ratio in decibels; None if there is no noise or
    signal, or one of them is not finite.
    """
    expected = right.astype(np.float64).ravel()
    noise = np.linalg.norm(expected - actual.astype(np.float64).ravel())
    signal = np.linalg.norm(expected)
    if not noise or not signal or not math.isfinite(noise / signal):
        return None
    return round(20 * math.log10(signal / noise), 2)
