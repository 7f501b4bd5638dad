"""Tests of the delegate: the conformance class, and the delegate's own rules."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from epctx_delegate.program import Program, Weights, decode, encode
from epctx_delegate.provider import DelegateExecutionProvider

from epctx.errors import InvalidGraph
from epctx.provider_tests import ExecutionProviderConformance


class TestConformance(ExecutionProviderConformance):
    """Tests that every provider must pass."""

    def create(self) -> DelegateExecutionProvider:  # noqa: D102 - the base says it
        return DelegateExecutionProvider({})


class TestConformanceInHalfPrecision(ExecutionProviderConformance):
    """The same tests with weights in float16."""

    max_rel = 1e-2

    def create(self) -> DelegateExecutionProvider:  # noqa: D102 - the base says it
        return DelegateExecutionProvider({"precision": "fp16"})


def test_it_says_why_it_declines() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]>
        g (float[2] x, int64[2] i) => (float[2] y, int64[2] j, float[2] z) {
            y = Relu(x)
            j = Add(i, i)
            z = LeakyRelu(x) }"""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    capability = DelegateExecutionProvider({}).get_capability(model)
    assert [node.op_type for node in capability.nodes] == ["Relu"]
    assert {node.op_type: reason for node, reason in capability.declined.items()} == {
        "Add": "the delegate computes float32 only",
        "LeakyRelu": "the delegate has no such operator",
    }


def context(*names: str, op: str = "Add") -> memoryview:
    weights, programs = Weights(), []
    for name in names:
        stored = {"w": weights.add(np.arange(1000, dtype=np.float32))}
        programs.append(Program(name, ("x",), ("y",), ((op, ("x", "w"), "y"),), stored))
    return memoryview(b"".join(encode(programs, weights)))


def test_equal_weights_are_stored_once() -> None:
    assert len(context("a", "b")) < len(context("a")) + 500
    _, kernel = decode(context("a", "b"), where="here")
    ones = ort.OrtValue.ortvalue_from_numpy(np.ones(1000, np.float32))
    (output,) = kernel.compute([ones])
    np.testing.assert_array_equal(output.numpy(), np.arange(1, 1001, dtype=np.float32))


def test_an_operator_that_it_does_not_have_is_refused_when_it_is_loaded() -> None:
    with pytest.raises(InvalidGraph, match="the delegate has no operators Frobnicate"):
        decode(context("a", op="Frobnicate"), where="here")
