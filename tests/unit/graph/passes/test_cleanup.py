"""Constant nodes, decided Ifs, and what nothing uses."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from epctx.graph.passes.cleanup import RemoveUnusedOpsetsPass
from tests.kit import onnx_text, optimizing


@pytest.mark.parametrize(
    ("kind", "attribute", "value"),
    [
        ("float[2]", "value = float[2] {1.5, -0.0}", [1.5, -0.0]),
        ("int64", "value_int: int = 7", 7),
        ("int64[2]", "value_ints: ints = [7, 8]", [7, 8]),
        ("float", "value_float: float = 0.1", np.float32(0.1)),
        ("float[2]", "value_floats: floats = [0.1, 2.0]", np.array([0.1, 2.0], np.float32)),
        ("string", 'value_string: string = "ä"', "ä"),
        ("string[2]", 'value_strings: strings = ["a", "b"]', ["a", "b"]),
    ],
)
def test_lifts(kind: str, attribute: str, value: object) -> None:
    model = onnx_text.model(f"g () => ({kind} y) {{ a = Constant<{attribute}>() y = Identity(a) }}")
    result = optimizing.check(model, {}, "lift-constants")
    assert optimizing.ops(result) == {"Identity": 1}
    assert optimizing.changes(result) == {"lift-constants": {"Constant": 1}}
    found = optimizing.constants(result)["a"]
    text = np.char.decode(found.astype(np.bytes_)) if found.dtype.kind == "S" else found
    assert np.array_equal(np.ravel(text), np.ravel(np.asarray(value)))


def test_lifts_outputs_and_those_of_subgraphs() -> None:
    model = onnx_text.model(
        "g (bool c) => (int64 y, int64 z) { y = Constant<value_int: int = 1>() z = If(c) <"
        " then_branch = t () => (int64 u) { u = Constant<value_int: int = 2>() },"
        " else_branch = e () => (int64 v) { w = Constant<value_int: int = 3>() v = Neg(w) }> }"
    )
    for condition in (True, False):
        result = optimizing.check(model, {"c": np.array(condition)}, "lift-constants")
    assert optimizing.ops(result) == {"Identity": 1, "If": 1}
    then, other = result.model.graph.subgraphs()
    assert [node.op_type for node in then] == ["Identity"]
    assert list(other.initializers) == ["w"]


X = {"x": np.array([1.5, -2.0, 3.0], np.float32)}


@pytest.mark.parametrize("condition", [0, 1])
def test_takes_the_branch_of_a_constant_condition(condition: int) -> None:
    model = onnx_text.model(
        f"g (float[3] x) => (float[3] y) <bool c = {{{condition}}}> {{ a = Relu(x)"
        " y = If(c) <then_branch = t () => (float[3] u) { b = Abs(a) u = Neg(b) },"
        " else_branch = e () => (float[3] v) { b = Sin(a) v = Cos(b) }> }"
    )
    result = optimizing.check(model, X)
    expected = {"Abs", "Neg"} if condition else {"Sin", "Cos"}
    assert set(optimizing.ops(result)) == {"Relu"} | expected
    assert optimizing.changes(result)["resolve-branches"] == {"If": 1}


def test_names_of_both_graphs_stay_apart() -> None:
    model = onnx_text.model(
        "g (float[3] x) => (float[3] z) <bool c = {1}> { b = Relu(x)"
        " y = If(c) <then_branch = t () => (float[3] u) <float[3] w = {1,2,3}>"
        "   { b_1 = Add(x, w) u = Neg(b_1) },"
        " else_branch = e () => (float[3] v) { v = Cos(x) }>"
        " b_1 = Sin(b) w = Add(b_1, y) z = Sub(w, b) }"
    )
    result = optimizing.check(model, X)
    names = [value.name for node in result.model.graph for value in node.outputs]
    assert len(set(names)) == len(names) == 6


def test_a_condition_that_is_fed_stays() -> None:
    model = onnx_text.model(
        "g (bool c, float[3] x) => (float[3] y) {"
        " y = If(c) <then_branch = t () => (float[3] u) { u = Neg(x) },"
        " else_branch = e () => (float[3] v) { v = Cos(x) }> }"
    )
    result = optimizing.check(model, {"c": np.array(True), **X})
    assert optimizing.ops(result) == {"If": 1}


THREE = {"x": np.array([1.5, -2.0, 3.0], np.float32)}


def test_removes_nodes_and_initializers_and_keeps_inputs() -> None:
    model = onnx_text.model(
        "g (float[3] x, float[3] unused) => (float[3] y)"
        " <float[3] w = {1,2,3}, float[3] v = {1,2,3}> { a = Add(x, w) b = Neg(a) y = Abs(x) }"
    )
    result = optimizing.check(model, {**THREE, "unused": THREE["x"]}, "remove-dead-code")
    assert optimizing.changes(result) == {"remove-dead-code": {"nodes": 2, "initializers": 2}}
    assert optimizing.names(result.model.graph.inputs) == ["x", "unused"]


def test_what_only_a_removed_branch_used_goes_too() -> None:
    """onnx_ir's own pass keeps it (1.1.0)."""
    model = onnx_text.model(
        "g (bool c, float[3] x) => (float[3] y) <float[3] w = {1,2,3}> { a = Sin(x) d = If(c) <"
        " then_branch = t () => (float[3] u) { u = Add(a, w) },"
        " else_branch = e () => (float[3] v) { z = If(c) <"
        "   then_branch = p () => (float[3] s) { s = Neg(a) },"
        "   else_branch = q () => (float[3] r) { r = Cos(a) }> v = Mul(z, w) }> y = Abs(x) }"
    )
    result = optimizing.check(model, {"c": np.array(True), **THREE}, "remove-dead-code")
    assert optimizing.ops(result) == {"Abs": 1}
    assert not result.model.graph.initializers


def test_removes_imports_that_nothing_uses() -> None:
    model = onnx_text.model(
        "g (float[3] x) => (float[3] y) { a = other.Op(x) y = Abs(a) }",
        opsets='"" : 21, "other" : 1, "third" : 2',
        infer=False,
    )
    result = RemoveUnusedOpsetsPass()(model)
    assert isinstance(result, ir.passes.PassResult)
    assert model.opset_imports == {"": 21, "other": 1}
    assert getattr(result, "changed", None) == {"imports": 1}
