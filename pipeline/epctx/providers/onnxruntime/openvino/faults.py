"""Nodes that OpenVINO is known to compute wrongly (2026.4.1, CPU device with AMX)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epctx.providers.base import KnownFault
from epctx.providers.onnxruntime import host

if TYPE_CHECKING:
    import onnx_ir as ir


def _is_decoding(node: ir.Node) -> bool:
    """Attention of a decoder at sequence 1: scores of a single row, to which a bias was added."""
    scores = node.inputs[0]
    if scores is None or scores.shape is None or len(scores.shape) < 2:
        return False
    producer = scores.producer()
    return scores.shape[-2] == 1 and producer is not None and producer.op_type == "Add"


def _in_bfloat16(node: ir.Node) -> bool:
    given = node.inputs[0]
    single = given is not None and given.dtype is not None and given.dtype.name == "FLOAT"
    return single and "amx_bf16" in host.cpu().flags


FAULTS: Final = (
    KnownFault(
        op_type="Softmax",
        concerns=_is_decoding,
        what="on a CPU with AMX OpenVINO computes attention at sequence 1 wrongly where its bias "
        "is an input: cosine 0.18 to 0.55, or NaN",
        remedy="keep Softmax, or the Add before it, off OpenVINO",
    ),
    *(
        KnownFault(
            op_type=op_type,
            concerns=_in_bfloat16,
            what="on a CPU with AMX OpenVINO computes float32 in bfloat16: errors of 3e-3 to 3e-2",
            remedy='set load_config: \'{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}\'',
        )
        for op_type in ("MatMul", "Gemm", "Conv")
    ),
)
