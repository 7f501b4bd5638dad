from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from epctx.graph.serde import wire

LOCATION = "elsewhere"
BIG = np.arange(300, dtype=np.float32)
SMALL = np.arange(3, dtype=np.float32)


def _tensor(name: str, values: np.ndarray = BIG) -> onnx.TensorProto:
    return numpy_helper.from_array(values, name)


def _graph(name: str, *nodes: onnx.NodeProto, weights: tuple[str, ...] = ()) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [], [_tensor(each) for each in weights])


def _model(graph: onnx.GraphProto, *functions: onnx.FunctionProto) -> onnx.ModelProto:
    return helper.make_model(graph, functions=functions)


def _strip(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[bytes]]:
    data = model.SerializeToString()
    stripped, spans = wire.strip(memoryview(data), threshold=1000, location=LOCATION)
    found = [data[span.offset : span.offset + span.length] for span in spans]
    return onnx.ModelProto.FromString(stripped), found


def _index(tensor: onnx.TensorProto) -> int:
    assert tensor.data_location == onnx.TensorProto.EXTERNAL
    assert not tensor.HasField("raw_data")
    keys = {entry.key: entry.value for entry in tensor.external_data}
    assert keys.keys() == {"location", "offset"}
    assert keys["location"] == LOCATION
    return int(keys["offset"])


def test_large_raw_data_is_left_out_wherever_it_stands() -> None:
    inner = _graph("inner", helper.make_node("Constant", [], ["c"], value=_tensor("c")))
    outer = _graph("outer", helper.make_node("If", ["p"], ["o"], then_branch=inner), weights=("s",))
    both = helper.make_node("Both", [], ["l"], each=[_tensor("l0"), _tensor("l1")], g=[outer])
    function = helper.make_function(
        "d", "f", [], ["k"], [helper.make_node("Constant", [], ["k"], value=_tensor("k"))], []
    )
    function.attribute_proto.append(helper.make_attribute("default", _tensor("default")))
    model = _model(_graph("main", both, weights=("a", "b")), function)

    stripped, found = _strip(model)

    node = stripped.graph.node[0]
    body = next(attribute for attribute in node.attribute if attribute.name == "g").graphs[0]
    branch = body.node[0].attribute[0].g
    each = next(attribute for attribute in node.attribute if attribute.name == "each").tensors
    tensors = [
        *stripped.graph.initializer,
        *each,
        *body.initializer,
        branch.node[0].attribute[0].t,
        stripped.functions[0].node[0].attribute[0].t,
        stripped.functions[0].attribute_proto[0].t,
    ]
    assert sorted(_index(tensor) for tensor in tensors) == list(range(len(found))) == [*range(8)]
    assert all(raw == BIG.tobytes() for raw in found)
    assert [tensor.name for tensor in tensors] == ["a", "b", "l0", "l1", "s", "c", "k", "default"]
    assert stripped.ByteSize() < 1000


def test_what_is_small_stays_bit_for_bit() -> None:
    graph = _graph("g", helper.make_node("Relu", ["x"], ["y"], name="n"))
    graph.initializer.append(_tensor("small", SMALL))
    graph.initializer.append(helper.make_tensor("typed", 1, [2000], np.zeros(2000)))
    model = _model(graph)
    stripped, found = _strip(model)
    assert stripped == model
    assert found == []


def test_the_rest_of_a_stripped_model_stays() -> None:
    model = _model(_graph("g", helper.make_node("Relu", ["w"], ["y"], name="n"), weights=("w",)))
    model.metadata_props.add(key="k", value="v")
    stripped, (raw,) = _strip(model)
    tensor = stripped.graph.initializer[0]
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = raw
    assert stripped == model


def test_unknown_fields_are_kept() -> None:
    data = _model(_graph("g", weights=("w",))).SerializeToString()
    unknown = b"\xa2\x06\x03abc" + b"\xa8\x06\x05" + b"\xb5\x06abcd" + b"\xb9\x06abcdefgh"
    stripped, spans = wire.strip(memoryview(data + unknown), threshold=1000, location=LOCATION)
    assert len(spans) == 1
    assert stripped.endswith(unknown)


def test_of_raw_data_given_twice_the_last_counts() -> None:
    data = _model(_graph("g", weights=("w",)))
    tensor = data.graph.initializer[0].SerializeToString()
    other = (BIG + 1).tobytes()
    twice = tensor + onnx.TensorProto(raw_data=other).SerializeToString()
    graph = wire.embedded(7, wire.embedded(5, twice))
    stripped, (span,) = wire.strip(memoryview(graph), threshold=1000, location=LOCATION)
    assert graph[span.offset : span.offset + span.length] == other
    assert not onnx.ModelProto.FromString(stripped).graph.initializer[0].HasField("raw_data")


def test_a_tensor_with_a_location_of_its_own_is_left_alone() -> None:
    model = _model(_graph("g", weights=("w",)))
    model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    stripped, found = _strip(model)
    assert stripped == model
    assert found == []


def test_a_graph_in_two_pieces_is_merged_as_protobuf_does() -> None:
    pieces = [
        onnx.ModelProto(graph=_graph("g", weights=(name,))).SerializeToString() for name in "ab"
    ]
    data = b"".join(pieces)
    stripped, spans = wire.strip(memoryview(data), threshold=1000, location=LOCATION)
    merged = onnx.ModelProto.FromString(stripped)
    assert [_index(tensor) for tensor in merged.graph.initializer] == [0, 1]
    assert len(spans) == 2


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_file_cut_short_anywhere_is_malformed_or_not_parsed(cut: int) -> None:
    graph = _graph("g", helper.make_node("Relu", ["w"], ["y"], name="n"), weights=("w", "v"))
    data = onnx.ModelProto(ir_version=8, graph=graph).SerializeToString()
    short = memoryview(data)[: cut * len(data) // 60]
    with pytest.raises(wire.Malformed, match="cut short"):
        wire.strip(short, threshold=1000, location=LOCATION)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01",  # field number 0
        b"\x3b",  # a group
        b"\x3f\x00",  # wire type 7
        b"\x08" + b"\xff" * 11,  # a varint without end
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a length beyond the file
    ],
)
def test_what_is_no_protobuf_is_malformed(data: bytes) -> None:
    with pytest.raises(wire.Malformed):
        wire.strip(memoryview(data), threshold=0, location=LOCATION)


def test_nesting_is_bounded() -> None:
    data = bytes(64)
    for _ in range(200):  # graph > node > attribute > graph > ...
        data = wire.embedded(1, wire.embedded(5, wire.embedded(6, data)))
    with pytest.raises(wire.Malformed, match="nests"):
        wire.strip(memoryview(wire.embedded(7, data)), threshold=1, location=LOCATION)


def test_a_message_knows_its_size_and_holds_no_payload() -> None:
    produced = []

    def chunks() -> list[bytes]:
        produced.append(1)
        return [b"x" * 70_000, b"y" * 30_000]

    inner = wire.Message()
    inner.field(9, wire.Payload(100_000, chunks))
    message = wire.Message()
    message.encoded(onnx.TensorProto(name="w").SerializeToString())
    message.field(6, inner)
    assert not produced
    encoded = list(message.chunks())
    assert sum(map(len, encoded)) == message.size
    assert len(encoded) == 3
    assert onnx.AttributeProto.FromString(b"".join(encoded)[3:]).g  # parses
    assert b"".join(message.chunks()) == b"".join(encoded)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 2**21])
def test_embedded_lengths_are_those_of_protobuf(size: int) -> None:
    raw = bytes(size)
    tensor = onnx.TensorProto(raw_data=raw)
    assert wire.embedded(9, raw) == tensor.SerializeToString()
