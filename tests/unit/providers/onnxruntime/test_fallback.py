"""Which nodes are asked about one by one, and that one answer is enough for those alike."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from epctx.errors import CompileError
from epctx.graph.dataflow import Dataflow
from epctx.providers.onnxruntime import fallback, probe
from tests.kit.onnx_text import model

TEXT = """
g (float[2] x, float[3] z) => (float[2] c, float[3] d, float[1, 2] f, float[2] g) {
    [one] a = Relu(x)
    [two] c = Relu(a)
    [three] d = Relu(z)
    [four] e = LeakyRelu <alpha = 0.1> (x)
    [five] shape = Constant <value_ints = [1, 2]> ()
    [six] f = Reshape(e, shape)
    [seven] g = LeakyRelu <alpha = 0.2> (x)
}"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A mock of the question: a real EP is asked in tests/integration/test_two_eps.py."""
    found: list[str] = []

    def takes_whole(model: ir.Model, node: ir.Node, provider: object) -> bool:
        found.append(str(node.name))
        if node.op_type == "Constant":
            raise CompileError("a model without inputs", remedy="none")
        return node.op_type != "LeakyRelu"

    monkeypatch.setattr(probe, "takes_whole", takes_whole)
    return found


def test_nodes_alike_are_asked_about_once(asked: list[str]) -> None:
    from epctx.providers.onnxruntime import builtin

    whole = model(TEXT)
    flow = Dataflow(whole)
    partition = flow.cut(0, range(len(flow.nodes)))
    provider = builtin.BuiltInProvider("SomeExecutionProvider", {})
    left = fallback.one_by_one(whole, partition, provider)
    assert asked == ["one", "four", "five", "six", "seven"], "sizes do not matter, attributes do"
    assert [node.name for node in left] == ["four", "seven"]
    assert set(left.values()) == {"SomeExecutionProvider did not take it, and does not say why"}
