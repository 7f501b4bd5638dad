"""What nobody asks for: nodes, initializers, opset imports."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes import common

from epctx.graph.passes import edit
from epctx.graph.passes.base import CountingPass
from epctx.graph.serde.ordering import bodies


class RemoveDeadCodePass(CountingPass):
    """Remove nodes and initializers that no output depends on.

    Inputs of the graph stay, used or not. onnx_ir's pass of this kind keeps what the subgraphs of
    a removed node used, and the initializers of subgraphs.
    """

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Counts of what was removed."""
        changed = {"nodes": _nodes(model.graph), "initializers": 0}
        for graph in model.graphs():
            for value in tuple(graph.initializers.values()):
                before = len(graph.initializers)
                edit.discard_unused(value)
                changed["initializers"] += before - len(graph.initializers)
        return changed


def _nodes(graph: ir.Graph) -> int:
    count = 0
    for node in reversed(graph):
        if any(value.uses() or value.is_graph_output() for value in node.outputs):
            count += sum(_nodes(inner) for inner in bodies(node.attributes.values()))
        else:
            edit.remove(node)
            count += 1
    return count


class RemoveUnusedOpsetsPass(CountingPass):
    """Drop imports of domains that no node has; the default domain's stays."""

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Count of imports dropped."""
        before = len(model.opset_imports)
        common.RemoveUnusedOpsetsPass()(model)
        return {"imports": before - len(model.opset_imports)}
