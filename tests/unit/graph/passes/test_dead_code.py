"""What no output depends on goes; what has another meaning when it goes stays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from epctx.graph.passes.dead_code import RemoveUnusedOpsetsPass
from tests.kit import onnx_text, optimizing

X = {"x": np.array([1.5, -2.0, 3.0], np.float32)}


def test_removes_nodes_and_initializers_and_keeps_inputs() -> None:
    model = onnx_text.model(
        "g (float[3] x, float[3] unused) => (float[3] y)"
        " <float[3] w = {1,2,3}, float[3] v = {1,2,3}> { a = Add(x, w) b = Neg(a) y = Abs(x) }"
    )
    result = optimizing.check(model, {**X, "unused": X["x"]}, "remove-dead-code")
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
    result = optimizing.check(model, {"c": np.array(True), **X}, "remove-dead-code")
    assert optimizing.ops(result) == {"Abs": 1}
    assert not result.model.graph.initializers


def test_removes_inside_subgraphs() -> None:
    model = onnx_text.model(
        "g (bool c, float[3] x) => (float[3] y) { y = If(c) <"
        " then_branch = t () => (float[3] u) <float[3] w = {1,2,3}> { a = Add(x, w) u = Neg(x) },"
        " else_branch = e () => (float[3] v) { v = Cos(x) }> }"
    )
    result = optimizing.check(model, {"c": np.array(True), **X}, "remove-dead-code")
    assert optimizing.changes(result) == {"remove-dead-code": {"nodes": 1, "initializers": 1}}


def test_outputs_that_are_left_out_stay_left_out() -> None:
    model = onnx_text.model(
        "g (float[1,1,4] p) => (int64[1,1,2] i) {"
        " a, i = MaxPool<kernel_shape = [2], strides = [2]>(p) }"
    )
    feeds = {"p": np.array([[[1, 2, 4, 3]]], np.float32)}
    result = optimizing.check(model, feeds, "remove-dead-code")
    assert optimizing.changes(result) == {}


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
