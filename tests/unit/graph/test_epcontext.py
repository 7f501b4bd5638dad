"""The EPContext op as a type: every attribute of the spec's schema, written and read."""

from __future__ import annotations

import logging
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from epctx.errors import InvalidGraph
from epctx.graph.epcontext import PIECES, Cuts, EPContextNode, cuts, is_epcontext, read_all
from tests.kit import onnx_text

EVERY_ATTRIBUTE = EPContextNode(
    name="p_model_reference_0",
    inputs=("x", ""),
    outputs=("y",),
    main_context=1,
    ep_cache_context=b"\xff\x00\xfepayload",
    embed_mode=1,
    ep_sdk_version="1.2.3",
    onnx_model_filename="model.onnx",
    hardware_architecture="generic",
    partition_name="p_model_reference_0",
    source="reference",
    notes="hello",
    max_size=4096,
)


def proto(**attributes: Any) -> onnx.NodeProto:
    return helper.make_node(
        "EPContext", ["x"], ["y"], name="n", domain="com.microsoft", **attributes
    )


def as_ir(node: EPContextNode) -> ir.Node:
    inputs = [ir.Value(name=name) if name else None for name in node.inputs]
    outputs = [
        ir.Value(name=name, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.FLOAT))
        for name in node.outputs
    ]
    return node.to_ir(inputs, outputs)


def test_every_attribute_survives_onnx_ir_and_protobuf() -> None:
    node = as_ir(EVERY_ATTRIBUTE)
    assert EPContextNode.from_ir(node) == EVERY_ATTRIBUTE
    stored = onnx.NodeProto.FromString(ir.to_proto(node).SerializeToString())
    assert EPContextNode.from_proto(stored) == EVERY_ATTRIBUTE
    assert EPContextNode.from_ir(ir.from_proto(stored)) == EVERY_ATTRIBUTE
    names = [attribute.name for attribute in stored.attribute]
    assert names == sorted(names) and len(names) == 10


def test_a_binary_payload_is_written_and_read_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        ir.from_proto(
            onnx.NodeProto.FromString(ir.to_proto(as_ir(EVERY_ATTRIBUTE)).SerializeToString())
        )
        other = helper.make_node("Other", ["x"], ["y"], domain="d", text=b"\xff")
        ir.from_proto(other)
    about_text = [r.args for r in caplog.records if "invalid UTF-8" in r.getMessage()]
    assert about_text == [("text",)]


def test_absent_attributes_get_the_defaults_of_the_op_schema() -> None:
    node = EPContextNode.from_proto(proto())
    assert (node.embed_mode, node.main_context, node.max_size) == (1, 1, 0)
    assert node.ep_cache_context is None and node.source is None and node.partition_name is None


def test_main_context_and_embed_mode_are_written_even_at_their_defaults() -> None:
    node = EPContextNode(name="n", inputs=(), outputs=("y",))
    assert {attribute.name for attribute in node.attributes()} == {"embed_mode", "main_context"}


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"main_context": 2}, "2 is neither 0 nor 1"),
        ({"main_context": -1}, "-1 is neither 0 nor 1"),
        ({"embed_mode": 5}, "5 is neither 0 nor 1"),
        ({"max_size": -1}, "-1 is not a size in bytes"),
        ({"max_size": "1"}, "it is STRING, not INT"),
        ({"main_context": 1.0}, "it is FLOAT, not INT"),
        ({"source": 1}, "it is INT, not STRING"),
        ({"ep_cache_context": [b"a"]}, "it is STRINGS, not STRING"),
        ({"notes": b"\xff"}, "it is not UTF-8 text"),
    ],
)
def test_an_attribute_outside_the_schema_is_an_invalid_graph(
    attributes: dict[str, object], message: str
) -> None:
    node = proto(**attributes)
    with pytest.raises(InvalidGraph, match=message) as raised:
        EPContextNode.from_proto(node)
    assert str(raised.value).startswith("INVALID_GRAPH: node 'n': attribute ")
    with pytest.raises(InvalidGraph, match=message):
        EPContextNode.from_ir(ir.serde.deserialize_node(node))


def test_a_reference_or_a_repeated_attribute_is_an_invalid_graph() -> None:
    node = proto(source="a")
    node.attribute.append(node.attribute[0])
    with pytest.raises(InvalidGraph, match="given twice"):
        EPContextNode.from_proto(node)
    node = proto(source="a")
    node.attribute[0].ref_attr_name = "outer"
    with pytest.raises(InvalidGraph, match="a reference"):
        EPContextNode.from_proto(node)


def test_attributes_outside_the_schema_are_named_and_not_written() -> None:
    node = EPContextNode.from_proto(proto(io_name_overrides="x", source="QNN"))
    assert tuple(node.unknown) == ("io_name_overrides",)
    assert "io_name_overrides" not in {attribute.name for attribute in node.attributes()}


def test_context_path_is_a_path_only_of_a_primary_node_outside_embed_mode() -> None:
    def path(**attributes: Any) -> str | None:
        return EPContextNode.from_proto(proto(**attributes)).context_path

    assert path(embed_mode=0, ep_cache_context="sub/a.bin") == "sub/a.bin"
    assert path(embed_mode=1, ep_cache_context="sub/a.bin") is None
    assert path(embed_mode=0, main_context=0, ep_cache_context="sub/a.bin") is None
    assert path(embed_mode=0) is None
    with pytest.raises(InvalidGraph, match="not UTF-8"):
        path(embed_mode=0, ep_cache_context=b"\xff")


def test_to_ir_refuses_edges_of_another_node() -> None:
    with pytest.raises(ValueError, match="edges"):
        EVERY_ATTRIBUTE.to_ir([], [ir.Value(name="y")])


def test_read_all_finds_only_epcontext_nodes_of_the_domain() -> None:
    other = helper.make_node("EPContext", ["y"], ["z"], name="other", domain="elsewhere")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [proto(source="a"), other],
        "g",
        [value("x", onnx.TensorProto.FLOAT, [1])],
        [value("z", onnx.TensorProto.FLOAT, [1])],
    )
    model = helper.make_model(graph)
    assert [node.name for node in read_all(model)] == ["n"]
    assert read_all(ir.from_proto(model)) == read_all(model)
    assert not is_epcontext(other)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (None, None),
        ('[["a", "b"], ["b"]]', (("a", "b"), ("b",))),
        ("[]", ()),
        ('[["a"], ["x"]]', None),
        ('[["w"]]', None),
        ('[["gone"]]', None),
        ('["a"]', None),
        ('[["a"]', None),
        ("\x00", None),
    ],
)
def test_cuts_are_read_if_they_name_values_of_the_model(
    written: str | None, expected: Cuts | None
) -> None:
    model = onnx_text.proto(
        "g (float[1] x) => (float[1] y) <float[1] w = {1}> { a = Relu(x) b = Add(a, w) y = Abs(b) }"
    )
    if written is not None:
        model.metadata_props.add(key=PIECES, value=written)
    assert cuts(model) == expected
