"""EPContext nodes of a file that cannot be loaded here, held to the sessions that stand in for it.

What a generating session computes says nothing of the names and the order in which its values go
into a file and come out of it, so these are compared beside the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx

from epctx.graph.serde import protos
from epctx.providers.base import Boundary, Port
from epctx.runtime.arguments import NodeArg
from epctx.verification.folder import context_nodes


def differences(model: onnx.ModelProto, wanted: Sequence[Boundary]) -> Iterator[str]:
    """What of a file's EPContext nodes is not what the generating sessions ran, a clause each."""
    described = _described(model)
    there = {node.name: node for node in context_nodes(model)}
    for name in there.keys() - {each.node for each in wanted}:
        yield f"no session made its node {name!r}"
    for each in wanted:
        node = there.get(each.node)
        if node is None:
            yield f"it lacks the node {each.node!r}"
            continue
        yield from _of_ports(described, f"node {each.node!r}: inputs", node.input, each.inputs)
        yield from _of_ports(described, f"node {each.node!r}: outputs", node.output, each.outputs)


def _of_ports(
    described: Mapping[str, NodeArg], where: str, given: Sequence[str], right: Sequence[Port]
) -> Iterator[str]:
    names = [port.name for port in right]
    if list(given) != names:
        yield f"{where} are {', '.join(given)}, not {', '.join(names)}"
        return
    for port in right:
        yield from _misfit(described.get(port.name), port)


def _described(model: onnx.ModelProto) -> Mapping[str, NodeArg]:
    found: dict[str, NodeArg] = {}
    for graph in protos.graphs(model):
        for info in (*graph.value_info, *graph.output, *graph.input):
            found[info.name] = NodeArg.of(info)
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
