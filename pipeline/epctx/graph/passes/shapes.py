"""Types and shapes: inferred by onnx for the whole graph, or for one node after another.

`infer-shapes` is onnx's inference with data propagation, without the weights. `NodeInference`
infers single nodes after a fold, so one sweep is enough however deep shapes depend on each other.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir

from epctx.graph import native
from epctx.graph.passes import edit
from epctx.graph.passes.base import CountingPass
from epctx.graph.prepare import arguments, inference
from epctx.graph.serde import protos
from epctx.graph.serde import types as serde_types
from epctx.graph.serde.ordering import bodies
from epctx.graph.weights import tensors

_READ = 1024
"""Maximum bytes of a tensor whose content inference gets; tensors for shapes are smaller."""


class InferShapesPass(CountingPass):
    """Infer types and shapes of all values of the graph and its subgraphs."""

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Return the count of values that got a type, a rank or a dimension."""
        with tensors.replaced(model, _without_content):
            proto = serde_types.to_proto(model)
        return {"values": _merge_graph(model.graph, inference.infer(proto).graph)}


class NodeInference:
    """Inference of single nodes of one model."""

    def __init__(self, model: ir.Model) -> None:
        self._opsets = [
            onnx.helper.make_operatorsetid(domain, version)
            for domain, version in model.opset_imports.items()
        ]
        self._versions = dict(model.opset_imports)
        self._ir_version = model.ir_version

    def infer(self, node: ir.Node) -> list[ir.Value]:
        """Infer a node; return the outputs whose type or shape became better known."""
        if native.reach() == "nothing" or any(True for _ in bodies(node.attributes.values())):
            return []
        types = {str(v.name): _type_proto(v) for v in node.inputs if v is not None}
        if any(each is None for each in types.values()):
            return []
        proto = ir.serde.serialize_node(node)
        content = {str(v.name): t for v in node.inputs if (t := _content(v)) is not None and v}
        shapes = {
            str(v.name): _dims(v.shape)
            for v in node.inputs
            if v is not None and v.shape is not None
        }
        if (disputed := arguments.disputed(proto, self._versions.get("", 0), shapes)) is not None:
            return self._set_shape(node, disputed.shape)
        if not node.domain:
            for tensor in arguments.rewrite(proto, content.get):
                content[tensor.name] = tensor
                types[tensor.name] = onnx.helper.make_tensor_type_proto(
                    tensor.data_type, tensor.dims
                )
        try:
            schema = onnx.defs.get_schema(
                node.op_type, self._versions.get(node.domain, 1), node.domain
            )
            inferred = onnx.shape_inference.infer_node_outputs(
                schema,
                proto,
                {name: each for name, each in types.items() if each is not None},
                content,
                opset_imports=self._opsets,
                ir_version=self._ir_version,
            )
        except (
            onnx.defs.SchemaError,
            onnx.shape_inference.InferenceError,
            onnx.checker.ValidationError,
            RuntimeError,
        ):
            return []
        return [v for v in node.outputs if v.name in inferred and _merge(v, inferred[v.name])]

    def _set_shape(self, node: ir.Node, shape: arguments.Shape | None) -> list[ir.Value]:
        value = node.outputs[0]
        if shape is None or value.shape is not None:
            return []
        value.shape = ir.Shape(shape)
        return [value]


def _without_content(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor for inference: its content if it is small, else a mere reference."""
    small = tensor.nbytes <= _READ
    if tensor.dtype == ir.DataType.STRING or (small and not isinstance(tensor, ir.ExternalTensor)):
        return tensor
    if small:
        return ir.Tensor(tensor.numpy(), tensor.dtype, name=tensor.name)
    shape = ir.Shape(tensor.shape.numpy())
    return ir.ExternalTensor("-", None, None, tensor.dtype, shape=shape, name=tensor.name or "")


def _content(value: ir.Value | None) -> onnx.TensorProto | None:
    tensor = edit.constant(value)
    if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.nbytes > _READ:
        return None
    return ir.serde.serialize_tensor(_without_content(tensor))


def _type_proto(value: ir.Value) -> onnx.TypeProto | None:
    if value.type is None:
        return None
    return serde_types.type_proto(value.type, value.shape)


def _dims(shape: ir.Shape) -> arguments.Shape:
    return tuple(dim if isinstance(dim, int) else None for dim in shape)


def _merge_graph(graph: ir.Graph, inferred: onnx.GraphProto) -> int:
    types = {info.name: info.type for info in (*inferred.value_info, *inferred.output)}
    count = 0
    for node, proto in zip(graph, inferred.node, strict=True):
        for value in node.outputs:
            if value.name in types:
                count += _merge(value, types[value.name])
        count += sum(
            _merge_graph(inner, inner_proto)
            for inner, inner_proto in zip(
                bodies(node.attributes.values()), protos.subgraphs(proto), strict=True
            )
        )
    return count


def _merge(value: ir.Value, inferred: onnx.TypeProto) -> bool:
    """Complete a value's type and shape; return True if they gained."""
    if not inferred.WhichOneof("value"):
        return False
    changed = False
    if value.type is None:
        value.type = serde_types.type_of(inferred)
        changed = value.type is not None
    shape = (
        None if protos.holds_map(inferred) else ir.serde.deserialize_type_proto_for_shape(inferred)
    )
    if shape is None:
        return changed
    if value.shape is None or len(value.shape) != len(shape):  # the declared rank is wrong
        value.shape = shape
        return True
    merged = [_better(own, dim) for own, dim in zip(value.shape, shape, strict=True)]
    if merged == list(value.shape):
        return changed
    value.shape = ir.Shape(merged)
    return True


def _better(own: int | ir.SymbolicDim, inferred: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
    if isinstance(own, int):
        return own
    return inferred if isinstance(inferred, int) or own.value is None else own
