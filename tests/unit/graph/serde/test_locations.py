"""Where a model's external data is: the same as onnx's own reader finds, whatever the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from epctx.errors import ModelError
from epctx.graph.serde import locations, reader, wire
from tests.kit.building import mlp

MESSAGES = {*locations._INNER, "TensorProto"}


@pytest.mark.parametrize("message", locations._INNER)
def test_every_field_that_may_hold_tensors_is_looked_into(message: str) -> None:
    fields = getattr(onnx, message).DESCRIPTOR.fields
    assert locations._INNER[message] == {
        field.number: field.message_type.name
        for field in fields
        if field.message_type is not None and field.message_type.name in MESSAGES
    }


def external(location: str) -> TensorProto:
    tensor = TensorProto(name=location, data_type=1, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="length", value="4")
    tensor.external_data.add(key="location", value=location)
    return tensor


def in_an_initializer(model: onnx.ModelProto, tensor: TensorProto) -> None:
    model.graph.initializer.append(tensor)


def in_a_sparse_one(model: onnx.ModelProto, tensor: TensorProto) -> None:
    model.graph.sparse_initializer.add().values.CopyFrom(tensor)


def in_an_attribute(model: onnx.ModelProto, tensor: TensorProto) -> None:
    model.graph.node.append(helper.make_node("Constant", [], ["c"], value=tensor))


def in_a_body(model: onnx.ModelProto, tensor: TensorProto) -> None:
    body = helper.make_graph([], "body", [], [], [tensor])
    model.graph.node.append(helper.make_node("Loop", ["n", "c"], [], body=body))


def in_a_function(model: onnx.ModelProto, tensor: TensorProto) -> None:
    node = helper.make_node("Constant", [], ["c"], value=tensor)
    model.functions.append(helper.make_function("d", "F", [], ["c"], [node], []))


PLACES = [in_an_initializer, in_a_sparse_one, in_an_attribute, in_a_body, in_a_function]


@pytest.mark.parametrize("place", PLACES)
def test_it_is_found_wherever_a_tensor_may_be(
    place: Callable[[onnx.ModelProto, TensorProto], None], tmp_path: Path
) -> None:
    model = mlp()
    place(model, external("sub/w.data"))
    place(model, external("a.data"))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert locations.of(tmp_path / "m.onnx") == ("a.data", "sub/w.data")


def test_what_an_attribute_of_another_type_holds_does_not_count(tmp_path: Path) -> None:
    model = mlp()
    node = helper.make_node("Constant", [], ["c"], value=external("a.data"))
    node.attribute[0].type = onnx.AttributeProto.FLOAT
    model.graph.node.append(node)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert locations.of(tmp_path / "m.onnx") == ()


@pytest.mark.parametrize(
    ("stored", "found"), [((1,), True), ((2**32 + 1,), True), ((1, 7), True), ((1, 0), False)]
)
def test_a_place_of_data_is_read_as_protobuf_reads_it(
    tmp_path: Path, stored: tuple[int, ...], found: bool
) -> None:
    tensor = external("a.data")
    tensor.ClearField("data_location")
    content = tensor.SerializeToString()
    for value in stored:
        content += b"\x70" + varint(value)
    (tmp_path / "m.onnx").write_bytes(wire.embedded(7, wire.embedded(5, content)))
    assert locations.of(tmp_path / "m.onnx") == (("a.data",) if found else ())
    read = TensorProto.FromString(content)
    assert (read.data_location == TensorProto.EXTERNAL) == found


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def test_training_information_is_not_of_the_model(tmp_path: Path) -> None:
    model = mlp()
    model.training_info.add().algorithm.initializer.append(external("gone.data"))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert locations.of(tmp_path / "m.onnx") == ()


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda content: content[:-7],
    "no model": lambda content: b"version https://git-lfs.github.com/spec/v1",
    "nested too deeply": lambda content: nested(200),
    "a name without an end": lambda content: content + named(1 << 17),
}


def nested(depth: int) -> bytes:
    graph = wire.embedded(5, external("a.data").SerializeToString())
    for _ in range(depth):
        body = b"\xa0\x01\x05" + wire.embedded(6, graph)  # an attribute that is a graph
        graph = wire.embedded(1, wire.embedded(5, body))
    return wire.embedded(7, graph)


def named(size: int) -> bytes:
    model = onnx.ModelProto()
    model.graph.initializer.append(external("x" * size))
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("damage", DAMAGED)
def test_what_is_no_model_is_told(damage: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(DAMAGED[damage](mlp().SerializeToString()))
    with pytest.raises(ModelError, match=r"m\.onnx"):
        locations.of(tmp_path / "m.onnx")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        locations.of(tmp_path / "m.onnx")


@given(edit=st.binary(min_size=1, max_size=3), at=st.integers(0, 400))
def test_a_damaged_file_is_told_or_read_as_protobuf_reads_it(
    tmp_path_factory: pytest.TempPathFactory, edit: bytes, at: int
) -> None:
    model = mlp(width=2)
    in_a_function(model, external("w.data"))
    content = model.SerializeToString()
    path = tmp_path_factory.mktemp("edited") / "m.onnx"
    path.write_bytes(content[:at] + edit + content[at + len(edit) :])
    try:
        found = locations.of(path)
        proto = reader.read(path)
    except ModelError:
        return
    tensors = [t for t in reader.external_tensors(proto) if t.external_data]
    assert {reader.location(tensor) for tensor in tensors} <= set(found)
