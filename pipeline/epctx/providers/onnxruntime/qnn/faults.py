"""Nodes that QNN is known to compute wrongly (onnxruntime-qnn 2.7.0, QAIRT 2.51, x86 simulator)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epctx.providers.hooks import KnownFault

if TYPE_CHECKING:
    import onnx_ir as ir


def _is_float(node: ir.Node) -> bool:
    """What it is given is not what was quantized."""
    given = node.inputs[0]
    producer = None if given is None else given.producer()
    return producer is None or producer.op_type != "DequantizeLinear"


def _is_single(node: ir.Node) -> bool:
    """It normalizes one row at a time, as a decoder does at sequence 1."""
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    return shape is not None and len(shape) > 1 and shape[-2] == 1


FAULTS: Final = (
    KnownFault(
        op_type="AveragePool",
        concerns=_is_float,
        what="QNN's x86 simulator computes AveragePool in float16 wrongly, and can crash on it "
        "(QAIRT 2.51); on a device it was not measured",
        remedy="keep AveragePool off QNN, or quantize the model",
    ),
    KnownFault(
        op_type="RMSNormalization",
        concerns=_is_single,
        what="QNN computes RMSNormalization at sequence 1 wrongly: cosine 0.86 (QAIRT 2.51)",
        remedy="keep it off QNN, or write the norm as Mul, ReduceMean, Add, Sqrt and Div",
    ),
)
