"""Differences between two models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import ModelError
from epctx.graph import diff

Change = Callable[[onnx.ModelProto], object]


def model() -> onnx.ModelProto:
    """An EPContext node, an If with a branch, a large and a small weight."""
    value = helper.make_tensor_value_info
    context = helper.make_node(
        "EPContext", ["x"], ["c"], name="ctx", domain="com.microsoft",
        main_context=1, embed_mode=1, ep_cache_context=b"\x00\x01" * 4096, ep_sdk_version="2.51",
    )  # fmt: skip
    branch = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["i"], name="inner")],
        "then",
        [],
        [value("i", TensorProto.FLOAT, [4])],
    )
    nodes = [
        context,
        helper.make_node("If", ["flag"], ["b"], name="if", then_branch=branch, else_branch=branch),
        helper.make_node("Add", ["b", "large"], ["a"], name="add"),
        helper.make_node("LeakyRelu", ["a"], ["y"], name="relu", alpha=0.5),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [4]), value("flag", TensorProto.BOOL, [])],
        [value("y", TensorProto.FLOAT, [2048])],
        [
            numpy_helper.from_array(np.zeros(2048, np.float32), "large"),
            helper.make_tensor("small", TensorProto.FLOAT, [2], [1.0, 2.0]),
        ],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="epctx")
    helper.set_model_props(made, {"ep_compatibility_info.QNN": "v1"})
    return made


def between(tmp_path: Path, change: Change) -> list[diff.GraphDifference]:
    old, new = tmp_path / "old.onnx", tmp_path / "new.onnx"
    proto = model()
    onnx.save(proto, old)
    change(proto)
    new.write_bytes(proto.SerializeToString())
    return list(diff.between(old, new))


def node(proto: onnx.ModelProto, name: str) -> onnx.NodeProto:
    found: onnx.NodeProto = next(each for each in proto.graph.node if each.name == name)
    return found


def attribute(proto: onnx.ModelProto, of: str, name: str) -> onnx.AttributeProto:
    attributes = node(proto, of).attribute
    found: onnx.AttributeProto = next(each for each in attributes if each.name == name)
    return found


def payload(proto: onnx.ModelProto) -> None:
    found = attribute(proto, "ctx", "ep_cache_context")
    found.s = found.s[:100] + b"X" + found.s[101:]


def weight(proto: onnx.ModelProto) -> None:
    found = proto.graph.initializer[0]
    found.raw_data = found.raw_data[:5000] + b"X" + found.raw_data[5001:]


def moved_out(proto: onnx.ModelProto) -> None:
    found = proto.graph.initializer[0]
    found.ClearField("raw_data")
    found.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.data"), ("offset", "0"), ("length", "8192")):
        found.external_data.add(key=key, value=value)


def turned(proto: onnx.ModelProto) -> None:
    inputs = [proto.graph.input[1], proto.graph.input[0]]
    copies = [onnx.ValueInfoProto.FromString(each.SerializeToString()) for each in inputs]
    del proto.graph.input[:]
    proto.graph.input.extend(copies)


def branched(proto: onnx.ModelProto) -> None:
    attribute(proto, "if", "then_branch").g.node[0].op_type = "Neg"


CHANGES: list[tuple[Change, str, str]] = [
    (lambda m: setattr(m, "producer_name", "x"), "metadata", "producer_name: epctx is now x"),
    (lambda m: setattr(m.graph, "name", "h"), "metadata", "graph: g is now h"),
    (
        lambda m: setattr(m.metadata_props[0], "value", "v2"),
        "metadata",
        "metadata ep_compatibility_info.QNN: v1 is now v2",
    ),
    (
        lambda m: node(m, "add").metadata_props.add(key="k", value="v"),
        "metadata",
        "node 'add' (Add): metadata k: v is new",
    ),
    (lambda m: setattr(m, "ir_version", 11), "model", "IR version: 10 is now 11"),
    (
        lambda m: setattr(m.opset_import[0], "version", 22),
        "model",
        "opset ai.onnx: 21 is now 22",
    ),
    (
        lambda m: setattr(m.graph.output[0].type.tensor_type, "elem_type", TensorProto.DOUBLE),
        "model",
        "output 'y': float32[2048] is now float64[2048]",
    ),
    (turned, "model", "order of inputs: ['x', 'flag'] is now ['flag', 'x']"),
    (lambda m: m.graph.node.pop(), "node", "node 'relu' (LeakyRelu): is gone"),
    (
        lambda m: node(m, "add").input.__setitem__(1, "small"),
        "node",
        "node 'add' (Add): inputs ['b', 'large'] is now ['b', 'small']",
    ),
    (branched, "node", "node 'if' (If): attribute then_branch: node 'inner' (Neg): op :Identity"),
    (
        lambda m: setattr(attribute(m, "ctx", "ep_sdk_version"), "s", b"2.52"),
        "attribute",
        "node 'ctx' (EPContext): attribute ep_sdk_version: 2.51 is now 2.52",
    ),
    (
        payload,
        "attribute",
        "attribute ep_cache_context: byte 100 of 8,192 is the first of 1 that differ",
    ),
    (
        lambda m: setattr(attribute(m, "relu", "alpha"), "f", 0.25),
        "attribute",
        "attribute alpha: 0.5 is now 0.25",
    ),
    (weight, "tensor", "tensor 'large': byte 5,000 of 8,192 is the first of 1 that differ"),
    (
        lambda m: m.graph.initializer[1].float_data.__setitem__(0, 3.0),
        "tensor",
        "tensor 'small': has other values",
    ),
    (
        lambda m: m.graph.initializer[1].dims.__setitem__(0, 1),
        "tensor",
        "tensor 'small': float[2] is now float[1]",
    ),
    (lambda m: m.graph.initializer.pop(), "tensor", "tensor 'small': is gone"),
    (moved_out, "tensor", "tensor 'large': inside the model is now in w.data at 0+8192"),
]


@pytest.mark.parametrize(("change", "part", "told"), CHANGES, ids=[told for _, _, told in CHANGES])
def test_one_change_is_one_difference(tmp_path: Path, change: Change, part: str, told: str) -> None:
    (found,) = between(tmp_path, change)
    assert found.part == part
    assert told in str(found)


def test_the_same_model_in_another_order_does_not_differ(tmp_path: Path) -> None:
    def turn(proto: onnx.ModelProto) -> None:
        found = [
            onnx.TensorProto.FromString(w.SerializeToString()) for w in proto.graph.initializer
        ]
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(reversed(found))

    assert between(tmp_path, turn) == []


def test_what_is_no_model(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(ModelError, match="JSON"):
        diff.between(tmp_path / "a", tmp_path / "b")
