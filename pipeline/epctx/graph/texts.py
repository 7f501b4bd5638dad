"""Texts of a model are UTF-8, or the model is refused.

ONNX says so, protobuf does not check it: it parses such a file, and hands out bytes in place of
a text where Python expects one. So it is asked once, at load, of all that later stages read.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from epctx.errors import ModelError
from epctx.graph import protos


def require_utf8(model: onnx.ModelProto, *, where: str) -> None:
    """Raise ModelError for a name, symbol or piece of metadata that is not UTF-8."""
    for what, text in _texts(model):
        if not isinstance(text, str):
            raise ModelError(
                f"the {what} {text!r} is not UTF-8",
                where=where,
                remedy="the file is broken: export the model again",
            )


def _texts(model: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    yield "domain of the model", model.domain
    yield "producer's name", model.producer_name
    yield "producer's version", model.producer_version
    yield from _metadata(model)
    for each in model.opset_import:
        yield "domain of an opset import", each.domain
    for function in model.functions:
        for text in (function.name, function.domain, function.overload, function.doc_string):
            yield "name of a function", text
        for text in (*function.input, *function.output, *function.attribute):
            yield "name of a function's value", text
        for each in function.opset_import:
            yield "domain of an opset import", each.domain
        yield from _metadata(function)
    for node in protos.nodes(model):
        yield from _node(node)
    for attribute in protos.attributes(model):
        for text in (attribute.name, attribute.ref_attr_name, attribute.doc_string):
            yield "name of an attribute", text
    for graph in protos.graphs(model):
        yield "name of a graph", graph.name
        yield "documentation of a graph", graph.doc_string
        yield from _metadata(graph)
        for annotation in graph.quantization_annotation:
            yield "name of a quantized tensor", annotation.tensor_name
            for entry in annotation.quant_parameter_tensor_names:
                yield "quantization parameter", entry.key
                yield "quantization parameter", entry.value
    for value in protos.values(model):
        yield from _value(value)
    for tensor in protos.tensors(model):
        yield from _tensor(tensor)
    for sparse in protos.sparse_tensors(model):
        yield from _tensor(sparse.values)
        yield from _tensor(sparse.indices)


def _node(node: onnx.NodeProto) -> Iterator[tuple[str, str]]:
    for text in (node.name, node.op_type, node.domain, node.overload, node.doc_string):
        yield "name of a node", text
    for text in (*node.input, *node.output):
        yield "name of a value", text
    yield from _metadata(node)


def _tensor(tensor: onnx.TensorProto) -> Iterator[tuple[str, str]]:
    yield "name of a tensor", tensor.name
    yield "documentation of a tensor", tensor.doc_string
    yield from _metadata(tensor)
    for entry in tensor.external_data:
        yield "key of external data", entry.key
        yield "value of external data", entry.value


def _value(value: onnx.ValueInfoProto) -> Iterator[tuple[str, str]]:
    yield "name of a value", value.name
    yield "documentation of a value", value.doc_string
    yield "denotation of a value", value.type.denotation
    yield from _metadata(value)
    for dimension in protos.dimensions(value.type):
        yield "symbolic dimension", dimension.dim_param
        yield "denotation of a dimension", dimension.denotation


def _metadata(
    owner: onnx.ModelProto
    | onnx.FunctionProto
    | onnx.GraphProto
    | onnx.NodeProto
    | onnx.ValueInfoProto
    | onnx.TensorProto,
) -> Iterator[tuple[str, str]]:
    for entry in owner.metadata_props:
        yield "key of metadata", entry.key
        yield "value of metadata", entry.value
