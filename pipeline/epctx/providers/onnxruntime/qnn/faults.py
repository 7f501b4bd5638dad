"""Nodes that QNN computes wrongly, or not at all (onnxruntime-qnn 2.7.0, QAIRT 2.51, x86)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from epctx.providers.base import KnownFault

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


KEPT_OFF: Final = (
    "a Reshape to one dimension between a Conv and a Transpose ends QNN's compile by SIGABRT "
    "(onnxruntime 1.31.1)"
)
"""The reason why the nodes of `kept_off` stay on the CPU."""


def kept_off(nodes: Sequence[ir.Node]) -> frozenset[ir.Node]:
    """Return the nodes of a graph that must not be given to QNN, since they end the process.

    ONNX Runtime 1.31.1 moves the Transposes about a Conv, whose channels QNN has last, down the
    graph. One that it moves through a Reshape to one dimension ends in an assertion. Such is
    `as_strided` in the dynamo exports of ConvNeXt and EdgeNeXt (timm).
    """
    flat = frozenset(filter(_flattens, nodes))
    if not flat:
        return flat
    convs = [node for node in nodes if node.op_type in _CONV]
    movers = [*convs, *(node for node in nodes if node.op_type == "Transpose")]
    below = _reached(convs, lambda node: node.successors())
    return flat & below & _reached(movers, lambda node: node.predecessors())


def _flattens(node: ir.Node) -> bool:
    """Tell whether a node is a Reshape of three dimensions at least to one."""
    if node.op_type != "Reshape" or node.domain or node.inputs[0] is None:
        return False
    before, after = node.inputs[0].shape, node.outputs[0].shape
    return before is not None and after is not None and len(before) > 2 and len(after) == 1


def _reached(
    nodes: Sequence[ir.Node], beside: Callable[[ir.Node], Iterable[ir.Node]]
) -> set[ir.Node]:
    """Return the neighbours of nodes, theirs, and so on."""
    found: set[ir.Node] = set()
    left = list(nodes)
    while left:
        new = [each for each in beside(left.pop()) if each not in found]
        found.update(new)
        left += new
    return found


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
