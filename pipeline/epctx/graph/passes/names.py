"""`unique-names`: no value of a subgraph has a name that another graph has."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from epctx.graph.passes.base import CountingPass


class UniqueNamesPass(CountingPass):
    """Rename values of subgraphs whose names other graphs have too.

    ONNX finds a value by its name, innermost graph first: a pass that moves a value could make a
    name mean another one. The main graph's names stay, and those of subgraphs' inputs and outputs
    mean nothing outside.
    """

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Count of values renamed."""
        taken = {str(value.name) for value in _values(model.graph)}
        counters: dict[str, int] = {}
        count = 0
        for graph in model.graph.subgraphs():
            for value in _values(graph):
                name = str(value.name)
                if name in taken:
                    value.name = name = _next(name, taken, counters)
                    count += 1
                taken.add(name)
        return {"values": count}


def _values(graph: ir.Graph) -> list[ir.Value]:
    """Values that a graph defines and that have a name, each once."""
    values = dict.fromkeys((*graph.inputs, *graph.initializers.values()))
    values.update(dict.fromkeys(v for node in graph for v in node.outputs if v.name))
    return list(values)


def _next(name: str, taken: set[str], counters: dict[str, int]) -> str:
    while True:
        counters[name] = counters.get(name, 0) + 1
        candidate = f"{name}_{counters[name]}"
        if candidate not in taken:
            return candidate
