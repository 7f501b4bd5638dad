"""`resolve-branches`: an If whose condition is a constant becomes the branch that is taken.

Exporters guard squeezes and broadcasts by the rank or size of a dimension; once dimensions are
fixed, only one branch is left, and no execution provider takes an If.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from epctx.graph.passes import edit
from epctx.graph.passes.base import CountingPass


class ResolveBranchesPass(CountingPass):
    """Put the taken branch in the place of each If with a constant condition."""

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Count of Ifs resolved.

        Values keep their names, which `unique-names` made unique; nodes get new ones where the
        graph around has theirs.
        """
        editor = edit.Editor(model)
        count = 0
        for node in [node for graph in model.graphs() for node in graph]:
            if node.graph is None:
                continue  # it was in a branch that is not taken
            branch = _taken(node)
            if branch is not None:
                _inline(node, branch, editor)
                count += 1
        return {"If": count}


def _taken(node: ir.Node) -> ir.Graph | None:
    if not edit.is_op(node, "If"):
        return None
    condition = edit.array(node.inputs[0])
    if condition is None or condition.size != 1:
        return None
    name = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
    return node.attributes[name].as_graph()


def _inline(node: ir.Node, branch: ir.Graph, editor: edit.Editor) -> None:
    """Move the branch's nodes before `node`, which goes."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    outputs = list(branch.outputs)
    branch.outputs.clear()
    for value in tuple(branch.initializers.values()):
        branch.initializers.pop(str(value.name))
        graph.register_initializer(value)
    moved = list(branch)
    branch.remove(moved)
    present = {each.name for each in graph}
    for each in moved:
        if each.name in present:
            each.name = editor.free_name(each.name or each.op_type)
    graph.insert_before(node, moved)
    for old, new in zip(node.outputs, outputs, strict=True):
        editor.substitute(old, new)
    edit.remove(node)
