"""Conversion of models between protos and onnx_ir; it adds map types, which onnx_ir lacks.

While onnx_ir reads or writes a model, a stand-in takes the place of each type that holds a map: a
tensor type with a unique denotation. ONNX Runtime's maps have only scalars as values, so there is
no shape to keep.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import onnx
import onnx_ir as ir

from epctx.graph.serde import protos
from epctx.graph.serde.ordering import bodies

_STAND_IN: Final = f"map {secrets.token_hex(16)} "
"""Prefix of a stand-in's denotation; no file can know it."""


class MapType:
    """A map from keys to values, as an `ir.TypeProtocol`."""

    def __init__(
        self, key_type: ir.DataType, value_type: ir.TypeProtocol, *, denotation: str | None = None
    ) -> None:
        self.key_type = key_type
        self.value_type = value_type
        self.elem_type: ir.TypeProtocol | ir.DataType = value_type
        self.denotation = denotation
        self.dtype = value_type.dtype

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, MapType)
            and self.key_type == other.key_type
            and self.value_type == other.value_type
        )

    def __hash__(self) -> int:
        return hash((self.key_type, self.value_type))

    def __repr__(self) -> str:
        return f"Map({self.key_type!r}, {self.value_type!r})"


def from_proto(proto: onnx.ModelProto) -> ir.Model:
    """Return the model of a proto, which stays as it is. Raises the errors of onnx_ir's reader."""
    if not any(protos.holds_map(value.type) for value in protos.values(proto)):
        return ir.serde.deserialize_model(proto)
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    types: dict[str, ir.TypeProtocol] = {}
    for info in protos.values(bare):
        if protos.holds_map(info.type):
            kind = type_of(info.type)
            assert kind is not None
            info.type.CopyFrom(type_proto(_stand_in(kind, types)))
    model = ir.serde.deserialize_model(bare)
    for value in _values(model.graph):
        if value.type is not None and (original := types.get(value.type.denotation or "")):
            value.type = original
    return model


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return the proto of a model, as onnx_ir writes it; the model stays as it is."""
    with _without_maps(model) as types:
        proto = ir.serde.serialize_model(model)
    if types:
        for info in protos.values(proto):
            if (original := types.get(info.type.denotation)) is not None:
                info.type.CopyFrom(type_proto(original))
    return proto


def type_of(proto: onnx.TypeProto) -> ir.TypeProtocol | None:
    """Return the type in a proto, without its shape; None if it has none."""
    denotation = proto.denotation or None
    match proto.WhichOneof("value") if protos.holds_map(proto) else None:
        case "map_type":
            kind = proto.map_type
            value = type_of(kind.value_type) or ir.TensorType(ir.DataType.UNDEFINED)
            return MapType(ir.DataType(kind.key_type), value, denotation=denotation)
        case "sequence_type":
            element = type_of(proto.sequence_type.elem_type)
            assert element is not None
            return ir.SequenceType(element, denotation=denotation)
        case "optional_type":
            element = type_of(proto.optional_type.elem_type)
            assert element is not None
            return ir.OptionalType(element, denotation=denotation)
        case _:
            return ir.serde.deserialize_type_proto_for_type(proto)


def type_proto(kind: ir.TypeProtocol, shape: ir.Shape | None = None) -> onnx.TypeProto:
    """Return the proto of a type, and of the shape of its tensors."""
    proto = onnx.TypeProto(denotation=kind.denotation or None)
    if not holds_map(kind):
        ir.serde.serialize_type_into(proto, kind)
        if shape is not None:
            ir.serde.serialize_shape_into(proto, shape)
    elif isinstance(kind, MapType):
        proto.map_type.key_type = kind.key_type.value
        proto.map_type.value_type.CopyFrom(type_proto(kind.value_type))
    elif isinstance(kind, ir.SequenceType):
        proto.sequence_type.elem_type.CopyFrom(type_proto(kind.elem_type))
    elif isinstance(kind, ir.OptionalType):
        proto.optional_type.elem_type.CopyFrom(type_proto(kind.elem_type))
    return proto


def holds_map(kind: ir.TypeProtocol | None) -> bool:
    """Tell whether a type is a map, or a sequence or optional of one."""
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        return holds_map(kind.elem_type)
    return isinstance(kind, MapType)


def _stand_in(kind: ir.TypeProtocol, types: dict[str, ir.TypeProtocol]) -> ir.TensorType:
    name = f"{_STAND_IN}{len(types)}"
    types[name] = kind
    return ir.TensorType(ir.DataType.FLOAT, denotation=name)


@contextmanager
def _without_maps(model: ir.Model) -> Iterator[Mapping[str, ir.TypeProtocol]]:
    """Replace types that hold maps by stand-ins for a while; yield the types by stand-in."""
    held = [(value, kind) for value in _values(model.graph) if holds_map(kind := value.type)]
    types: dict[str, ir.TypeProtocol] = {}
    try:
        for value, kind in held:
            assert kind is not None
            value.type = _stand_in(kind, types)
        yield types
    finally:
        for value, kind in held:
            value.type = kind


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield inputs and node outputs of a graph, and of the graphs in its nodes."""
    yield from graph.inputs
    for node in graph:
        yield from node.outputs
        for body in bodies(node.attributes.values()):
            yield from _values(body)
