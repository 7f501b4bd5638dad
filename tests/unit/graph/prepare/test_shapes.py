from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from epctx.errors import ModelError
from epctx.graph.prepare import shapes
from epctx.graph.serde import protos
from tests.kit import onnx_text

_model = partial(onnx_text.proto, opsets='"":17')


def _fix(
    model: onnx.ModelProto,
    dimensions: Mapping[str, int] | None = None,
    shapes_: Mapping[str, Sequence[int]] | None = None,
) -> onnx.ModelProto:
    shapes.fix(model, dimensions or {}, shapes_ or {}, where="m.onnx")
    return model


def _refused(
    model: onnx.ModelProto,
    dimensions: Mapping[str, int] | None = None,
    shapes_: Mapping[str, Sequence[int]] | None = None,
) -> str:
    with pytest.raises(ModelError) as caught:
        _fix(model, dimensions, shapes_)
    assert caught.value.exit_code == 4
    return str(caught.value)


def _dims(model: onnx.ModelProto) -> dict[str, list[object]]:
    return {
        value.name: [d.dim_value or d.dim_param or "?" for d in protos.dimensions(value.type)]
        for value in protos.values(model)
    }


TWO = "g (float[batch, seq, 8] x, float[batch, 4] m) => (float[batch, seq, out] z) "


def test_a_dimension_is_fixed_wherever_the_main_graph_names_it() -> None:
    model = _model(
        TWO[:-1] + " <float[batch, seq, 8] y> { y = Relu(x) z = If(c) "
        "<then_branch = t () => (float[batch, seq, 8] o) <float[batch] i> { o = Relu(y) }, "
        "else_branch = e () => (seq(float[other, seq]) p) { p = Relu(y) }> }"
    )
    _fix(model, {"batch": 2, "seq": 16})
    assert _dims(model) == {
        "x": [2, 16, 8],
        "m": [2, 4],
        "z": [2, 16, "out"],
        "y": [2, 16, 8],
        "o": ["batch", "seq", 8],
        "i": ["batch"],
        "p": ["other", "seq"],
    }


def test_a_shape_fixes_the_names_in_it_everywhere() -> None:
    model = _fix(_model(TWO + "{ z = Relu(x) }"), shapes_={"x": (3, 5, 8)})
    assert _dims(model) == {"x": [3, 5, 8], "m": [3, 4], "z": [3, 5, "out"]}


def test_a_shape_fixes_dimensions_without_a_name() -> None:
    model = _fix(
        _model("g (float[?, 3, ?, ?] x) => (float[?] z) { z = Relu(x) }"),
        shapes_={"x": (1, 3, 224, 224)},
    )
    assert _dims(model)["x"] == [1, 3, 224, 224]
    assert _dims(model)["z"] == ["?"]


@pytest.mark.parametrize("shape", [(2, 3), ()])
def test_a_shape_gives_a_rank_where_there_is_none(shape: tuple[int, ...]) -> None:
    model = _model("g (float[N] x) => (float[N] z) { z = Relu(x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    _fix(model, shapes_={"x": shape})
    assert model.graph.input[0].type.tensor_type.HasField("shape")
    assert _dims(model)["x"] == list(shape)


@pytest.mark.parametrize(
    ("dimensions", "shapes_", "parts"),
    [
        (
            {"bacth": 1},
            {},
            ["`dimensions` names 'bacth'", "the model has batch, seq", "did you mean 'batch'?"],
        ),
        ({"zzz": 1}, {}, ["the model has batch, seq", "take 'zzz' out of `dimensions`"]),
        ({"out": 1}, {}, ["which is not a symbolic dimension of an input"]),
        ({}, {"X": (1,)}, ["`shapes` names 'X', which is not a graph input", "the model has x, m"]),
        ({"batch": 0}, {}, ["dimensions: batch is 0", "1 or more"]),
        ({"batch": -1}, {}, ["dimensions: batch is -1"]),
        ({}, {"x": (1, 2)}, ["`shapes: x` has 2 dimensions, the input has 3", "[batch, seq, 8]"]),
        ({}, {"x": (1, 2, 9)}, ["dimension 2 the size 9, the model 8", "export the model"]),
        ({}, {"x": (1, 0, 8)}, ["shapes: x is 0"]),
        (
            {"batch": 1},
            {"x": (2, 4, 8)},
            ["'batch' is 1 by `dimensions: batch` and 2 by `shapes: x`"],
        ),
        ({}, {"x": (2, 4, 8), "m": (3, 4)}, ["2 by `shapes: x` and 3 by `shapes: m`"]),
    ],
)
def test_wishes_that_cannot_be_met(
    dimensions: dict[str, int], shapes_: dict[str, tuple[int, ...]], parts: list[str]
) -> None:
    message = _refused(_model(TWO + "{ z = Relu(x) }"), dimensions, shapes_)
    assert message.startswith("m.onnx: ")
    for part in parts:
        assert part in message


def test_a_nameless_dimension_is_at_least_one() -> None:
    model = _model("g (float[?] x) => (float[?] z) { z = Relu(x) }")
    assert "sizes are 1 or more" in _refused(model, shapes_={"x": (0,)})


def test_an_input_that_is_no_tensor_has_no_shape() -> None:
    model = _model("g (seq(float[N]) x) => (seq(float[N]) z) { z = Identity(x) }")
    assert "is not a tensor" in _refused(model, shapes_={"x": (1,)})
    assert _dims(_fix(model, {"N": 4})) == {"x": [4], "z": [4]}


def test_an_initializer_is_no_input_that_has_a_shape() -> None:
    model = _model("g (float[N] x, float[2] w) => (float[N] z) { z = Add(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.float32), "w"))
    assert "the model has x" in _refused(model, shapes_={"w": (2,)})
