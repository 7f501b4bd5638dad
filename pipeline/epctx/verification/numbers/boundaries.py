"""EPContext nodes of a file that cannot be loaded here, held to the sessions that stand in for it.

What a generating session computes says nothing of the names and the order in which its values go
into a file and come out of it, so these are compared beside the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx

from epctx.graph.epcontext import EPContextNode
from epctx.graph.serde import protos
from epctx.inference.values import NodeArg
from epctx.providers.base import Boundary, Port
from epctx.verification.folder import context_nodes


def differences(model: onnx.ModelProto, wanted: Sequence[Boundary]) -> Iterator[str]:
    """Yield how a file's EPContext nodes differ from those that the generating sessions ran."""
    described = _described(model)
    there = {node.name: node for node in context_nodes(model)}
    for name in there.keys() - {each.node for each in wanted}:
        yield f"no session made its node {name!r}"
    for each in wanted:
        node = there.get(each.node)
        if node is None:
            yield f"it lacks the node {each.node!r}"
            continue
        own = EPContextNode.from_proto(node).own_names
        for kind, given, right in (
            ("inputs", node.input, each.inputs),
            ("outputs", node.output, each.outputs),
        ):
            names, wanted_names = [own.get(n, n) for n in given], [port.name for port in right]
            if names != wanted_names:
                where = f"node {each.node!r}: {kind}"
                yield f"{where} are {', '.join(names)}, not {', '.join(wanted_names)}"
                continue
            for name, port in zip(given, right, strict=True):
                yield from _misfit(described.get(name), port)


def _described(model: onnx.ModelProto) -> Mapping[str, NodeArg]:
    found: dict[str, NodeArg] = {}
    for graph in protos.graphs(model):
        found |= {i.name: NodeArg.of(i) for i in (*graph.value_info, *graph.output, *graph.input)}
        for tensor in graph.initializer:
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            found[tensor.name] = NodeArg.of(info)
    return found


def _misfit(given: NodeArg | None, right: Port) -> Iterator[str]:
    if given is None or not right.type:
        return
    if given.type != right.type:
        yield f"{right.name!r} is {given.type}, not {right.type}"
    pairs = list(zip(given.shape, right.shape, strict=False))
    differ = any(isinstance(one, int) and two not in (None, one) for one, two in pairs)
    if given.ranked and (differ or len(given.shape) != len(right.shape)):
        yield f"{right.name!r} has the shape {given.shape}, not {list(right.shape)}"
