"""A QNN context binary held against the EPContext nodes that refer to it.

QNN 2.7.0 binds a tensor of a graph to the input or output of the node that has its name, else to
the one that the attribute `io_name_overrides` gives for it. If the node has that attribute and none
fits, the process ends with SIGABRT. Without the attribute QNN binds by a position that depends on
the order in which the rest of the model reads the outputs: wrong numbers, without an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Final

from epctx.errors import CompileError
from epctx.graph.epcontext import EPContextNode
from epctx.providers.base import BinaryGraph, BinaryTensor
from epctx.providers.onnxruntime.qnn import socs
from epctx.providers.onnxruntime.qnn.binary import QnnBinary, QnnContext

if TYPE_CHECKING:
    import onnx_ir as ir

FLEXIBLE: Final = "is_multi_soc_ep_context"
"""The attribute of an EPContext node whose context binary is for several chips."""


def require(
    binary: QnnBinary,
    nodes: Sequence[ir.Node],
    *,
    chips: Sequence[int],
    where: str,
    all_nodes: bool = True,
) -> None:
    """Every node has its graph, with its inputs and outputs, for each chip; the chips are those
    asked for.

    Args:
        chips: those asked for; none: any.
        all_nodes: the binary has no graphs of other nodes.

    Raises:
        CompileError: something of that is not so.
    """
    there = [each.soc_model for each in binary.contexts if each.soc_model is not None]
    if chips and there and sorted(there) != sorted(chips):
        wrong = f"it is for soc_model {socs.listed(there)}, not {socs.listed(chips)}"
        raise _misfit(wrong, where)
    for node in nodes:
        flag = node.attributes.get(FLEXIBLE)
        if binary.flexible != bool(flag is not None and flag.as_int()):
            wrong = f"it holds {len(binary.contexts)} chips; node {node.name} has {flag}"
            raise _misfit(wrong, where)
    for context in binary.contexts:
        _require_graphs(context, nodes, where, all_nodes=all_nodes)


def _require_graphs(
    context: QnnContext, nodes: Sequence[ir.Node], where: str, *, all_nodes: bool
) -> None:
    graphs = {graph.name: graph for graph in context.graphs}
    if len(nodes) == len(graphs) == 1:
        # A single graph is found without its name, which a prefix may have changed in the node.
        _require_interface(context.graphs[0], nodes[0], where)
        return
    names = sorted(node.name or "" for node in nodes)
    if (sorted(graphs) != names) if all_nodes else not graphs.keys() >= set(names):
        raise _misfit(f"it holds {', '.join(sorted(graphs))}; the nodes are {names}", where)
    for node in nodes:
        _require_interface(graphs[node.name or ""], node, where)


def _require_interface(graph: BinaryGraph, node: ir.Node, where: str) -> None:
    own_names = EPContextNode.from_ir(node).own_names
    for kind, tensors, values in (
        ("inputs", graph.inputs, node.inputs),
        ("outputs", graph.outputs, node.outputs),
    ):
        given = {tensor.name: tensor for tensor in tensors}
        names = [value.name or "" for value in values if value is not None]
        bound = [name if name in given else own_names.get(name, name) for name in names]
        if sorted(bound) != sorted(given):
            raise _misfit(
                f"graph {graph.name} has the {kind} {', '.join(sorted(given))}; node {node.name} "
                f"has {', '.join(sorted(bound))}",
                where,
            )
        for name, value in zip(bound, filter(None, values), strict=True):
            if not _same_size(given[name], value):
                raise _misfit(
                    f"{name} of graph {graph.name} has the shape {list(given[name].shape)}; in "
                    f"the model it has {value.shape}",
                    where,
                )


def _same_size(tensor: BinaryTensor, value: ir.Value) -> bool:
    """QNN may write a scalar as one element, so sizes are compared where both are known."""
    shape = value.shape
    if shape is None or not shape.is_static():
        return True
    return prod(tensor.shape) == prod(shape.numpy())


def _misfit(why: str, where: str) -> CompileError:
    return CompileError(
        "the context binary is not the one of these models",
        where=where,
        why=why,
        remedy="build again; if it stays, report it with the models",
    )
