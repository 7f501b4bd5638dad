"""What a source's values leave of float16, and what is beyond it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.graph.epcontext import DOMAIN
from epctx.manifest import ModelSource
from epctx.providers.base import FLOAT16_MAX
from epctx.verification.numbers import headroom
from tests.kit import onnx_text

X = np.linspace(0.5, 1.5, 64, dtype=np.float32).reshape(1, 64)
LOWEST = float(np.finfo(np.float32).min)
END = "float16 ends at 65504"
OVER = "overflows float16, which ends at 65504: "
MASKS = "masks beyond float16 saturate at 65504, which masks as well: "


def told(
    folder: Path, body: str, compiled: onnx.ModelProto | None = None, ops: str = '"" : 20'
) -> list[str]:
    """The messages about a model of one input, `float[1, 64] x`, and one output, `y`."""
    made = onnx_text.proto(f"g (float[1, 64] x) => (float y) {{ {body} }}", opsets=ops)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(made, folder / "m.onnx")
    return run(folder / "m.onnx", compiled)


def run(path: Path, compiled: onnx.ModelProto | None = None) -> list[str]:
    source = ModelSource(name="m", path=path)
    measured = headroom.measure(source, {"x": X})
    found = headroom.notes(source, compiled or onnx.ModelProto(), measured, FLOAT16_MAX)
    return [message for message, _ in found]


def scaled(factor: float) -> str:
    return f"k = Constant <value = float {{{factor}}}> ()  h = Mul (x, k)  "


def masked(value: float, factor: float = 1) -> str:
    """Half of the values of `y` are `value`."""
    one = "l = Constant <value = float {1.0}> ()  c = Less (x, l)  "
    return f"{scaled(factor)}{one}m = Constant <value = float {{{value}}}> ()  y = Where (c, h, m)"


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        (scaled(100) + "y = Tanh (h)", []),
        (scaled(2000) + "y = Tanh (h)", [f"'h' reaches 3e+03; {END}, 21.8 x more"]),
        (scaled(1e5) + "y = Tanh (h)", [f"{OVER}'h' reaches 1.5e+05"]),
        # A scalar, as of a norm: nothing beside it could tell it from a mask.
        (
            scaled(1e5) + "s = ReduceSum (h)  y = Log (s)",
            [f"{OVER}'s' reaches 6.4e+06, 'h' reaches 1.5e+05"],
        ),
        (masked(-1e9), [f"{MASKS}'y' reaches 1e+09"]),
        (masked(LOWEST), [f"{MASKS}'y' reaches 3.4e+38"]),
        (masked(-65504.0), []),
        (
            masked(-1e9, 2000),
            [
                f"'h' reaches 3e+03, 'y' reaches 2e+03; {END}, 21.8 x more",
                f"{MASKS}'y' reaches 1e+09",
            ],
        ),
        # Infinity is in float16, too.
        (scaled(0) + "i = Log (h)  y = Max (i, x)", []),
        # Constants take their shapes and types of inputs, and no values.
        (
            "s = Shape (x)  b = ConstantOfShape <value = float[1] {-1e9}> (s)  y = Max (b, x)",
            [],
        ),
        ("k = Constant <value = float {-1e9}> ()  b = CastLike (k, x)  y = Max (b, x)", []),
        # Integers have no such end; what is quantized is an integer on an NPU.
        (
            "k = Constant <value = int64 {1000000}> ()  t = Cast <to = 7> (x)  i = Mul (t, k)  "
            "b = Greater (i, k)  y = Cast <to = 1> (b)",
            [],
        ),
        (
            f"{scaled(1e5)}s = Constant <value = float {{1e3}}> ()  "
            "z = Constant <value = uint8 {0}> ()  q = QuantizeLinear (h, s, z)  "
            "d = DequantizeLinear (q, s, z)  y = Tanh (d)",
            [],
        ),
    ],
)
def test_values_near_the_end_and_beyond_are_told(
    tmp_path: Path, body: str, messages: list[str]
) -> None:
    assert told(tmp_path, body) == messages


def test_what_the_default_ep_computes_for_itself_is_not_told(tmp_path: Path) -> None:
    """So the remedy works: leave it to the default EP, with all that reads it."""
    body = scaled(1e5) + "t = Tanh (h)  y = Add (t, x)"
    plain = helper.make_node("Mul", ["x", "k"], ["h"])
    context = helper.make_node("EPContext", ["t", "x"], ["y"], domain=DOMAIN)
    reads = helper.make_node("EPContext", ["h", "x"], ["y"], domain=DOMAIN)
    for node, expected in ((context, []), (reads, ["overflows float16"])):
        compiled = onnx.ModelProto()
        compiled.graph.node.extend([plain, node])
        found = told(tmp_path, body, compiled)
        assert [each.partition(",")[0] for each in found] == expected


@pytest.mark.parametrize("opset", [9, 13, 22])
@pytest.mark.parametrize("where", ["inside", "constant", "external"])
def test_weights_are_read_where_they_are(tmp_path: Path, where: str, opset: int) -> None:
    """Those of 4096 bytes and more, which are mapped; a Constant's are in its attribute."""
    weight = numpy_helper.from_array(np.full((64, 64), 50, np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    if where == "constant":
        nodes.insert(0, helper.make_node("Constant", [], ["w"], value=weight))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        [] if where == "constant" else [weight],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)
    external = where == "external"
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=external, location="m.data")
    assert run(tmp_path / "m.onnx") == [f"'h' reaches 3.2e+03; {END}, 20.5 x more"]


def test_of_many_values_the_largest_are_named(tmp_path: Path) -> None:
    body = (
        scaled(1000)
        + "a = Add (h, x)  b = Add (a, x)  c = Add (b, x)  d = Add (c, x)  y = Tanh (d)"
    )
    (message,) = told(tmp_path, body)
    names = "'d' reaches 1.5e+03, 'c' reaches 1.5e+03, 'b' reaches 1.5e+03 and 2 more"
    assert message == f"{names}; {END}, 43.5 x more"


@pytest.mark.parametrize("kind", [10, 11])
def test_float16_and_float64_are_measured_too(tmp_path: Path, kind: int) -> None:
    body = f"c = Cast <to = {kind}> (x)  h = Sum (c, c, c, c, c)  k = Exp (h)  "
    assert told(tmp_path, f"{body}y = Cast <to = 1> (k)") == [
        f"'k' reaches 1.8e+03, 'y' reaches 1.8e+03; {END}, 36.2 x more"
    ]
