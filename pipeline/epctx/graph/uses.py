"""Changes of nodes and graphs whose cost depends on the size of the change alone.

onnx_ir 1.1.0 rebuilds all inputs of a node to replace one, and looks at all outputs of a graph to
remove a node. Its public methods have no other way.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

_WIDE: Final = 64
"""Least number of a node's inputs for which onnx_ir's public methods are not used."""


def replace_all(old: ir.Value, new: ir.Value) -> None:
    """Replace all uses of `old` by nodes by `new`."""
    for node, place in old.uses():
        if _is_wide(node):
            node._inputs = (*node.inputs[:place], new, *node.inputs[place + 1 :])
            old._remove_usage(node, place)
            new._add_usage(node, place)
        else:
            node.replace_input_with(place, new)


def detach(node: ir.Node) -> None:
    """Remove a node from the users of its inputs, before the node itself is removed."""
    if _is_wide(node):
        for place, value in enumerate(node.inputs):
            if value is not None:
                value._remove_usage(node, place)
        node._inputs = ()
    for place in range(len(node.inputs)):
        node.replace_input_with(place, None)


def remove(node: ir.Node) -> None:
    """Take a node whose outputs nobody uses out of its graph."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    assert not any(value.uses() or value.is_graph_output() for value in node.outputs)
    detach(node)
    node.graph = None
    graph._nodes.remove(node)


def _is_wide(node: ir.Node) -> bool:
    return len(node.inputs) >= _WIDE and not node.device_configurations
