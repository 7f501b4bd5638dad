"""Names of values inside bodies that another graph of the model has, too.

ONNX Runtime lets a body's value hide an outer one of that name. onnx 1.23's inference does not: it
merges the two types, and reads the content that it found for one where the other is meant. So each
value has a name of its own while onnx infers.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from epctx.graph.serde import protos


def rename(model: onnx.ModelProto) -> Mapping[str, str]:
    """Give each value of a body, whose name another graph has, a name of its own.

    Returns:
        The names that they had, by the new ones.
    """
    if not any(True for node in model.graph.node for _ in protos.subgraphs(node)):
        return {}
    taken = {name for graph in protos.graphs(model) for name in _made(graph)}
    seen = _made(model.graph)
    before: dict[str, str] = {}

    def enter(graph: onnx.GraphProto, outer: Mapping[str, str]) -> None:
        names = dict(outer)
        for name in sorted(_made(graph)):
            names.pop(name, None)
            if name in seen:
                count = len(before)
                while (new := f"{name}/{count}") in taken:
                    count += 1
                taken.add(new)
                before[new], names[name] = name, new
            seen.add(name)
        _replace(graph, names)
        for node in graph.node:
            for body in protos.subgraphs(node):
                enter(body, names)

    for node in model.graph.node:
        for body in protos.subgraphs(node):
            enter(body, {})
    return before


def restore(model: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Undo `rename`, which returned `names`."""
    for graph in protos.graphs(model) if names else ():
        _replace(graph, names)


def _made(graph: onnx.GraphProto) -> set[str]:
    made = {name for node in graph.node for name in node.output if name}
    made.update(value.name for value in (*graph.input, *graph.initializer))
    made.update(sparse.values.name for sparse in graph.sparse_initializer)
    return made


def _replace(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = names.get(sparse.values.name, sparse.values.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
