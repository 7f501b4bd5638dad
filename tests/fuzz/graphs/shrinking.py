"""The smallest part of a random model in which a level still goes wrong."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnxruntime as ort
from onnx import helper

from epctx.graph.serde import protos
from tests.fuzz.graphs.drawing import run
from tests.fuzz.graphs.levels import difference, explanation
from tests.fuzz.graphs.models import RandomModel

Goes = Callable[[onnx.ModelProto, dict[str, ort.OrtValue]], bool]


def shrunk(random: RandomModel, level: str) -> tuple[onnx.ModelProto, dict[str, ort.OrtValue]]:
    """A part of the model that `level` changes without an explanation, and what feeds it.

    Nodes of the main graph are left out one after the other: what they make is fed instead.
    """

    def wrong(model: onnx.ModelProto, feeds: dict[str, ort.OrtValue]) -> bool:
        try:
            found = difference(model, feeds, level)
            return found is not None and explanation(model, feeds, level) is None
        except Exception:  # the source itself does not run
            return False

    feeds = dict(random.feeds)
    model = _without_outputs(random.proto, feeds, wrong)
    known = _everything(model, feeds)
    for node in list(model.graph.node):
        smaller = _without_node(model, node, known)
        if smaller is None:
            continue
        more = feeds | {name: known[name] for name in node.output if name}
        if wrong(smaller, more):
            model, feeds = smaller, more
    return _tidy(model), feeds


def _without_outputs(
    model: onnx.ModelProto, feeds: dict[str, ort.OrtValue], wrong: Goes
) -> onnx.ModelProto:
    for info in model.graph.output:
        one = onnx.ModelProto()
        one.CopyFrom(model)
        del one.graph.output[:]
        one.graph.output.append(info)
        if wrong(one := _tidy(one), feeds):
            return one
    return _tidy(model)


def _without_node(
    model: onnx.ModelProto, node: onnx.NodeProto, known: dict[str, ort.OrtValue]
) -> onnx.ModelProto | None:
    if any(name and name not in known for name in node.output):
        return None
    smaller = onnx.ModelProto()
    smaller.CopyFrom(model)
    smaller.graph.node.remove(node)
    for name in node.output:
        value = known[name]
        if not value.is_tensor():
            return None
        info = helper.make_tensor_value_info(name, value.element_type(), value.shape())
        if name in {each.name for each in smaller.graph.output}:
            return None
        smaller.graph.input.append(info)
    return _tidy(smaller)


def _everything(model: onnx.ModelProto, feeds: dict[str, ort.OrtValue]) -> dict[str, ort.OrtValue]:
    """The values of all names that nodes of the main graph make."""
    names = [name for node in model.graph.node for name in node.output if name]
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    del whole.graph.output[:]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return dict(zip(names, run(whole, _of(whole, feeds)), strict=True))


def _of(model: onnx.ModelProto, feeds: dict[str, ort.OrtValue]) -> dict[str, ort.OrtValue]:
    return {value.name: feeds[value.name] for value in model.graph.input}


def _tidy(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without what no output needs; inputs that nothing reads too."""
    needed = {info.name for info in model.graph.output}
    kept: list[onnx.NodeProto] = []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            kept.insert(0, node)
            needed |= set(node.input)
            for body in protos.subgraphs(node):
                for graph in protos.nested(body):
                    needed |= {name for inner in graph.node for name in inner.input}
                    needed |= {info.name for info in graph.output}
    tidy = onnx.ModelProto()
    tidy.CopyFrom(model)
    graph = tidy.graph
    weights = [tensor for tensor in graph.initializer if tensor.name in needed]
    inputs = [info for info in graph.input if info.name in needed]
    for field, items in ((graph.node, kept), (graph.initializer, weights), (graph.input, inputs)):
        del field[:]
        field.extend(items)
    return tidy
