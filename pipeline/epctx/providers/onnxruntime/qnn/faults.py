"""Nodes that QNN computes wrongly, or not at all (onnxruntime-qnn 2.7.0, QAIRT 2.51, x86)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from epctx.providers.hooks import KnownFault

if TYPE_CHECKING:
    import onnx_ir as ir

_COLUMNS: Final = 32
"""With a multiple of it QAIRT 2.51 compiled MatMulNBits of 4 and 8 bits to the same bytes, whatever
malloc left in memory (`MALLOC_PERTURB_`); with 16, 47, 48, 272, 688, 1000 and 2736 it did not."""

_CONV: Final = frozenset({"Conv", "ConvTranspose"})


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
        op_type="BatchNormalization",
        concerns=lambda node: not _is_float(node),
        what="QNN computes some quantized BatchNormalization wrongly: cosine 0.04 (QAIRT 2.51)",
        remedy="quantize with preset `qnn`, which writes it as Mul and Add; or keep it off QNN",
    ),
    KnownFault(
        op_type="RMSNormalization",
        concerns=_is_single,
        what="QNN computes RMSNormalization at sequence 1 wrongly: cosine 0.86 (QAIRT 2.51)",
        remedy="keep it off QNN, or write the norm as Mul, ReduceMean, Add, Sqrt and Div",
    ),
)


def why_kept_off(node: ir.Node) -> str | None:
    """Return why a node must not be given to QNN, since it ends the process; None if it may.

    ONNX Runtime 1.31.1 moves the Transposes about a Conv, whose channels QNN has last, down the
    graph. One that it moves through a Reshape to one dimension ends in an assertion. Such is
    `as_strided` in the dynamo exports of ConvNeXt and EdgeNeXt (timm).
    """
    if node.op_type != "Reshape" or node.domain or node.inputs[0] is None:
        return None
    before, after = node.inputs[0].shape, node.outputs[0].shape
    if before is None or after is None or len(before) < 3 or len(after) != 1:
        return None
    above = _op_types(node, lambda each: each.predecessors())
    below = _op_types(node, lambda each: each.successors())
    if _CONV.isdisjoint(above) or (_CONV | {"Transpose"}).isdisjoint(below):
        return None
    return (
        "a Reshape to one dimension between a Conv and a Transpose ends QNN's compile by SIGABRT "
        "(onnxruntime 1.31.1)"
    )


def _op_types(node: ir.Node, beside: Callable[[ir.Node], Iterable[ir.Node]]) -> set[str]:
    """Return the op types of a node's neighbours, of theirs, and so on."""
    found: set[ir.Node] = set()
    left = [node]
    while left:
        new = [each for each in beside(left.pop()) if each not in found]
        found.update(new)
        left += new
    return {each.op_type for each in found}


def why_unstable(nodes: Sequence[ir.Node]) -> str | None:
    """Return which weights in blocks QAIRT may write otherwise each time; None if it has none."""
    odd = [
        f"{node.name!r} of {node.attributes.get_int('N')} columns"
        for node in nodes
        if node.op_type == "MatMulNBits" and node.attributes.get_int("N", 0) % _COLUMNS
    ]
    if not odd:
        return None
    more = f" and {len(odd) - 1} more" if odd[1:] else ""
    return (
        f"QAIRT 2.51 may write other bytes at each build for MatMulNBits {odd[0]}{more}: give such "
        f"weights a multiple of {_COLUMNS} columns, or leave the nodes out with `quantize.exclude` "
        "or `partition.exclude`"
    )
