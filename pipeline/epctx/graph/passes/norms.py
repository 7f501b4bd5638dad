"""Norms that ONNX Runtime's tools fused with the sum before them, taken apart.

EPs know the sum and the norm, and not all of them the two in one: QNN 2.7.0 takes no
SkipSimplifiedLayerNormalization, of which a decoder of onnxruntime-genai's builder has two in each
layer, and is cut there. It is no part of a level, since it is not exact: the fused kernel of ONNX
Runtime adds up squares in another order (4e-7 in float32, a step of float16; 1.31.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import onnx_ir as ir

from epctx.graph.passes import edit
from epctx.graph.passes.base import CountingPass

_FUSED: Final = {
    "SkipSimplifiedLayerNormalization": "SimplifiedLayerNormalization",
    "SkipLayerNormalization": "LayerNormalization",
}
"""Ops of com.microsoft, and the norm in each: in ONNX Runtime both are of the default domain."""


class SplitNormsPass(CountingPass):
    """Write `Add` and a norm for each norm of a sum."""

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Counts by op."""
        changed: Counter[str] = Counter()
        editor, known = edit.Editor(model), 17 <= edit.opset(model) <= edit.NEWEST_OPSET
        for graph in model.graphs():
            for node in graph:
                if known and node.domain == "com.microsoft" and node.op_type in _FUSED:
                    changed[node.op_type] += _split(node, editor)
        return changed


def _split(node: ir.Node, editor: edit.Editor) -> bool:
    """Take one apart; not one whose mean or deviation is used. The sum and the norm keep their
    names: what crosses a cut is then found in the source.
    """
    out, statistics, sums = node.outputs[0], node.outputs[1:3], node.outputs[3:]
    if any(value.uses() or value.is_graph_output() for value in statistics):
        return False
    x, skip, *weights = node.inputs
    bias = weights.pop() if len(weights) == _most_weights(node) else None
    made = [_node(node, "Add", [x, skip], x, editor)]
    if bias is not None:
        made.append(_node(node, "Add", [made[0].outputs[0], bias], x, editor))
    total = made[-1].outputs[0]
    norm = _node(node, _FUSED[node.op_type], [total, *weights], out, editor)
    norm.attributes.add(ir.AttrFloat32("epsilon", node.attributes.get_float("epsilon", 1e-12)))
    norm.attributes.add(ir.AttrInt64("axis", -1))
    edit.graph_of(out).insert_before(node, [*made, norm])
    for old, new in ((out, norm.outputs[0]), *((each, total) for each in sums)):
        if old.name and not old.is_graph_output():
            new.name, old.name = old.name, None
        editor.substitute(old, new)
    edit.remove(node)
    return True


def _most_weights(node: ir.Node) -> int:
    """How many inputs it may have beside the two of the sum; the last of them is added to it."""
    return 3 if node.op_type == "SkipLayerNormalization" else 2


def _node(
    node: ir.Node,
    op: str,
    inputs: list[ir.Value | None],
    like: ir.Value | None,
    editor: edit.Editor,
) -> ir.Node:
    assert like is not None
    name = editor.free_name(f"{node.name or node.outputs[0].name}/{op}")
    output = ir.Value(name=editor.free_name(f"{name}/output"), shape=like.shape, type=like.type)
    return ir.Node("", op, inputs, outputs=[output], name=name)
