"""Make EPContext models around a QNN context binary that Qualcomm's own tools made.

Names follow onnxruntime's tools/qnn/gen_qnn_ctx_onnx_model.py, which does the same from a JSON file
that another tool of the SDK writes: NAME_dq is the float32 side of a quantized input or output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import onnx_ir as ir

from epctx.errors import InvalidGraph
from epctx.graph.epcontext import DOMAIN, EPContextNode
from epctx.providers.base import BinaryGraph, BinaryTensor
from epctx.providers.onnxruntime.qnn.binary import QnnBinary
from epctx.providers.onnxruntime.qnn.match import FLEXIBLE

_TYPES: Final = {
    **{f"int_{bits}": ir.DataType[f"INT{bits}"] for bits in (8, 16, 32, 64)},
    **{f"uint_{bits}": ir.DataType[f"UINT{bits}"] for bits in (8, 16, 32, 64)},
    **{f"sfixed_point_{bits}": ir.DataType[f"INT{bits}"] for bits in (8, 16, 32)},
    **{f"ufixed_point_{bits}": ir.DataType[f"UINT{bits}"] for bits in (8, 16, 32)},
    "bool_8": ir.DataType.BOOL,
    "float_16": ir.DataType.FLOAT16,
    "bfloat_16": ir.DataType.BFLOAT16,
    "float_32": ir.DataType.FLOAT,
    "float_64": ir.DataType.DOUBLE,
}
"""Types of ONNX for QNN's."""
_QUANTIZED: Final = frozenset(
    {ir.DataType.INT8, ir.DataType.INT16, ir.DataType.UINT8, ir.DataType.UINT16}
)
"""Types that QuantizeLinear makes."""
_OPSET: Final = 21
"""First opset whose QuantizeLinear makes integers of 16 bits."""
_IR_VERSION: Final = 10
"""ONNX's IR version of that opset."""
_FLOAT: Final = "_dq"
_DERIVED: Final = (_FLOAT, "_scale", "_zp")


def models(binary: QnnBinary, name: str, *, source: str, quantized: bool) -> Mapping[str, ir.Model]:
    """Return an EPContext model for each graph of a binary, by the graph's name.

    Inputs and outputs have the binary's order.

    Args:
        name: the binary's file name, beside the models.
        source: the EP that the nodes are for.
        quantized: keep quantized inputs and outputs as integers. Else QuantizeLinear and
            DequantizeLinear make them float32, with the scales of the binary. A value that is not
            quantized as a whole, or has 32 bits, stays an integer.

    Raises:
        InvalidGraph: the chips of the binary have different graphs, or a graph has values that ONNX
            does not have.
    """
    first, *others = binary.contexts
    if any(each.graphs != first.graphs for each in others):
        raise _unfit(name, "its graphs differ between its chips")
    wrapped = {}
    for graph in first.graphs:
        _require_onnx(graph, name)
        node = EPContextNode(
            name=graph.name,
            inputs=tuple(tensor.name for tensor in graph.inputs),
            outputs=tuple(tensor.name for tensor in graph.outputs),
            ep_cache_context=name.encode(),
            embed_mode=0,
            ep_sdk_version=first.build_id,
            partition_name=graph.name,
            source=source,
        )
        wrapped[graph.name] = _model(graph, node, flexible=binary.flexible, quantized=quantized)
    return wrapped


def _model(graph: BinaryGraph, node: EPContextNode, *, flexible: bool, quantized: bool) -> ir.Model:
    before = [_Edge(tensor, quantized=quantized) for tensor in graph.inputs]
    after = [_Edge(tensor, quantized=quantized) for tensor in graph.outputs]
    nodes = [edge.convert("QuantizeLinear", edge.outer, edge.inner) for edge in before]
    context = node.to_ir([edge.inner for edge in before], [edge.inner for edge in after])
    if flexible:
        context.attributes.add(ir.AttrInt64(FLEXIBLE, 1))
    nodes.append(context)
    nodes += [edge.convert("DequantizeLinear", edge.inner, edge.outer) for edge in after]
    main = ir.Graph(
        [edge.outer for edge in before],
        [edge.outer for edge in after],
        nodes=[each for each in nodes if each is not None],
        initializers=[value for edge in (*before, *after) for value in edge.constants],
        opset_imports={"": _OPSET, DOMAIN: 1},
        name=graph.name,
    )
    return ir.Model(main, ir_version=_IR_VERSION, producer_name="epctx")


class _Edge:
    """An input or output of a graph.

    Attributes:
        inner: the value that the context has.
        outer: the value that the model has; the same if nothing is converted.
        constants: scale and zero point of the conversion.
    """

    def __init__(self, tensor: BinaryTensor, *, quantized: bool) -> None:
        dtype, shape = _TYPES[tensor.dtype], ir.Shape(tensor.shape)
        self.inner = self.outer = ir.Value(name=tensor.name, type=ir.TensorType(dtype), shape=shape)
        self.constants: list[ir.Value] = []
        if quantized or tensor.scale is None or dtype not in _QUANTIZED:
            return
        floats = ir.TensorType(ir.DataType.FLOAT)
        self.outer = ir.Value(name=f"{tensor.name}{_FLOAT}", type=floats, shape=shape)
        scale = np.array(tensor.scale, np.float32)
        zero = np.array(tensor.zero_point, dtype.numpy())
        for name, array in ((f"{tensor.name}_scale", scale), (f"{tensor.name}_zp", zero)):
            constant = ir.tensor(array, name=name)
            self.constants.append(
                ir.Value(
                    name=name,
                    type=ir.TensorType(constant.dtype),
                    shape=ir.Shape(()),
                    const_value=constant,
                )
            )

    def convert(self, op_type: str, value: ir.Value, result: ir.Value) -> ir.Node | None:
        """Return the node between the two sides; None if they are the same."""
        if value is result:
            return None
        inputs = [value, *self.constants]
        return ir.Node("", op_type, inputs, outputs=[result], name=self.outer.name)


def _require_onnx(graph: BinaryGraph, name: str) -> None:
    """Check that ONNX has the types of a graph's values, and that every name is free.

    Raises:
        InvalidGraph: see above.
    """
    tensors = (*graph.inputs, *graph.outputs)
    for tensor in tensors:
        if tensor.dtype not in _TYPES:
            raise _unfit(name, f"{tensor.name} of graph {graph.name} is {tensor.dtype}")
    names = [tensor.name for tensor in tensors]
    derived = {f"{each}{end}" for each in names for end in _DERIVED}
    if not all(names) or len({*names}) < len(names) or derived.intersection(names):
        listed = ", ".join(map(repr, names))
        raise _unfit(name, f"the inputs and outputs of graph {graph.name} are named {listed}")
    if not graph.inputs or not graph.outputs:
        raise _unfit(name, f"graph {graph.name} has no {'outputs' if graph.inputs else 'inputs'}")


def _unfit(name: str, why: str) -> InvalidGraph:
    return InvalidGraph(
        "cannot be the context of an ONNX model",
        file=name,
        why=why,
        remedy="convert it again with inputs and outputs that ONNX has: each with a name of its "
        "own, of floats, or of integers with 8 bits or more",
    )
