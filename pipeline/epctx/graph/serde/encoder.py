"""Canonical encoding of a model: see `canonical` for its form.

Fields come in ascending order of their numbers, as protobuf writes them; small parts pass through
protobuf, and parts that may be large are only referred to (`wire.Message`). The IR version is the
lowest that has the opsets and data types in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import onnx
import onnx_ir as ir

from epctx.files.digest import Buffer
from epctx.graph.serde import types, wire
from epctx.graph.serde.ordering import QUANTIZATION, OrderedGraph, bug, order
from epctx.graph.weights.tensors import MappedTensor, chunks, strings

BASE: Final = 8
"""IR version of 2021, which every ONNX Runtime since 1.10 reads."""

_DATA_TYPES: Final = {
    "FLOAT8E4M3FN": 9,
    "FLOAT8E4M3FNUZ": 9,
    "FLOAT8E5M2": 9,
    "FLOAT8E5M2FNUZ": 9,
    "UINT4": 10,
    "INT4": 10,
    "FLOAT4E2M1": 11,
    "FLOAT8E8M0": 12,
    "UINT2": 13,
    "INT2": 13,
    "FLOAT6E2M3": 14,
    "FLOAT6E3M2": 14,
}
"""IR version that brought a data type. Source: the comments on `Version` in onnx.proto."""


def opsets(model: ir.Model, ordered: OrderedGraph) -> dict[str, int]:
    """Return the opset imports that nodes use; ONNX's own if there is no node.

    Raises:
        EpctxError: a node's domain is not imported; loaded models import all of theirs.
    """
    imports = model.graph.opset_imports
    used = {node.domain for graph in _graphs(ordered) for node in graph.nodes}
    missing = used - imports.keys()
    if missing:
        what = f"the model has nodes of domain {min(missing)!r}, and does not import it"
        raise bug(what, where=model.graph.name)
    return {domain: imports[domain] for domain in used} or {"": imports.get("", BASE)}


def lowest_ir_version(model: ir.Model, ordered: OrderedGraph) -> int:
    """Return the lowest IR version, from `BASE` on, that has the opsets and data types in use."""
    imports = [onnx.helper.make_opsetid(*each) for each in opsets(model, ordered).items()]
    versions = [BASE, onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True)]
    names = {dtype.name for dtype in _data_types(ordered) if dtype is not None}
    return max(*versions, *(version for name, version in _DATA_TYPES.items() if name in names))


def _graphs(ordered: OrderedGraph) -> Iterator[OrderedGraph]:
    yield ordered
    for bodies in ordered.bodies.values():
        for body in bodies:
            yield from _graphs(body)


def _data_types(ordered: OrderedGraph) -> Iterator[ir.DataType | None]:
    for graph in _graphs(ordered):
        yield from (value.dtype for value in (*graph.graph.inputs, *graph.used))
        for node in graph.nodes:
            yield from (value.dtype for value in node.outputs)
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR:
                    yield attribute.as_tensor().dtype
                elif attribute.type == ir.AttributeType.TENSORS:
                    yield from (tensor.dtype for tensor in attribute.as_tensors())


PRODUCER: Final = "epctx"
CHECKSUM: Final = "epctx.checksum"
"""Key in a tensor's `meta`, for the checksum of its reference."""

_TypeKey = tuple[ir.DataType, tuple[int | str | None, ...] | None]
Encode = Callable[[wire.Message, ir.TensorProtocol], None]


def data(message: wire.Message, tensor: ir.TensorProtocol) -> None:
    """Append a tensor's bytes, which are read when they are written."""

    def raw() -> Iterator[Buffer]:
        size = 0
        for chunk in chunks(tensor):
            size += len(chunk)
            yield chunk
        if size != tensor.nbytes:
            raise bug(f"tensor {tensor.name!r} has {size} bytes, its shape {tensor.nbytes}")

    message.field(_TENSOR["raw_data"], wire.Payload(tensor.nbytes, raw))


def encode(model: ir.Model, *, tensor_data: Encode = data) -> wire.Message:
    """Return the canonical message of a model, which stays as it is.

    Args:
        tensor_data: writes a tensor's content.

    Raises:
        EpctxError: the model has local functions, a cycle, an initializer without value, or a
            domain that it does not import; no stage may hand on such a model.
    """
    return _Encoder(tensor_data).model(model)


def _numbers(message: type) -> dict[str, int]:
    return {field.name: field.number for field in message.DESCRIPTOR.fields}  # type: ignore[attr-defined]


_MODEL: Final = _numbers(onnx.ModelProto)
_GRAPH: Final = _numbers(onnx.GraphProto)
_NODE: Final = _numbers(onnx.NodeProto)
_ATTRIBUTE: Final = _numbers(onnx.AttributeProto)
_TENSOR: Final = _numbers(onnx.TensorProto)
_VALUE_INFO: Final = _numbers(onnx.ValueInfoProto)


class _Encoder:
    """Encodes a model, fields in ascending order of their numbers, as protobuf does."""

    def __init__(self, data: Encode) -> None:
        self._data = data
        self._types: dict[_TypeKey, bytes] = {}

    def model(self, model: ir.Model) -> wire.Message:
        if model.functions:
            raise bug("the model has local functions, which load should have inlined")
        ordered = order(model.graph)
        head = onnx.ModelProto(
            ir_version=lowest_ir_version(model, ordered),
            producer_name=PRODUCER,
            domain=model.domain or None,
            model_version=model.model_version or None,
        )
        tail = onnx.ModelProto()
        for domain, version in sorted(opsets(model, ordered).items()):
            tail.opset_import.add(domain=domain, version=version)
        for key, value in sorted(model.metadata_props.items()):
            tail.metadata_props.add(key=key, value=value)
        message = wire.Message()
        message.encoded(_bytes(head))
        message.field(_MODEL["graph"], self._graph(ordered))
        message.encoded(_bytes(tail))
        return message

    def _graph(self, ordered: OrderedGraph) -> wire.Message:
        graph = ordered.graph
        message = wire.Message()
        for node in ordered.nodes:
            self._node(message, node, ordered)
        message.encoded(_bytes(onnx.GraphProto(name=graph.name or "graph")))
        weights = ordered.initializers()
        for name, value in weights:
            message.field(_GRAPH["initializer"], self._tensor(_constant(value), name))
        node_outputs = [value for node in ordered.nodes for value in node.outputs if value.name]
        outputs = set(graph.outputs)
        inside = [value for value in node_outputs if value not in outputs and _has_type(value)]
        inside.sort(key=lambda value: value.name or "")
        for field, values in (
            ("input", graph.inputs),
            ("output", graph.outputs),
            ("value_info", inside),
        ):
            for value in values:
                message.encoded(wire.embedded(_GRAPH[field], self._value_info(value)))
        tail = onnx.GraphProto()
        tail.quantization_annotation.extend(
            _annotations((*graph.inputs, *(value for _, value in weights), *node_outputs))
        )
        message.encoded(_bytes(tail))
        return message

    def _node(self, message: wire.Message, node: ir.Node, ordered: OrderedGraph) -> None:
        head = onnx.NodeProto(
            input=[(value.name or "") if value is not None else "" for value in node.inputs],
            output=_output_names(node),
            name=node.name or None,
            op_type=node.op_type,
        )
        tail = _bytes(onnx.NodeProto(domain=node.domain or None, overload=node.overload or None))
        attributes = [node.attributes[name] for name in sorted(node.attributes)]
        if not any(attribute.type in _NESTED for attribute in attributes):
            for attribute in attributes:
                _plain_attribute(head.attribute.add(), attribute)
            message.encoded(wire.embedded(_GRAPH["node"], _bytes(head) + tail))
            return
        result = wire.Message()
        result.encoded(_bytes(head))
        bodies = iter(ordered.bodies.get(node, ()))
        for attribute in attributes:
            result.field(_NODE["attribute"], self._attribute(attribute, bodies))
        result.encoded(tail)
        message.field(_GRAPH["node"], result)

    def _attribute(self, attribute: ir.Attr, bodies: Iterator[OrderedGraph]) -> wire.Message:
        """Encode an attribute that may be large; `bodies` are the node's remaining graphs."""
        message = wire.Message()
        if attribute.type not in _NESTED or attribute.is_ref():
            proto = onnx.AttributeProto()
            _plain_attribute(proto, attribute)
            message.encoded(_bytes(proto))
            return message
        message.encoded(_bytes(onnx.AttributeProto(name=attribute.name)))
        match attribute.type:
            case ir.AttributeType.STRING:
                text = _text(attribute.value)
                message.field(_ATTRIBUTE["s"], wire.Payload(len(text), lambda: (text,)))
            case ir.AttributeType.TENSOR:
                message.field(_ATTRIBUTE["t"], self._tensor(attribute.as_tensor(), None))
            case ir.AttributeType.TENSORS:
                for tensor in attribute.as_tensors():
                    message.field(_ATTRIBUTE["tensors"], self._tensor(tensor, None))
            case ir.AttributeType.GRAPH:
                message.field(_ATTRIBUTE["g"], self._graph(next(bodies)))
            case _:
                for _ in attribute.as_graphs():
                    message.field(_ATTRIBUTE["graphs"], self._graph(next(bodies)))
        message.encoded(_bytes(onnx.AttributeProto(type=attribute.type.name)))
        return message

    def _value_info(self, value: ir.Value) -> bytes:
        name = _bytes(onnx.ValueInfoProto(name=value.name))
        if value.type is None:
            return name
        key = _type_key(value)
        encoded = self._types.get(key) if key else None
        if encoded is None:
            encoded = wire.embedded(_VALUE_INFO["type"], _type(value))
            if key:
                self._types[key] = encoded
        return name + encoded

    def _tensor(self, tensor: ir.TensorProtocol, name: str | None) -> wire.Message:
        """Encode a tensor; one in an attribute has no name, since nothing reads it."""
        proto = onnx.TensorProto(
            dims=tensor.shape.numpy(), data_type=tensor.dtype.value, name=name or None
        )
        message = wire.Message()
        if isinstance(tensor, ir.ExternalTensor) and not isinstance(tensor, MappedTensor):
            message.encoded(_bytes(proto))
            message.encoded(_reference(tensor))
        elif tensor.dtype == ir.DataType.STRING:
            proto.string_data.extend(strings(tensor))
            message.encoded(_bytes(proto))
        else:
            message.encoded(_bytes(proto))
            self._data(message, tensor)
        return message


_NESTED: Final = frozenset(
    {
        ir.AttributeType.STRING,
        ir.AttributeType.TENSOR,
        ir.AttributeType.TENSORS,
        ir.AttributeType.GRAPH,
        ir.AttributeType.GRAPHS,
    }
)
"""Types of attributes that may be large: they are encoded here, without a proto."""


def _plain_attribute(proto: onnx.AttributeProto, attribute: ir.Attr) -> None:
    if attribute.is_ref():
        ir.serde.serialize_reference_attribute_into(proto, attribute)
    else:
        ir.serde.serialize_attribute_into(proto, attribute)
    proto.ClearField("doc_string")


def _text(value: object) -> bytes:
    """Return the bytes of a STRING attribute; onnx_ir keeps text that is not UTF-8 as bytes."""
    return value if isinstance(value, bytes) else str(value).encode()


def _output_names(node: ir.Node) -> list[str]:
    """Return the outputs' names, without optional outputs left out at the end."""
    names = [value.name or "" for value in node.outputs]
    while names and not names[-1]:
        names.pop()
    return names


def _constant(value: ir.Value) -> ir.TensorProtocol:
    if value.const_value is None:
        raise bug(f"initializer {value.name!r} has no value")
    return value.const_value


def _has_type(value: ir.Value) -> bool:
    return value.type is not None and value.dtype != ir.DataType.UNDEFINED


def _type_key(value: ir.Value) -> _TypeKey | None:
    """Return a key that is equal for equal tensor types and shapes; None if the type has more.

    Many values share few types, and building a type is most of the cost of a value.
    """
    kind, shape = value.type, value.shape
    if not isinstance(kind, ir.TensorType) or kind.denotation:
        return None
    if shape is None:
        return kind.dtype, None
    if any(shape.get_denotation(axis) for axis in range(len(shape))):
        return None
    return kind.dtype, tuple(dim if isinstance(dim, int) else dim.value for dim in shape)


def _type(value: ir.Value) -> bytes:
    """Return a value's TypeProto, its shape included."""
    return _bytes(
        onnx.TypeProto() if value.type is None else types.type_proto(value.type, value.shape)
    )


def _annotations(values: Iterable[ir.Value]) -> Iterator[onnx.TensorAnnotation]:
    annotated = {value.name or "": value.meta[QUANTIZATION] for value in values
                 if QUANTIZATION in value.meta}  # fmt: skip
    for name, names in sorted(annotated.items()):
        annotation = onnx.TensorAnnotation(tensor_name=name)
        for key, parameter in sorted(names.items()):
            annotation.quant_parameter_tensor_names.add(key=key, value=parameter)
        yield annotation


def _reference(tensor: ir.ExternalTensor) -> bytes:
    keys = {
        "offset": tensor.offset,
        "length": tensor.length,
        "checksum": tensor.meta.get(CHECKSUM),
    }
    given = {key: value for key, value in keys.items() if value is not None}
    return wire.external(str(tensor.location), **given)


def _bytes(
    proto: onnx.ModelProto | onnx.GraphProto | onnx.NodeProto | onnx.AttributeProto,
) -> bytes:
    return bytes(proto.SerializeToString(deterministic=True))
