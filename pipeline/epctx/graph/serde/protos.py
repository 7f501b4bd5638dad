"""Walks over ONNX protos: every graph, node and tensor, those inside attributes too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import onnx

from epctx.text import node_words

if TYPE_CHECKING:
    import onnx_ir as ir

_PLACEHOLDERS: Final = frozenset({"", "?", "*", "-1"})
_LONGEST: Final = 1000


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that a node's attributes hold, in order; not graphs nested in them."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def nested(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph, and every graph inside it, outer ones first."""
    yield graph
    for node in graph.node:
        if node.attribute:  # most nodes have none, and this runs many times for each
            for inner in subgraphs(node):
                yield from nested(inner)


def graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yield every graph: the main one, and those in its nodes and in local functions."""
    yield from nested(model.graph)
    for function in model.functions:
        for node in function.node:
            for inner in subgraphs(node):
                yield from nested(inner)


def nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of every graph and local function."""
    for graph in graphs(model):
        yield from graph.node
    for function in model.functions:
        yield from function.node


def attributes(model: onnx.ModelProto) -> Iterator[onnx.AttributeProto]:
    """Yield every attribute of every node, and the default attributes of local functions."""
    for node in nodes(model):
        yield from node.attribute
    for function in model.functions:
        yield from function.attribute_proto


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every dense tensor: initializers and attributes."""
    for graph in graphs(model):
        yield from graph.initializer
    for attribute in attributes(model):
        yield from tensors_of(attribute)


def tensors_of(attribute: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    """Yield the dense tensors of an attribute."""
    if attribute.type == onnx.AttributeProto.TENSOR:
        yield attribute.t
    elif attribute.type == onnx.AttributeProto.TENSORS:
        yield from attribute.tensors


def sparse_tensors(model: onnx.ModelProto) -> Iterator[onnx.SparseTensorProto]:
    """Yield every sparse tensor: initializers and attributes."""
    for graph in graphs(model):
        yield from graph.sparse_initializer
    for attribute in attributes(model):
        yield from sparse_tensors_of(attribute)


def sparse_tensors_of(attribute: onnx.AttributeProto) -> Iterator[onnx.SparseTensorProto]:
    """Yield the sparse tensors of an attribute."""
    if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
        yield attribute.sparse_tensor
    elif attribute.type == onnx.AttributeProto.SPARSE_TENSORS:
        yield from attribute.sparse_tensors


def values(model: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """Yield every declared value of every graph: inputs, outputs, value_info."""
    for graph in graphs(model):
        yield from graph.input
        yield from graph.output
        yield from graph.value_info


def dimensions(kind: onnx.TypeProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """Yield every dimension in a type, also in elements of sequences, optionals and maps."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            yield from kind.tensor_type.shape.dim
        case "sparse_tensor_type":
            yield from kind.sparse_tensor_type.shape.dim
        case "sequence_type":
            yield from dimensions(kind.sequence_type.elem_type)
        case "optional_type":
            yield from dimensions(kind.optional_type.elem_type)
        case "map_type":
            yield from dimensions(kind.map_type.value_type)
        case _:
            pass


def sizes(shape: onnx.TensorShapeProto) -> str:
    """Return a shape in words: `[1, batch, ?]`."""
    listed = (
        str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in shape.dim
    )
    return f"[{', '.join(listed)}]"


def contradict(one: onnx.TensorShapeProto, other: onnx.TensorShapeProto) -> bool:
    """Tell whether no tensor can have both shapes."""
    return len(one.dim) != len(other.dim) or any(
        {left.WhichOneof("value"), right.WhichOneof("value")} == {"dim_value"} and left != right
        for left, right in zip(one.dim, other.dim, strict=True)
    )


def holds_map(kind: onnx.TypeProto) -> bool:
    """Tell whether a type is a map, or a sequence or optional of one."""
    match kind.WhichOneof("value"):
        case "map_type":
            return True
        case "sequence_type":
            return holds_map(kind.sequence_type.elem_type)
        case "optional_type":
            return holds_map(kind.optional_type.elem_type)
        case _:
            return False


def kind(data_type: int) -> str:
    """Return an element type in words: `float`, `int64`; invalid types have words, too."""
    kinds = onnx.TensorProto.DataType
    return kinds.Name(data_type).lower() if data_type in kinds.values() else f"type {data_type} "


def op(node: onnx.NodeProto | ir.Node) -> str:
    """Return a node's operator: `domain::op_type`, or `op_type` of the default domain."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def symbol(dim: onnx.TensorShapeProto.Dimension) -> str | None:
    """Return the name of a symbolic dimension; None if it has a size or is unknown.

    Exporters write "?" for each unknown size (paddle2onnx). To ONNX Runtime two such sizes may
    differ. A name of more than `_LONGEST` characters counts as unknown, since names are parsed.
    """
    name = dim.dim_param
    return None if name in _PLACEHOLDERS or len(name) > _LONGEST else name


def describe(node: onnx.NodeProto | ir.Node) -> str:
    """Describe a node in an error message, by its name or by a value that it makes."""
    if isinstance(node, onnx.NodeProto):
        words = node_words(node.name, op(node), node.output)
    else:
        words = node_words(node.name, op(node), (value.name for value in node.outputs))
    return f"{words} ({op(node)})" if node.name else words
