"""Constant nodes become initializers, whatever attribute they have."""

from __future__ import annotations

import numpy as np
import pytest

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
