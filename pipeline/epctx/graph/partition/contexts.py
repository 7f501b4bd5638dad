"""EPContext nodes that replace a partition, and the nodes that stayed beside them.

ONNX Runtime gets a partition as a whole, but its EP may take only parts of it. Each part is one
EPContext node of the published file, with nodes of the default EP between them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import onnx_ir as ir

from epctx.error_codes import Code
from epctx.errors import ManifestError
from epctx.graph.dataflow import Dataflow
from epctx.graph.epcontext import ENDS, OVERRIDES, EPContextNode, ends, is_epcontext
from epctx.graph.model import Partition, Placement, Replacement
from epctx.graph.partition.borders import Names


def placement(model: ir.Model) -> Placement:
    """Count the nodes and crossings of a model whose partitions have been replaced."""
    flow = Dataflow(model)
    owners = [EPContextNode.from_ir(n).source if is_epcontext(n) else None for n in flow.nodes]
    contexts = sum(map(is_epcontext, flow.nodes))
    return Placement(
        context_nodes=contexts,
        default_nodes=len(flow.nodes) - contexts,
        crossings=sum(
            any(owners[user] != owners[maker] for user in flow.consumers.get(value, ()))
            for value, maker in flow.producer.items()
        ),
    )


def bind_ends(graph: ir.Graph) -> None:
    """Write `io_name_overrides` for EPContext nodes whose inputs or outputs were renamed.

    ONNX Runtime 1.31.1 copies a shared DequantizeLinear whenever it loads a model, and so renames
    an input of the node. Such a node gets its own copy here.

    Raises:
        ManifestError: the EP would confuse two values, or cannot read a name.
    """
    names = Names(graph, (), ())
    for node in [node for node in graph if ENDS in node.meta]:
        for place, value in enumerate(node.inputs):
            maker = None if value is None else value.producer()
            if value is None or maker is None or maker.op_type != "DequantizeLinear":
                continue
            if len(value.uses()) > 1 or value.is_graph_output():
                name, label = names.value(value.name or ""), names.node(maker.name or "")
                own = ir.Value(name=name, type=value.type, shape=value.shape)
                copied = maker.domain, maker.op_type, maker.inputs, maker.attributes.values()
                graph.insert_after(maker, ir.Node(*copied, outputs=[own], name=label))
                node.replace_input_with(place, own)
        if ends(node) != node.meta[ENDS]:
            _override(node, node.meta[ENDS])


def _override(node: ir.Node, before: Sequence[str]) -> None:
    own_names = EPContextNode.from_ir(node).own_names
    names, own = ends(node), [own_names.get(name, name) for name in before]
    first = len(names) - len(node.outputs)
    for side in (slice(first), slice(first, None)):
        for name, end in zip(names[side], own[side], strict=True):
            taken = names[side].count(name) > 1 or (name != end and name in own[side])
            if taken or {"=", ";"} & {*name, *end}:
                raise ManifestError(
                    f'the EP cannot find "{end}" of the compiled graph under the name "{name}"',
                    node=node.name,
                    why="another value has this name, or one of the two contains `=` or `;`",
                    remedy="give another `prefix`, or feed the part from an input of another name",
                    code=Code.COMPOSITION,
                )
    pairs = "".join(f"{name}={end};" for name, end in zip(names, own, strict=True))
    node.attributes[OVERRIDES] = ir.AttrString(OVERRIDES, pairs)


def is_one(replacement: Replacement) -> bool:
    """Tell whether one EPContext node replaces the whole partition."""
    nodes = list(replacement.fragment.graph)
    return len(nodes) == 1 and is_epcontext(nodes[0])


def divide(
    flow: Dataflow, replacement: Replacement, default_nodes: Container[ir.Node]
) -> tuple[Partition, ...]:
    """Divide the nodes of a partition that an EP took among the EPContext nodes that it made.

    Args:
        flow: dataflow of the model before the replacement is spliced in.
        default_nodes: nodes that stayed on the default EP.
    """
    partition = replacement.partition
    contexts = [node for node in replacement.fragment.graph if is_epcontext(node)]
    kept = [node for node in partition.nodes if node not in default_nodes]
    if len(contexts) == 1 and len(kept) == len(partition.nodes):
        return (partition,)
    owner: dict[ir.Node, int] = {}
    for number, context in enumerate(contexts):
        for node in _behind(context, partition):
            if node not in default_nodes:
                owner.setdefault(node, number)
    for node in reversed(kept):  # folded nodes make no output of an EPContext node
        if node not in owner:
            users = (user for value in node.outputs for user in value.consumers())
            owner[node] = next((owner[user] for user in users if user in owner), 0)
    places = {node: place for place, node in enumerate(flow.nodes)}
    members: list[list[int]] = [[] for _ in contexts]
    for node in kept:
        members[owner[node]].append(places[node])
    return tuple(flow.cut(partition.provider, each) for each in members if each)


def _behind(context: ir.Node, partition: Partition) -> Iterator[ir.Node]:
    """Yield the partition's nodes between an EPContext node's inputs and outputs."""
    inside = set(partition.nodes)
    makers = {value.name: node for node in partition.nodes for value in node.outputs}
    border = {value.name for value in context.inputs if value is not None}
    todo = [makers[value.name] for value in context.outputs if value.name in makers]
    seen = set(todo)
    while todo:
        node = todo.pop()
        yield node
        for value in node.inputs:
            producer = None if value is None or value.name in border else value.producer()
            if producer in inside and producer not in seen:
                assert producer is not None
                seen.add(producer)
                todo.append(producer)
