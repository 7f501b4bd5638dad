"""Precision of outputs, outputs that hold probabilities, and limits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.manifest import ProviderSpec, Tolerance
from epctx.providers import registry
from epctx.providers.base import Precision
from epctx.verification.numbers.tolerances import (
    GAIN,
    Precisions,
    limits,
    of_output,
    precisions,
    probability_outputs,
)
from tests.kit import onnx_text
from tests.kit.fake_providers import Taker, op_types


def source(kind: int, *ops: str, weight: type = np.float32) -> onnx.ModelProto:
    """Each op reads the input and the weight, and makes the output `y`."""
    value = helper.make_tensor_value_info
    nodes = [helper.make_node(op, ["x", "w"], ["y"]) for op in ops]
    weights = [numpy_helper.from_array(np.zeros(1, weight), "w")]
    output = onnx.ValueInfoProto(name="y")
    graph = helper.make_graph(nodes, "g", [value("x", kind, [1])], [output], weights)
    return helper.make_model(graph)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (source(TensorProto.FLOAT, "Add"), "float32"),
        (source(TensorProto.FLOAT, "Add", weight=np.float16), "float16"),
        (source(TensorProto.BFLOAT16, "Add", weight=np.float16), "bfloat16"),
        (source(TensorProto.DOUBLE, "Add", weight=np.float64), "float64"),
        (source(TensorProto.INT64, "Add", weight=np.int64), "float32"),
        (source(TensorProto.FLOAT, "QuantizeLinear"), "quantized"),
        (source(TensorProto.FLOAT, "QLinearConv"), "quantized"),
        (source(TensorProto.UINT8, "MatMulInteger"), "quantized"),
        (source(TensorProto.FLOAT, "DequantizeLinear", weight=np.int8), "float32"),
        (source(TensorProto.FLOAT, "MatMulNBits", weight=np.uint8), "float32"),
    ],
)
def test_the_precision_of_one_output(model: onnx.ModelProto, expected: str) -> None:
    assert precisions(model) == {"y": expected}


HALF = "h = Cast <to = 10> ({0}) {1} = Cast <to = 1> (h)"
HEADS = "g (float[2] x) => (float[2] a, float[2] b) "
CASES = {
    "one head casts": (
        HEADS + "{ t = Tanh(x) a = Relu(t)" + HALF.format("t", "b") + " }",
        {"a": "float32", "b": "float16"},
    ),
    "both heads come after the cast": (
        HEADS + "{" + HALF.format("x", "t") + " a = Relu(t) b = Neg(t) }",
        {"a": "float16", "b": "float16"},
    ),
    "one branch quantizes": (
        HEADS + "{ q, s, z = DynamicQuantizeLinear(x) a = DequantizeLinear(q, s, z) b = Neg(x) }",
        {"a": "quantized", "b": "float32"},
    ),
    "a half constant": (
        HEADS + "{ c = Constant <value = float16[2] {1, 2}> () d = Cast <to = 1> (c)"
        " a = Mul(x, d) b = Neg(x) }",
        {"a": "float16", "b": "float32"},
    ),
    "a size of what is half": (
        HEADS + "{ h = Cast <to = 10> (x) s = Shape(h) a = Reshape(x, s) b = Cast <to = 1> (h) }",
        {"a": "float32", "b": "float16"},
    ),
    "a node before what it needs": (
        HEADS + "{ b = Relu(t) a = Neg(x)" + HALF.format("x", "t") + " }",
        {"a": "float32", "b": "float16"},
    ),
    "omitted outputs and inputs": (
        HEADS + '{ h = Cast <to = 10> (x) d, "" = Dropout(h) b = Cast <to = 1> (d)'
        ' a = Clip(x, "", "") }',
        {"a": "float32", "b": "float16"},
    ),
    "a branch of an If": (
        "g (float[2] x, bool c) => (float[2] a, float[2] b) { t = Tanh(x) a, b = If(c) <"
        "then_branch = t () => (float[2] p, float[2] q) { p = Neg(t)" + HALF.format("t", "q") + "},"
        "else_branch = e () => (float[2] r, float[2] s) { r = Relu(t) s = Relu(x) }> }",
        {"a": "float32", "b": "float16"},
    ),
    "the condition of an If": (
        "g (float[2] x, float16 h) => (float[2] a, float[2] b) { b = Neg(x) o = Cast <to = 9> (h)"
        " a = If(o) <then_branch = t () => (float[2] p) { p = Neg(x) },"
        "else_branch = e () => (float[2] r) { r = Relu(x) }> }",
        {"a": "float16", "b": "float32"},
    ),
    "what a loop carries": (
        "g (float[2] x, int64 n, bool c) => (float[2] a, float[2] b) { b = Neg(x)"
        " a = Loop(n, c, x) <body = l (int64 i, bool u, float[2] v) => (bool w, float[2] o)"
        " { w = Identity(u)" + HALF.format("v", "o") + " }> }",
        {"a": "float16", "b": "float32"},
    ),
}
FUNCTION = (
    "g (float[2] x) => (float[2] a, float[2] b) { q = Cast <to = 10> (x) h = Cast <to = 1> (q)"
    " a = own.twice(x) b = own.twice(h) c = own.half(x) }"
    ' <domain: "own", opset_import: ["" : 21]> twice (v) => (w) { w = Add(v, v) }'
    ' <domain: "own", opset_import: ["" : 21]> half (v) => (w) { w = Cast <to = 10> (v) }'
)


@pytest.mark.parametrize(("body", "expected"), CASES.values(), ids=CASES.keys())
def test_only_what_an_output_depends_on_counts(body: str, expected: dict[str, str]) -> None:
    assert precisions(onnx_text.proto(body)) == expected


def test_each_call_of_a_local_function_counts_by_itself() -> None:
    model = onnx_text.proto(FUNCTION, opsets='"" : 21, "own" : 1')
    before = model.SerializeToString()
    assert precisions(model) == {"a": "float32", "b": "float16"}
    model.graph.output[0].name = "c"
    assert precisions(model)["c"] == "float16"
    model.graph.output[0].name = "a"
    assert model.SerializeToString() == before, "the model stays as it is"


def test_what_is_fed_may_be_less_exact_than_its_type() -> None:
    model = onnx_text.proto(
        "g (float[2] x, float[2] y) => (float[2] a, float[2] b) { a = Neg(x) b = Add(x, y) }"
    )
    assert precisions(model, {"y": "quantized"}) == {"a": "float32", "b": "quantized"}


def test_parts_of_sequences_and_maps_have_the_precision_of_the_whole() -> None:
    known: Precisions = {"s": "float16", "s[1]": "float64"}
    assert [of_output(name, known) for name in ("s[0]", "s[1]", "s{0, 1}", "t")] == [
        "float16",
        "float64",
        "float16",
        "float32",
    ]
    assert of_output("any", "quantized") == "quantized"


BODIES = {
    "(float[2, 3] x) => (float[2, 3] y) { y = Sigmoid (x) }": True,
    "(float[2, 3] x) => (float[2, 3] y) { y = Softmax (x) }": True,
    "(float[2, 3] x) => (float[2, 3] y) { y = Tanh (x) }": False,
    "(float[2, 3] x) => (float y) { s = Sigmoid (x) t = Concat <axis = 0> (x, s) "
    "y = Transpose (t) }": True,
    "(float[2, 3] x) => (float[2, 3] y) { s = Sigmoid (x) y = Mul (s, x) }": False,
    "(float[2, 3] x) => (float[2, 3] y) { s = Sigmoid (x) p = Softmax (x) y = Mul (s, p) }": True,
    "(float[2, 3] x) => (float[2, 3] y) { s = Sigmoid (x) y = Log (s) }": False,
    "(bool c, float[2, 3] x) => (float[2, 3] y) { y = If (c) <then_branch = a () => "
    "(float[2, 3] p) { p = Sigmoid (x) }, else_branch = b () => (float[2, 3] q) "
    "{ q = Identity (x) }> }": True,
}


@pytest.mark.parametrize(("body", "probable"), BODIES.items())
def test_what_ends_in_probabilities(body: str, probable: bool) -> None:
    assert probability_outputs(onnx_text.proto(f"g {body}")) == (
        frozenset({"y"}) if probable else frozenset()
    )


def test_a_sigmoid_in_a_local_function_counts() -> None:
    model = onnx_text.proto(
        "g (float[2] x) => (float[2] y, float[2] z) { y = own.f (x) z = Tanh (x) } "
        '<domain: "own", opset_import: ["": 21]> f (a) => (b) { b = Sigmoid (a) }',
        opsets='"": 21, "own": 1',
    )
    assert probability_outputs(model) == {"y"}


class Coarse(Taker):
    """An EP that says how exact it is."""

    def __init__(self) -> None:
        super().__init__(lambda node: True)

    def tolerance(self, of: str, dtype: str) -> Tolerance:
        if dtype == "uint8":
            return Tolerance(max_abs=1)
        return Tolerance(cosine_min=0.99, max_abs=None, max_rel=0.1)


FINE = op_types()
"""An EP that says nothing of it."""


def test_integers_are_exact_unless_an_ep_or_the_manifest_says_else() -> None:
    assert limits([FINE], "quantized", "uint8", Tolerance()) == Tolerance()
    assert limits([FINE, Coarse()], "quantized", "uint8", Tolerance()) == Tolerance(max_abs=1)
    assert limits([FINE], "float32", "int64", Tolerance(max_abs=2)) == Tolerance(max_abs=2)


def test_of_several_eps_the_loosest_counts_limit_by_limit() -> None:
    assert limits([FINE, Coarse()], "float32", "float32", Tolerance()) == Tolerance(
        cosine_min=0.99, max_rel=0.1, gain_max=GAIN
    )


def test_the_manifest_replaces_limit_by_limit() -> None:
    asked = Tolerance(max_abs=0.5, cosine_min=0.9)
    assert limits([Coarse()], "float32", "float32", asked) == Tolerance(
        cosine_min=0.9, max_abs=0.5, max_rel=0.1, gain_max=GAIN
    )


PAGE = Path(__file__).parents[4] / "docs" / "numbers.md"
HEAD = "| EP | float64 | float32 | float16 | bfloat16 | quantized |\n|---|---|---|---|---|---|\n"
HINT = '{"CPU": {"INFERENCE_PRECISION_HINT": "%s"}}'
ROWS: dict[str, tuple[str, dict[str, str | bool]] | None] = {
    "reference EP": ("ReferenceExecutionProvider", {}),
    "QNN": ("QNNExecutionProvider", {"soc_model": "60"}),
    "QNN with `htp_bf16_enable`": (
        "QNNExecutionProvider",
        {"soc_model": "88", "htp_bf16_enable": True},
    ),
    "OpenVINO in float32": ("OpenVINOExecutionProvider", {"load_config": HINT % "f32"}),
    "OpenVINO in less (GPU, NPU, CPUs with bfloat16)": (
        "OpenVINOExecutionProvider",
        {"load_config": HINT % "bf16"},
    ),
    "other EPs of ONNX Runtime": ("VitisAIExecutionProvider", {}),
    "EPs that do not say, no EP": None,
}


@pytest.mark.needs("module onnxruntime_qnn")
def test_the_page_has_the_limits_of_every_ep() -> None:
    table = HEAD
    order: list[Precision] = ["float64", "float32", "float16", "bfloat16", "quantized"]
    assert set(order) == set(get_args(Precision))
    for name, ep in ROWS.items():
        made = (
            []
            if ep is None
            else [registry.create(ProviderSpec(alias="e", provider=ep[0], options=ep[1]))]
        )
        found = [limits(made, each, "float32", Tolerance()) for each in order]
        cells = (f"{each.cosine_min:g}, {each.max_rel:g}" for each in found)
        table += f"| {name} | {' | '.join(cells)} |\n"
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(HEAD)
    if os.environ.get("EPCTX_UPDATE_GOLDEN"):
        after = rest.partition("\n\n")[2] if rest.startswith("|") else rest.removeprefix("\n")
        PAGE.write_text(f"{before}{table}\n{after}", encoding="utf-8")
    assert f"{table}\n" in PAGE.read_text(encoding="utf-8"), "EPCTX_UPDATE_GOLDEN=1 writes it"
