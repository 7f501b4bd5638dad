"""Passes that remove Constant nodes, decided Ifs, and unused nodes, initializers and opsets.

Exporters guard squeezes and broadcasts by the rank or size of a dimension; once dimensions are
fixed, only one branch is left, and no execution provider takes an If.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from epctx.graph.passes import edit
from epctx.graph.passes.base import CountingPass
from epctx.graph.serde.ordering import bodies


class LiftConstantsPass(CountingPass):
    """Turn every Constant of a dense tensor into an initializer of its graph.

    Unlike onnx_ir's pass of that name, it also does so for graph outputs (through an Identity), and
    for every size.
    """

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Return the count of lifted constants."""
        editor = edit.Editor(model)
        count = 0
        for graph in model.graphs():
            for node in graph:
                tensor = _constant_tensor(node)
                if tensor is not None:
                    editor.make_constant(node.outputs[0], tensor)
                    edit.remove(node)
                    count += 1
        return {"Constant": count}


def _constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
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


class ResolveBranchesPass(CountingPass):
    """Replace each If with a constant condition by the taken branch."""

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Return the count of resolved Ifs.

        Values keep their names, which `unique-names` made unique. Nodes get new names if the outer
        graph has theirs.
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
    """Move the branch's nodes before `node`, and remove `node`."""
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


class RemoveDeadCodePass(CountingPass):
    """Remove nodes and initializers that no output depends on.

    Inputs of the graph stay, used or not. onnx_ir's pass of this kind keeps values that subgraphs
    of a removed node used, and the initializers of subgraphs.
    """

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Return counts of removed nodes and initializers."""
        changed = {"nodes": _remove_dead_nodes(model.graph), "initializers": 0}
        for graph in model.graphs():
            for value in tuple(graph.initializers.values()):
                before = len(graph.initializers)
                edit.discard_unused(value)
                changed["initializers"] += before - len(graph.initializers)
        return changed


def _remove_dead_nodes(graph: ir.Graph) -> int:
    count = 0
    for node in reversed(graph):
        if any(value.uses() or value.is_graph_output() for value in node.outputs):
            count += sum(_remove_dead_nodes(inner) for inner in bodies(node.attributes.values()))
        else:
            edit.remove(node)
            count += 1
    return count


class RemoveUnusedOpsetsPass(CountingPass):
    """Drop imports of unused domains; the default domain's stays."""

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Return the count of dropped imports."""
        before = len(model.opset_imports)
        common.RemoveUnusedOpsetsPass()(model)
        return {"imports": before - len(model.opset_imports)}
