"""What would let an EP take a node: types that it is asked about, and older opsets."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from epctx.providers.onnxruntime import builtin, capability, session
from tests.kit.onnx_text import model

PROVIDER = builtin.BuiltInProvider("SomeExecutionProvider", {})


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """A mock of an EP that takes 32 bits; a real one is asked in test_npu_coverage.py."""
    found: list[set[int]] = []

    def takes(name: str, provider: object) -> bool:
        graph = onnx.load(Path(name), load_external_data=False).graph
        infos = (*graph.input, *graph.output)
        types = {info.type.tensor_type.elem_type for info in infos}
        types |= {tensor.data_type for tensor in graph.initializer}
        found.append(types)
        return types <= {onnx.TensorProto.FLOAT, onnx.TensorProto.INT32}

    monkeypatch.setattr(session, "needs_compilation", takes)
    return found


def told(text: str) -> dict[str, str]:
    whole = model(text)
    found = capability.remedies(whole, list(whole.graph), PROVIDER)
    return {str(node.name): why for node, why in found.items()}


def test_another_type_is_proposed_where_the_ep_takes_it(asked: list[set[int]]) -> None:
    """Its small weights change with it; nodes that differ in sizes only are asked about once."""
    found = told(
        "g (double[2] x, double[3] z) => (double[2] y, double[3] w) <double k = {2.0}>"
        " { [one] y = Mul(x, k) [two] w = Mul(z, k) }"
    )
    said = (
        "another data type: SomeExecutionProvider says that it takes this node with float in place "
        "of double"
    )
    assert found == {"one": said, "two": said}
    assert asked == [{int(ir.DataType.DOUBLE)}, {int(ir.DataType.FLOAT)}]


def test_a_node_that_is_taken_alone_needs_no_other_type() -> None:
    assert told("g (float[2] x) => (float[2] y) { [one] y = Neg(x) }") == {}


def test_of_no_type_that_would_do_nothing_is_said() -> None:
    assert told("g (string[2] x) => (string[2] y) { [one] y = Identity(x) }") == {}


def test_the_operators_that_onnx_defines_a_node_by_are_asked_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def takes(name: str, provider: object) -> bool:
        return all(node.op_type != "Celu" for node in onnx.load(name).graph.node)

    monkeypatch.setattr(session, "needs_compilation", takes)
    assert told("g (float[2] x) => (float[2] y) { [one] y = Celu(x) }")["one"] == (
        "other operators, by which ONNX defines it: `onnx.inliner.inline_selected_functions"
        '(model, [("", "Celu")], inline_schema_functions=True)`'
    )


@pytest.mark.parametrize(
    "node",
    ["Celu(x)", "Erf(x)", "GroupNormalization<num_groups=1>(x, s, s)"],
)
def test_of_operators_that_are_not_taken_or_not_known_nothing_is_said(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "needs_compilation", lambda name, provider: False)
    scale = "<float[2] s = {1.0, 1.0}>"
    assert told(f"g (float[1, 2, 2] x) => (float[1, 2, 2] y) {scale} {{ [one] y = {node} }}") == {}
