"""`lift-constants`: Constant nodes become initializers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from epctx.graph.passes import edit
from epctx.graph.passes.base import CountingPass


class LiftConstantsPass(CountingPass):
    """Turn every Constant of a dense tensor into an initializer of its graph.

    Unlike onnx_ir's pass of that name also where it makes a graph output (through an Identity),
    and for every size.
    """

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Count of constants lifted."""
        editor = edit.Editor(model)
        count = 0
        for graph in model.graphs():
            for node in graph:
                tensor = _tensor(node)
                if tensor is not None:
                    editor.make_constant(node.outputs[0], tensor)
                    edit.remove(node)
                    count += 1
        return {"Constant": count}


def _tensor(node: ir.Node) -> ir.TensorProtocol | None:
    if not edit.is_op(node, "Constant") or len(node.attributes) != 1:
        return None
    attribute = next(iter(node.attributes.values()))
    match attribute.name:
        case "value":
            return attribute.as_tensor()
        case "value_int":
            return ir.Tensor(np.array(attribute.as_int(), np.int64))
        case "value_ints":
            return ir.Tensor(np.array(attribute.as_ints(), np.int64))
        case "value_float":
            return ir.Tensor(np.array(attribute.as_float(), np.float32))
        case "value_floats":
            return ir.Tensor(np.array(attribute.as_floats(), np.float32))
        case "value_string":
            return ir.StringTensor([attribute.as_string().encode()], shape=ir.Shape([]))
        case "value_strings":
            strings = [each.encode() for each in attribute.as_strings()]
            return ir.StringTensor(strings, shape=ir.Shape([len(strings)]))
    return None  # sparse_value
