"""Texts of a model are UTF-8, or the model is refused.

ONNX says so, protobuf does not check it: it parses such a file, and hands out bytes in place of
a text where Python expects one. So it is asked once, at load, of all that later stages read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import onnx

from epctx.errors import ModelError
from epctx.graph.serde import protos


def require_utf8(model: onnx.ModelProto, *, where: str) -> None:
    """Raise ModelError for a name, symbol or piece of metadata that is not UTF-8."""
    for what, texts in _texts(model):
        try:
            "".join(texts)  # the quickest way to ask whether all are texts
        except TypeError:
            broken = next(text for text in texts if not isinstance(text, str))
            raise ModelError.broken(f"the {what} {broken!r} is not UTF-8", where=where) from None


def _texts(model: onnx.ModelProto) -> Iterator[tuple[str, Sequence[str]]]:
    """Texts that belong together, each group with what it is in words."""
    yield "domain of the model", (model.domain,)
    yield "producer of the model", (model.producer_name, model.producer_version)
    yield "metadata of the model", _metadata(model)
    yield "domain of an opset import", [each.domain for each in model.opset_import]
    for function in model.functions:
        yield "name of a function", (function.name, function.domain, function.overload)
        yield "documentation of a function", (function.doc_string, *_metadata(function))
        names = (*function.input, *function.output, *function.attribute)
        yield "name of a function's value", names
        yield "domain of an opset import", [each.domain for each in function.opset_import]
        yield from _nodes(function.node)
        yield from _attributes(function.attribute_proto)
    for graph in protos.graphs(model):
        yield from _graph(graph)


def _graph(graph: onnx.GraphProto) -> Iterator[tuple[str, Sequence[str]]]:
    """Those of a graph, but not of graphs in it."""
    yield "name of a graph", (graph.name, graph.doc_string, *_metadata(graph))
    for annotation in graph.quantization_annotation:
        entries = annotation.quant_parameter_tensor_names
        pairs = [text for entry in entries for text in (entry.key, entry.value)]
        yield "quantization annotation", (annotation.tensor_name, *pairs)
    for value in chain(graph.input, graph.output, graph.value_info):
        yield "name of a value", (value.name, value.doc_string, *_metadata(value))
        yield "denotation of a value", (value.type.denotation,)
        dimensions = protos.dimensions(value.type)
        symbols = [text for each in dimensions for text in (each.dim_param, each.denotation)]
        yield "symbolic dimension", symbols
    for tensor in graph.initializer:
        yield from _tensor(tensor)
    for sparse in graph.sparse_initializer:
        yield from _sparse(sparse)
    yield from _nodes(graph.node)


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, Sequence[str]]]:
    for node in nodes:
        yield "name of a value", (*node.input, *node.output)
        yield "name of a node", (node.name, node.op_type, node.domain, node.overload)
        yield "documentation of a node", (node.doc_string, *_metadata(node))
        if node.attribute:
            yield from _attributes(node.attribute)


def _attributes(
    attributes: Iterable[onnx.AttributeProto],
) -> Iterator[tuple[str, Sequence[str]]]:
    for attribute in attributes:
        names = (attribute.name, attribute.ref_attr_name, attribute.doc_string)
        yield "name of an attribute", names
        for tensor in protos.tensors_of(attribute):
            yield from _tensor(tensor)
        for sparse in protos.sparse_tensors_of(attribute):
            yield from _sparse(sparse)


def _sparse(sparse: onnx.SparseTensorProto) -> Iterator[tuple[str, Sequence[str]]]:
    yield from _tensor(sparse.values)
    yield from _tensor(sparse.indices)


def _tensor(tensor: onnx.TensorProto) -> Iterator[tuple[str, Sequence[str]]]:
    yield "name of a tensor", (tensor.name, tensor.doc_string, *_metadata(tensor))
    entries = [text for entry in tensor.external_data for text in (entry.key, entry.value)]
    yield "entry of external data", entries


def _metadata(
    owner: onnx.ModelProto
    | onnx.FunctionProto
    | onnx.GraphProto
    | onnx.NodeProto
    | onnx.ValueInfoProto
    | onnx.TensorProto,
) -> list[str]:
    return [text for entry in owner.metadata_props for text in (entry.key, entry.value)]
