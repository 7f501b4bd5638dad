from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from epctx.errors import ModelError
from epctx.graph.prepare import functions

HEAD = '<ir_version: 10, opset_import: ["":17, "l":1]> g (float[N] x) => (float[N] z) '


def _inline(text: str) -> onnx.ModelProto:
    return functions.inline(onnx.parser.parse_model(text), where="m.onnx")


def _refused(text: str) -> str:
    with pytest.raises(ModelError) as caught:
        _inline(text)
    return str(caught.value)


def _run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def test_calls_become_nodes_with_attributes_and_names_of_their_own() -> None:
    model = _inline(
        HEAD
        + "{ [one] y = l.scale<by = 2.0>(x) [two] z = l.scale(y) }"
        + '<domain: "l", opset_import: ["":17]> scale <by: float = 10.0> (x) => (y) '
        + "{ [c] k = Constant<value_float: float = @by>() [m] y = Mul(x, k) }"
    )
    assert not model.functions
    assert {node.op_type for node in model.graph.node} == {"Constant", "Mul"}
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names) == 4
    assert _run(model, np.array([1, 3], np.float32)).tolist() == [20, 60]


def test_overloads_are_told_apart() -> None:
    model = _inline(
        HEAD
        + "{ y = l.f:one(x) z = l.f:two(y) }"
        + '<domain: "l", overload: "one", opset_import: ["":17]> f (x) => (y) { y = Neg(x) }'
        + '<domain: "l", overload: "two", opset_import: ["":17]> f (x) => (y) { y = Abs(x) }'
    )
    assert [node.op_type for node in model.graph.node] == ["Neg", "Abs"]


def test_calls_in_functions_and_in_subgraphs_are_inlined() -> None:
    model = _inline(
        HEAD.replace("float[N] x)", "float[N] x, bool c)")
        + "{ z = If(c) <then_branch = t () => (float[N] o) { o = l.outer(x) }, "
        + "else_branch = e () => (float[N] p) { p = l.inner(x) }> }"
        + '<domain: "l", opset_import: ["":17, "l":1]> outer (x) => (y) '
        + "{ t = l.inner(x) y = Neg(t) }"
        + '<domain: "l", opset_import: ["":17]> inner (x) => (y) { y = Abs(x) }'
    )
    (node,) = model.graph.node
    bodies = {attribute.name: attribute.g for attribute in node.attribute}
    assert [each.op_type for each in bodies["then_branch"].node] == ["Abs", "Neg"]
    assert [each.op_type for each in bodies["else_branch"].node] == ["Abs"]


def test_an_optional_output_that_is_not_asked_for() -> None:
    model = _inline(
        HEAD
        + '{ z = l.two(x) } <domain: "l", opset_import: ["":17]> two (x) => (y, t) '
        + "{ y = Neg(x) t = Abs(x) }"
    )
    assert _run(model, np.array([1], np.float32)).tolist() == [-1]


def test_an_opset_that_only_a_function_imports_is_imported() -> None:
    model = _inline(
        HEAD
        + '{ z = l.f(x) } <domain: "l", opset_import: ["":17, "ai.onnx.ml":3]> f (x) => (y) '
        + "{ y = ai.onnx.ml.Binarizer(x) }"
    )
    assert ("ai.onnx.ml", 3) in {(each.domain, each.version) for each in model.opset_import}


def test_symbols_of_a_function_are_not_those_around() -> None:
    model = onnx.parser.parse_model(
        HEAD + '{ z = l.f(x) } <domain: "l", opset_import: ["":17]> f (x) => (y) { y = Relu(x) }'
    )
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])
    model.functions[0].value_info.append(value)
    inlined = functions.inline(model, where="m.onnx")
    symbols = {d.dim_param for v in inlined.graph.value_info for d in v.type.tensor_type.shape.dim}
    assert "N" not in symbols


def test_recursion_is_refused_with_its_circle() -> None:
    message = _refused(
        HEAD
        + '{ z = l.a(x) } <domain: "l", opset_import: ["l":1]> a (x) => (y) { y = l.b(x) }'
        + '<domain: "l", opset_import: ["l":1]> b (x) => (y) { y = l.a(x) }'
    )
    assert "l::a -> l::b -> l::a" in message


def test_a_function_defined_twice_is_refused() -> None:
    function = '<domain: "l", opset_import: ["":17]> f (x) => (y) { y = Relu(x) }'
    assert "twice" in _refused(HEAD + "{ z = l.f(x) }" + function * 2)


def _chain(length: int, calls: int) -> str:
    def body(i: int) -> str:
        names = ["x", *(f"t{j}" for j in range(1, calls)), "y"]
        op = f"l.f{i + 1}" if i < length else "Relu"
        return " ".join(f"{names[j + 1]} = {op}({names[j]})" for j in range(calls))

    return HEAD + "{ z = l.f0(x) }" + "".join(
        f'<domain: "l", opset_import: ["":17, "l":1]> f{i} (x) => (y) {{ {body(i)} }}'
        for i in range(length + 1)
    )  # fmt: skip


def test_functions_that_double_at_every_level_are_refused_before_they_are_inlined() -> None:
    message = _refused(_chain(40, 2))
    assert f"{2**41:,}" in message
    assert "fewer nested functions" in message


def test_a_long_chain_of_functions_is_refused_before_the_stack_is_full() -> None:
    assert "200 deep" in _refused(_chain(3000, 1))


def test_a_call_with_more_inputs_than_the_function_has_is_refused() -> None:
    message = _refused(
        HEAD + '{ z = l.f(x, x) } <domain: "l", opset_import: ["":17]> f (x) => (y) { y = Relu(x) }'
    )
    assert "cannot be inlined: Number of actual parameters" in message


def test_a_call_that_the_inliner_leaves_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx.inliner, "inline_local_functions", lambda model: model)
    message = _refused(
        HEAD + '{ z = l.f(x) } <domain: "l", opset_import: ["":17]> f (x) => (y) { y = Relu(x) }'
    )
    assert "the l::f node that makes 'z' calls a local function that cannot be inlined" in message
