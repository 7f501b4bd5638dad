"""An If of a constant is the branch that is taken."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kit import onnx_text, optimizing

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


def test_the_branch_that_is_not_taken_holds_on_to_nothing() -> None:
    model = onnx_text.model(
        "g (float[3] x) => (float[3] y) <bool c = {1}> { a = Sin(x) "
        " y = If(c) <then_branch = t () => (float[3] u) { u = Neg(x) },"
        " else_branch = e () => (float[3] v) { v = Cos(a) }> }"
    )
    result = optimizing.check(model, X)
    assert optimizing.ops(result) == {"Neg": 1}


def test_branches_in_branches_and_branches_that_only_pass_on() -> None:
    model = onnx_text.model(
        "g (float[3] x) => (float[3] y) <bool c = {1}, bool d = {0}, float[3] k = {7,8,9}> {"
        " y = If(c) <then_branch = t () => (float[3] u) {"
        "   u = If(d) <then_branch = tt () => (float[3] p) { p = Sin(x) },"
        "              else_branch = te () => (float[3] q) { q = Identity(k) }> },"
        " else_branch = e () => (float[3] v) { v = Cos(x) }> }"
    )
    result = optimizing.check(model, X)
    assert optimizing.ops(result) == {"Identity": 1}
    assert optimizing.changes(result)["resolve-branches"] == {"If": 2}


def test_a_branch_in_a_loop() -> None:
    model = onnx_text.model(
        "g (int64 n, float[3] x) => (float[3] y) <bool go = {1}> {"
        " y = Loop(n, go, x) <body = b (int64 i, bool c, float[3] s)"
        "   => (bool d, float[3] t) { d = Identity(c)"
        "     t = If(go) <then_branch = p () => (float[3] u) { u = Neg(s) },"
        "                 else_branch = q () => (float[3] v) { v = Cos(s) }> }> }"
    )
    result = optimizing.check(model, {"n": np.array(3), **X})
    (body,) = result.model.graph.subgraphs()
    assert [node.op_type for node in body] == ["Identity", "Neg"]


def test_a_condition_that_is_fed_stays() -> None:
    model = onnx_text.model(
        "g (bool c, float[3] x) => (float[3] y) {"
        " y = If(c) <then_branch = t () => (float[3] u) { u = Neg(x) },"
        " else_branch = e () => (float[3] v) { v = Cos(x) }> }"
    )
    result = optimizing.check(model, {"c": np.array(True), **X})
    assert optimizing.ops(result) == {"If": 1}
