"""Headroom: values of a source near or beyond the largest number of the type its EP computes in.

An NPU that computes float32 in float16 ends at 65504. Values inside a model pass that limit long
before its outputs do. So the source runs once more during the compile, with the largest magnitudes
of its values as outputs: 0.4 s for a ResNet-50 (onnxruntime 1.32.0).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

import numpy as np
import onnx
import onnxruntime as ort
from onnx import parser

from epctx.graph.epcontext import is_epcontext
from epctx.graph.inputs import Array
from epctx.graph.serde import protos, reader
from epctx.inference.feeds import Feeds
from epctx.manifest import ModelSource
from epctx.providers.base import FLOAT16_MAX
from epctx.verification.numbers import sessions

_NEAR: Final = 100.0
_LISTED: Final = 3
_LOWEST: Final = 3.4e38  # values beyond are always masks: the lowest float32, and infinity
_SMALLER: Final = "scale them down in the model, or exclude their nodes with `partition.exclude`"
_FLOATS: Final = tuple(f"tensor({kind})" for kind in ("float", "float16", "bfloat16", "double"))
_MAGNITUDES: Final = """(value) => (most, least, rest) {
  floats = Cast <to = 1> (value)  all = Abs (floats)
  most = ReduceMax <keepdims = 0> (all)  least = ReduceMin <keepdims = 0> (all)
  end = Constant <value = float {3.4028235e38}> ()  finite = Min (all, end)  top = Min (most, end)
  shares = Div (finite, top)  keep = HardSigmoid <alpha = -1e9, beta = 1.25e8> (shares)
  others = Mul (shares, keep)  rest = ReduceMax <keepdims = 0> (others)
}"""
"""Body of a function: the largest and the least magnitude, and the largest magnitude below an
eighth of the largest, as a share of the largest. With `Where` it takes five times as long
(onnxruntime 1.32.0).
"""


def notes(
    source: ModelSource, compiled: onnx.ModelProto, measured: Mapping[str, Array], end: float
) -> Iterator[tuple[str, str]]:
    """Yield messages and remedies about values near or beyond the largest number `end`.

    Args:
        measured: result of `measure`.
        end: largest number of the type that the EP computes in.

    Raises:
        ModelError: the source cannot be read.
    """
    reached: dict[str, float] = {}
    masks: dict[str, float] = {}
    not_computed = _not_computed(reader.read(source.path), compiled)
    for name, magnitudes in measured.items():
        if name in not_computed:
            continue
        most, least, rest = map(float, magnitudes)
        # The elements of a mask are of similar size, and far above all others.
        is_mask = most > _LOWEST or (most >= 4096 and 8 * least < most and 128 * rest < 1)
        masks[name], reached[name] = (most, min(most, _LOWEST) * rest) if is_mask else (0.0, most)
    kind = "float16" if end == FLOAT16_MAX else "the type that the EP computes in"
    over = {name: most for name, most in reached.items() if most > end}
    near = {name: most for name, most in reached.items() if end / _NEAR <= most <= end}
    beyond = {name: most for name, most in masks.items() if end < most < math.inf}
    if over:
        yield f"overflows {kind}, which ends at {end:g}: {_listed(over)}", _SMALLER
    if near:
        yield f"{_listed(near)}; {kind} ends at {end:g}, {end / max(near.values()):.3g} x more", ""
    if beyond:
        yield f"masks beyond {kind} saturate at {end:g}, which masks as well: {_listed(beyond)}", ""


def _listed(values: Mapping[str, float]) -> str:
    largest = sorted(values, key=lambda name: -values[name])[:_LISTED]
    more = f" and {len(values) - _LISTED} more" if len(values) > _LISTED else ""
    return ", ".join(f"'{name}' reaches {values[name]:.2g}" for name in largest) + more


def _not_computed(model: onnx.ModelProto, compiled: onnx.ModelProto) -> set[str]:
    """Return values that EPs do not compute: those of the default EP, and dequantized values."""
    names = set[str]()
    for node in protos.nodes(model):
        names.update(node.output if node.op_type == "DequantizeLinear" else ())
    for node in compiled.graph.node:  # values that the default EP alone computes stay float32
        names.update(() if is_epcontext(node) else node.output)
    for node in filter(is_epcontext, compiled.graph.node):
        names.difference_update(node.input)
    return names


def _values(model: onnx.ModelProto, feeds: Feeds) -> list[str]:
    """Return the values that depend on inputs and are used by more than a QuantizeLinear."""
    names = dict.fromkeys(feeds)
    for node in model.graph.node:
        read = {"Shape": 0, "Size": 0, "CastLike": 1}.get(node.op_type)  # inputs whose values count
        if not names.keys().isdisjoint(node.input[:read]):
            names.update(dict.fromkeys(node.output))
    used = {value.name for value in model.graph.output}
    for node in protos.nodes(model):
        used.update(node.input if node.op_type != "QuantizeLinear" else ())
    return [name for name in names if name in used]


def measure(source: ModelSource, feeds: Feeds) -> dict[str, Array]:
    """Run a source once more, and return three magnitudes of each of its values, by name: the
    largest, the least, and the largest below an eighth of the largest, as a share of the largest.

    Raises what ONNX Runtime raises.
    """
    level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    open_ = partial(sessions.open_source, source, spins=False, prepacks=False, level=level)
    model = sessions.mapped(source)
    graph, names = model.graph, _values(model, feeds)
    outputs, declared = len(graph.output), {each.name for each in (*graph.input, *graph.output)}
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in declared)
    typed = open_(changed=model.SerializeToString())
    kinds = {value.name: value.type for value in (*typed.get_inputs(), *typed.get_outputs())}
    del graph.output[outputs:], typed
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 17)
    head = f'<domain: "epctx", opset_import: ["": {opset}]> magnitudes'
    model.functions.append(parser.parse_function(head + _MAGNITUDES))
    model.opset_import.add(domain="epctx", version=1)
    model.ir_version = max(model.ir_version, 8)
    measures = {n: [f"epctx {n} {i}" for i in range(3)] for n in names if kinds[n] in _FLOATS}
    for name, own in measures.items():
        graph.node.add(op_type="magnitudes", domain="epctx", input=[name], output=own)
        graph.output.extend(onnx.ValueInfoProto(name=each) for each in own)
    results = sessions.run_source(open_(changed=model.SerializeToString()), feeds)
    return {name: np.array([float(results[e]) for e in own]) for name, own in measures.items()}
