"""Quantizing in pieces: one piece is open at a time, and the pieces are joined again.

onnxruntime's tools hold a model several times in memory. So a model that is compiled in
pieces is quantized in pieces, too. Values that cross from a piece to the next lie on disk while it
is calibrated. A later piece takes them with the scale that the earlier one gives them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import numpy_helper
from onnxruntime.quantization.operators.activation import QDQRemovableActivation
from onnxruntime.quantization.operators.direct_q8 import QDQDirect8BitOp
from onnxruntime.quantization.operators.gather import QDQGather
from onnxruntime.quantization.operators.pad import QDQPad
from onnxruntime.quantization.operators.split import QDQSplit
from onnxruntime.quantization.operators.where import QDQWhere
from onnxruntime.quantization.registry import QDQRegistry

from epctx.files.digest import Digest
from epctx.graph import uses
from epctx.graph.model import Partition, Replacement
from epctx.graph.partition import pieces, surgery
from epctx.graph.partition.layout import Layout
from epctx.graph.serde import canonical
from epctx.graph.weights.tensors import content_digest, kind_and_count
from epctx.inference.feeds import Feeds
from epctx.manifest import CompileMemory, Pieces
from epctx.quantization.presets import TYPES, Override
from epctx.quantization.samples import Samples

MEMORY: Final = CompileMemory(
    measured_on="onnxruntime 1.32.0",
    base=300_000_000,
    first={"float": 20.0, "integer": 0.0, "4-bit": 0.0},
    further={},
)
"""Memory that quantizing a model takes, calibration included: a piece of 263 million weights of a
decoder took 5.2 GB.
"""
_FOLLOWING: Final = frozenset(
    op
    for op, kind in QDQRegistry.items()
    if issubclass(
        kind, (QDQDirect8BitOp, QDQGather, QDQPad, QDQRemovableActivation, QDQSplit, QDQWhere)
    )
)
"""Op types that onnxruntime quantizes if the node that makes their input is quantized, or that it
fuses with this node.
"""


def cut(model: ir.Model, settings: Pieces | None) -> list[Partition]:
    """Return the pieces in which a float model is quantized; none if it is quantized whole. The
    model's nodes are put in the order of the pieces.

    `count` and `at` give as many pieces as for the compile. `max_memory` gives as many pieces as
    keep to it, as far as the model can be cut.
    """
    if settings is None:
        return []
    count = settings.count or len(settings.at) + 1
    if settings.max_memory is not None:
        room = max(settings.max_memory - MEMORY.base, 1)
        needed = sum(map(_memory, model.graph.initializers.values()))
        count = math.ceil(needed / room)
    count = min(count, len(Layout(model, _FOLLOWING).candidates) + 1)
    if count < 2:
        return []
    plan = pieces.choose(
        {"": model}, base=MEMORY.base, cost=_memory, count=count, following=_FOLLOWING
    )
    return pieces.divide(model, plan[""])


def _memory(weight: ir.Value) -> int:
    kind, count = kind_and_count(weight)
    return MEMORY.of([{kind: count}]) - MEMORY.base


class Crossing:
    """Values that cross from pieces of a float model to later ones, on disk, for each sample.

    Args:
        samples: samples of the whole model.
        folder: folder for the values; it need not exist.
    """

    def __init__(self, samples: Samples, folder: Path) -> None:
        self._samples = samples
        self._folder = folder
        self._names: dict[str, int] = {}

    def samples(self, piece: Path) -> Samples:
        """Return the samples of a piece, after earlier pieces have run."""
        names, count = inputs(piece), len(self._samples)
        return Samples([partial(self._feeds, number, names) for number in range(count)])

    def run(self, piece: Path, wanted: Collection[str]) -> None:
        """Run a piece on its samples, and keep the wanted ones of its outputs."""
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(piece, options, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_outputs() if each.name in wanted]
        samples = self.samples(piece)
        for number in range(len(samples)):
            place = self._folder / str(number)
            place.mkdir(parents=True, exist_ok=True)
            for name, value in zip(names, session.run(names, samples.feeds(number)), strict=True):
                index = self._names.setdefault(name, len(self._names))
                np.save(place / f"{index}.npy", value)

    def _feeds(self, number: int, names: Iterable[str]) -> Feeds:
        model_inputs = self._samples.feeds(number)
        return {
            name: np.load(self._folder / str(number) / f"{self._names[name]}.npy")
            if name in self._names
            else model_inputs[name]
            for name in names
        }


def inputs(piece: Path) -> list[str]:
    """Return the names of a piece's inputs."""
    return [value.name for value in onnx.load(piece, load_external_data=False).graph.input]


def overrides(output: Path, names: Collection[str]) -> dict[str, Override]:
    """Return scales, zero points and types of outputs of a quantized piece, as overrides for later
    pieces.
    """
    graph = onnx.load(output, load_external_data=False).graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    types = {int(each.tensor_type): each for each in TYPES.values()}
    result: dict[str, Override] = {}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.output[0] in names:
            scale, zero = (tensors[name] for name in node.input[1:])
            result[node.output[0]] = {
                "quant_type": types[zero.data_type],
                "scale": numpy_helper.to_array(scale),
                "zero_point": numpy_helper.to_array(zero),
            }
    return result


def join(model: ir.Model, parts: Sequence[Partition], quantized: Sequence[Path]) -> None:
    """Put the quantized pieces into the model that was cut; crossing values are quantized once."""
    fragments = [canonical.read_mapped(each) for each in quantized]
    for each in fragments:
        each.graph.sort()  # the tools do not look into bodies
    model.opset_imports[""] = fragments[0].opset_imports[""]  # the tools may convert a model
    surgery.splice(
        model,
        [Replacement(partition=p, fragment=f) for p, f in zip(parts, fragments, strict=True)],
    )
    for node in list(model.graph):
        if node.op_type != "DequantizeLinear":
            continue
        value = node.outputs[0]
        for user in [user for user, _ in value.uses() if user.op_type == "QuantizeLinear"]:
            if None not in _parameters(node) and _parameters(user) == _parameters(node):
                assert node.inputs[0] is not None
                uses.replace_all(user.outputs[0], node.inputs[0])
                uses.remove(user)
        if not value.uses() and not value.is_graph_output():
            uses.remove(node)


def _parameters(node: ir.Node) -> list[Digest | None]:
    """Return digests of a node's scale and zero point; None for a computed one."""
    tensors = [None if value is None else value.const_value for value in node.inputs[1:]]
    return [None if tensor is None else content_digest(tensor) for tensor in tensors]
