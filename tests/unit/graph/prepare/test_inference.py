"""Shape inference over a model whose weights are elsewhere."""

from __future__ import annotations

from functools import partial

import onnx
import pytest
from onnx import helper

from epctx.graph.prepare import inference
from epctx.graph.prepare.inference import infer
from epctx.graph.serde import protos
from tests.kit import onnx_text

BODIES = {
    "a loop's input has the name of an outer shape": (
        "g (float[2,3] x, int64[2] n) => (int64[2] t, float[k,a,b] z) <int64 m = {3}, bool c = {1}>"
        " { s = Shape(x) t, z = Loop(m, c, n) <body = b (int64 i, bool d, int64[2] s) =>"
        " (bool e, int64[2] u, float[3,2] o) { e = Identity(d) u = Identity(s) o = Reshape(x, s) }>"
        " p = Reshape(x, s) }",
        {"b.o": [3, 2]},
    ),
    "a branch has the name of its sibling": (
        "g (bool c, float[2,3] x, int64[2] n) => (float[p,q] y) { y = If(c) <"
        "then_branch = t () => (float[2,3] o) { s = Shape(x) o = Reshape(x, s) },"
        "else_branch = e () => (float[3,2] w) { s = Abs(n) w = Reshape(x, s) }> }",
        {"t.o": [2, 3], "e.w": [3, 2]},
    ),
    "a branch has a name that is made later": (
        "g (bool c, float[2,3] x, int64[2] n) => (float[p,q] y, float[2,3] s) { y = If(c) <"
        "then_branch = t () => (float[3,2] o) { s = Reshape(x, n) o = Relu(s) },"
        "else_branch = e () => (float[2,3] w) { w = Relu(x) }> s = Relu(x) }",
        {"t.o": [3, 2], "e.w": [2, 3], "g.s": [2, 3]},
    ),
    "a scan's input has an outer name and no type": (
        "g (float[4,3] x, float[3] a) => (float[3] y, float[4,3] z) { v = Relu(x)"
        " y, z = Scan <num_scan_inputs = 1, body = b (s, v) => (y, z) {"
        " y = Add(s, v) z = Neg(y) }> (a, v) }",
        {"g.v": [4, 3], "b.z": [3], "g.z": [4, 3]},
    ),
}


@pytest.mark.parametrize(("body", "shapes"), BODIES.values(), ids=BODIES.keys())
def test_an_inner_value_has_its_own_shape(body: str, shapes: dict[str, list[int]]) -> None:
    model = onnx_text.proto(body)
    said: list[str] = []
    inferred = infer(model, said.append)
    assert said == []
    found = {
        f"{graph.name}.{value.name}": [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for graph in protos.graphs(inferred)
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.tensor_type.HasField("shape")
    }
    assert {name: found[name] for name in shapes} == shapes


@pytest.mark.parametrize("body", [body for body, _ in BODIES.values()], ids=BODIES.keys())
def test_names_are_unique_and_come_back(body: str) -> None:
    model = onnx_text.proto(body)
    before = model.SerializeToString()
    names = inference.separate_names(model)
    made = [v for graph in protos.graphs(model) for node in graph.node for v in node.output]
    made += [value.name for graph in protos.graphs(model) for value in graph.input]
    assert names and len(made) == len({*made})
    onnx.checker.check_model(model)
    inference.restore_names(model, names)
    assert model.SerializeToString() == before


def test_a_name_that_is_taken_is_left_alone() -> None:
    model = onnx_text.proto(
        "g (bool c, float[2] x) => (float[2] y) { a = Relu(x) b = Neg(a) y = If(c) <"
        "then_branch = t () => (float[2] o) { a = Abs(x) o = Relu(a) },"
        "else_branch = e () => (float[2] w) { w = Relu(b) }> }"
    )
    model.graph.node[1].output[0] = model.graph.node[2].attribute[1].g.node[0].input[0] = "a/0"
    assert list(inference.separate_names(model)) == ["a/1"]


_model = partial(onnx_text.proto, opsets='"":17, "com.microsoft":1, "mine":1')


def _dims(model: onnx.ModelProto) -> dict[str, list[object]]:
    return {
        value.name: [d.dim_value or d.dim_param or "?" for d in protos.dimensions(value.type)]
        for value in protos.values(model)
        if value.type.tensor_type.HasField("shape")
    }


def test_sizes_from_before_the_dimensions_were_fixed_are_replaced() -> None:
    model = infer(
        _model("g (float[4, 8] x) => (float[1, 8] z) <float[1, 8] y> { y = Relu(x) z = Relu(y) }")
    )
    assert _dims(model) == {"x": [4, 8], "y": [4, 8], "z": [4, 8]}


def test_a_rank_from_before_is_replaced() -> None:
    model = infer(_model("g (float[4, 8] x) => (float[A, B, C] z) { z = Relu(x) }"))
    assert _dims(model)["z"] == [4, 8]


@pytest.mark.parametrize("passed", ["x", "w"])
def test_an_output_that_no_node_makes_hides_no_shape(passed: str) -> None:
    nodes = "{ a = MatMul(x, w)  b = Relu(a)  y = Relu(b) }"
    model = _model(f"g (float[2, 4] x) => (float[9, 9] y, float[9, 9] {passed}) {nodes}")
    weight = helper.make_tensor("w", onnx.TensorProto.FLOAT, [4, 8], [0.0] * 32)
    model.graph.initializer.append(weight)
    found = _dims(infer(model))
    assert found["a"] == found["b"] == found["y"] == [2, 8]


def test_behind_an_unknown_operator_what_is_declared_stays_and_is_inferred_from() -> None:
    model = infer(
        _model(
            "g (float[4, 8] x) => (float z) <float[4, 16] y> "
            "{ y = mine.Op(x) t = Transpose(y) z = Relu(t) }"
        )
    )
    assert _dims(model) == {"x": [4, 8], "y": [4, 16], "t": [16, 4], "z": [16, 4]}


def test_unknown_operators_one_after_the_other() -> None:
    nodes = " ".join(f"m{i} = mine.Op(t{i}) t{i + 1} = Transpose(m{i})" for i in range(40))
    declared = ", ".join(f"float[4, {i + 1}] m{i}" for i in range(40))
    model = infer(_model(f"g (float[4, 8] t0) => (float[9] t40) <{declared}> {{ {nodes} }}"))
    dims = _dims(model)
    assert [dims[f"t{i + 1}"] for i in range(40)] == [[i + 1, 4] for i in range(40)]


def test_what_depends_on_data_is_as_declared_and_is_inferred_from() -> None:
    model = infer(
        _model(
            "g (float[4, 8] x, int64[2] s) => (float[7] z) <float[8, 4] y, float[1, 1] t> "
            "{ y = Reshape(x, s) t = Relu(y) z = Relu(t) }"
        )
    )
    assert _dims(model) == {"x": [4, 8], "s": [2], "y": [8, 4], "t": [8, 4], "z": [8, 4]}


@pytest.mark.parametrize("declared", ["", "<float[2, 16] y, float[2, 16] t>"])
@pytest.mark.parametrize(("length", "ranked"), [("2", "yz"), ("n", "z")])
def test_the_default_of_an_input_is_no_constant(declared: str, length: str, ranked: str) -> None:
    """Nor are declared sizes true that an exporter inferred from it; the rank is."""
    model = _model(
        f"g (float[4, 8] x, int64[{length}] s, float[4, 8] w) => (float[2, 16] z, float[4, 8] v)"
        f" {declared} {{ y = Reshape(x, s) t = Relu(y) z = Relu(t) u = Add(x, w) v = Relu(u) }}"
    )
    model.graph.initializer.append(helper.make_tensor("s", onnx.TensorProto.INT64, [2], [2, 16]))
    inferred = infer(model)
    assert list(inferred.graph.initializer) == list(model.graph.initializer)
    shapes = _dims(inferred)
    assert shapes["u"] == shapes["v"] == [4, 8]
    assert {name: shapes.get(name) for name in ranked} == {name: ["?", "?"] for name in ranked}
    assert ("y" in shapes) == (length == "2" or bool(declared))


def test_what_is_declared_completes_what_is_inferred() -> None:
    model = infer(_model("g (float[4, N] x, int64[2] s) => (float[8, 3] z) { z = Reshape(x, s) }"))
    assert _dims(model)["z"] == [8, 3]


@pytest.mark.parametrize(("declared", "told"), [("[5, 5]", True), ("[4]", True), ("[N, 3]", False)])
def test_a_declared_shape_that_contradicts_is_told_and_not_mixed_in(
    declared: str, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """ONNX Runtime warns of it, and goes on."""
    text = (
        f"g (float[n, 3] x) => (float{declared} y) <int64[2] s = {{-1, 3}}> {{ y = Reshape(x, s) }}"
    )
    assert _dims(infer(_model(text)))["y"] == ["?" if told else "N", 3]
    assert ("'y' does not have the shape that the file declares" in caplog.text) is told


def test_a_declared_type_that_contradicts_is_not_mixed_in() -> None:
    model = infer(
        _model("g (float[4, 8] x) => (float z) <int64[4, 9] y> { y = Relu(x) z = Relu(y) }")
    )
    (y,) = model.graph.value_info
    assert y.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert _dims(model)["y"] == [4, 8]


def test_numbered_symbols_do_not_stay() -> None:
    model = infer(_model("g (float[4, 8] x) => (int64 z) { y = NonZero(x) z = Identity(y) }"))
    assert _dims(model)["z"] == [2, "?"]
    assert "unk__" not in str(model)


def test_shapes_inside_subgraphs_are_inferred() -> None:
    model = infer(
        _model(
            "g (float[4, 8] x, bool c) => (float z) { z = If(c) "
            "<then_branch = t () => (float o) { i = Transpose(x) o = Relu(i) }, "
            "else_branch = e () => (float[1, 1] p) { p = Transpose(x) }> }"
        )
    )
    dims = _dims(model)
    assert dims["i"] == dims["o"] == dims["p"] == dims["z"] == [8, 4]


def test_where_inference_gives_up_the_declared_model_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = _model("g (float[4, 8] x) => (float[4, 8] z) { z = Relu(x) }")

    def fail(*_: object, **__: object) -> None:
        raise onnx.shape_inference.InferenceError("no")

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fail)
    assert infer(model) == model
    assert "shapes are not inferred: no" in caplog.text


def test_a_wider_slope_gives_its_shape_whatever_is_declared() -> None:
    """onnx infers a scalar, and Concat fails."""
    body = "{ z = PRelu(c, x) y = Concat<axis = 0>(z, x) }"
    declared = _model(f"g (float[1] x) => (float[2] y) <float c = {{1}}, float[] z> {body}")
    assert _dims(infer(declared))["z"] == [1]


def test_a_declared_shape_of_what_is_disputed_is_not_believed_where_onnx_has_none() -> None:
    model = _model("g (float x) => (int64[M,1] y) <int64[1,1] z> { z = NonZero(x) y = Neg(z) }")
    assert "z" not in _dims(infer(model))


def test_what_a_scan_gives_has_the_shape_that_onnx_runtime_finds() -> None:
    """It runs none without; what is disputed before it makes other shapes unknown."""
    model = _model(
        "g (float e, float[2] x) => (int64[1,1] m, float[2,1,1] y) {"
        " m = NonZero(e) n = Cast<to = 1>(m) y = Scan<num_scan_inputs = 1, body = b (float[] s) =>"
        " (float[] t) { t = Add(n, s) }>(x) }"
    )
    dims = _dims(infer(model))
    assert "n" not in dims
    assert dims["t"] == [1, 1]


def test_sequences_keep_their_declared_types() -> None:
    graph = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["x"], ["z"])],
        "g",
        [helper.make_tensor_value_info("x", 1, [2])],
        [helper.make_tensor_sequence_value_info("z", 1, [None])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert infer(model).graph.output[0].type.HasField("sequence_type")
