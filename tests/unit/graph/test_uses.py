from __future__ import annotations

import onnx_ir as ir
import pytest

from epctx.graph import uses

WIDTHS = (3, uses._WIDE)
"""Below and from the bound at which onnx_ir's own methods are not used."""


def values(count: int) -> list[ir.Value]:
    return [ir.Value(name=f"v{i}") for i in range(count)]


@pytest.mark.parametrize("width", WIDTHS)
def test_all_uses_go_to_the_new_value(width: int) -> None:
    inputs, new = values(width), ir.Value(name="new")
    node = ir.node("Sum", [inputs[0], *inputs[1:], inputs[0]])
    uses.replace_all(inputs[0], new)
    assert list(node.inputs) == [new, *inputs[1:], new]
    assert not inputs[0].uses()
    assert [(use.node, use.idx) for use in new.uses()] == [(node, 0), (node, width)]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_detached_node_uses_nothing(width: int) -> None:
    inputs = values(width)
    node = ir.node("Sum", [None, *inputs])
    uses.detach(node)
    assert not any(node.inputs)
    assert not any(value.uses() for value in inputs)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_node_is_removed_if_nobody_uses_it(width: int) -> None:
    inputs = values(width)
    dead, alive = ir.node("Sum", inputs), ir.node("Sum", inputs)
    outputs = [alive.outputs[0], *(ir.node("Neg", [value]).outputs[0] for value in inputs)]
    made = [value.producer() for value in outputs[1:]]
    graph = ir.Graph(inputs, outputs, nodes=[dead, alive, *filter(None, made)])
    uses.remove(dead)
    assert dead.graph is None
    assert next(iter(graph)) is alive
    assert all(len(value.uses()) == 2 for value in inputs)
    with pytest.raises(AssertionError):
        uses.remove(alive)
