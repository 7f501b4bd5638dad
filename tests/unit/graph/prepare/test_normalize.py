"""Models that ONNX Runtime takes though ONNX forbids them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import ModelError
from epctx.graph.prepare import normalize
from epctx.graph.serde import reader
from epctx.graph.weights.data_file import DataFile
from epctx.graph.weights.external_data import DataFolder
from tests.kit import oddities, onnx_text


def _plain(model: onnx.ModelProto, folder: Path) -> tuple[onnx.ModelProto, list[str]]:
    onnx.save(model, folder / "m.onnx")
    file = DataFile.open(folder / "m.onnx")
    found = reader.read_source(file, DataFolder(folder, model=folder / "m.onnx"), where="m.onnx")
    return found.proto, list(normalize.normalize_ort_quirks(found, where="m.onnx"))


def _model(body: str, *weights: onnx.TensorProto, opsets: str = '"" : 17') -> onnx.ModelProto:
    model = onnx_text.proto(f"g (float[4] x) => (float[4] y) {{ {body} }}", opsets=opsets)
    model.graph.initializer.extend(weights)
    return model


def _same(name: str, value: float, count: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.full(count, value, np.float32), name)


@pytest.mark.parametrize(
    ("name", "note"),
    [
        (
            "no import of com microsoft",
            "does not import domain 'com.microsoft', which it uses: opset 1",
        ),
        ("two opsets of one domain", "imports opset 18 and 17 of domain 'ai.onnx'"),
        ("nodes without inputs and outputs", "2 nodes without inputs and outputs"),
        ("constants of one name", "'c' is the name of several constants: the last counts"),
    ],
)
def test_what_a_user_may_not_know_is_noted(name: str, note: str, tmp_path: Path) -> None:
    (told,) = _plain(oddities.FORBIDDEN[name](), tmp_path)[1]
    assert told.startswith(note)


def test_metadata_that_is_believed_of_builds_is_left_out(tmp_path: Path) -> None:
    model = _model("y = Relu(x)")
    keys = ("author", "epctx_pieces", "ep_compatibility_info.AcmeExecutionProvider")
    helper.set_model_props(model, dict.fromkeys(keys, '[["y"]]'))
    plain, (told,) = _plain(model, tmp_path)
    assert [each.key for each in plain.metadata_props] == ["author"]
    assert told.startswith("metadata that begins with 'epctx_' or 'ep_compatibility_info.'")
    model.graph.node[0].op_type, model.graph.node[0].domain = "EPContext", "com.microsoft"
    plain, _ = _plain(model, tmp_path)
    assert [each.key for each in plain.metadata_props] == [keys[0], keys[2]]


@pytest.mark.parametrize("count", [1, 31])
def test_of_small_constants_of_one_name_the_last_counts_as_in_onnx_runtime(
    count: int, tmp_path: Path
) -> None:
    model = _model("y = Mul(x, c)", *(_same("c", n, count) for n in (2, 3, 5)))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 1, [count]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, [count]))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.ones(count, np.float32)})
    plain, _ = _plain(model, tmp_path)
    (kept,) = plain.graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(kept), found)


@pytest.mark.parametrize("count", [32, 1024])
def test_different_large_constants_of_one_name_are_an_accident(count: int, tmp_path: Path) -> None:
    model = _model("y = Add(x, c)", _same("c", 2, count), _same("c", 3, count))
    with pytest.raises(ModelError, match="2 different constants are named 'c'") as caught:
        _plain(model, tmp_path)
    assert "name of its own" in str(caught.value)


@pytest.mark.parametrize("count", [32, 1024])
def test_equal_large_constants_of_one_name_are_one(count: int, tmp_path: Path) -> None:
    model = _model("y = Add(x, c)", _same("c", 2, count), _same("c", 2, count))
    plain, _ = _plain(model, tmp_path)
    assert [tensor.name for tensor in plain.graph.initializer] == ["c"]


def test_constants_that_are_not_tensors(tmp_path: Path) -> None:
    one, two = (f"c = Constant <value_ints = [{n}]> ()" for n in (1, 2))
    plain, _ = _plain(_model(f"{one} {one} y = Expand(x, c)"), tmp_path)
    assert [node.op_type for node in plain.graph.node] == ["Constant", "Expand"]
    with pytest.raises(ModelError, match="different constants"):
        _plain(_model(f"{one} {two} y = Expand(x, c)"), tmp_path)


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("outer", ["w = Constant <value_floats = [2.0]> ()", "w = ReduceMax(x)"])
def test_an_outer_value_of_one_branch_hides_the_initializer_of_another(
    outer: str, taken: bool, tmp_path: Path
) -> None:
    then = "then_branch = t () => (float[4] p) <float[1] w = {10.0}> { p = Add(x, w) }"
    other = f"else_branch = e () => (float[4] q) {{ q = Mul(x, {'w' if taken else 'x'}) }}"
    model = _model(f"{outer} y = If(c) <{then}, {other}>")
    model.graph.input.append(helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []))
    plain, notes = _plain(model, tmp_path)
    branch = plain.graph.node[-1].attribute[0].g
    assert [tensor.name for tensor in branch.initializer] == ([] if taken else ["w"])
    assert [note.split(" of ")[0] for note in notes] == ["initializer 'w'"] * taken
    feeds = {"x": np.array([1, 2, 3, 4], np.float32), "c": np.array(True)}
    source, made = (
        ort.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"])
        for each in (model, plain)
    )
    np.testing.assert_array_equal(made.run(None, feeds)[0], source.run(None, feeds)[0])


@pytest.mark.parametrize("version", [3, 8])
@pytest.mark.parametrize("value", ["value = float[4] {5, 6, 7, 8}", "value_floats = [5.0]"])
def test_a_constant_with_the_name_of_an_input_is_its_default(
    value: str, version: int, tmp_path: Path
) -> None:
    model = _model(f"c = Constant <{value}> () y = Add(x, c)")
    shape = [4] if value.endswith("}") else [1]
    model.graph.input.append(helper.make_tensor_value_info("c", 1, shape))
    model.ir_version = version
    plain, _ = _plain(model, tmp_path)
    assert [node.op_type for node in plain.graph.node] == ["Add"]
    onnx.checker.check_model(plain)
    source, made = (
        ort.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"])
        for each in (model, plain)
    )
    asked = [[each.name for each in s.get_overridable_initializers()] for s in (source, made)]
    assert asked == [["c"] * (version > 3)] * 2
    feeds = {"x": np.ones(4, np.float32)}
    for given in (feeds, feeds | {"c": np.full(shape, 2, np.float32)})[: len(asked[0]) + 1]:
        np.testing.assert_array_equal(made.run(None, given)[0], source.run(None, given)[0])


def test_weights_that_are_all_inputs_too_are_constants(tmp_path: Path) -> None:
    """As PyTorch exported them (`keep_initializers_as_inputs`): QNN takes no weight that is fed."""
    model = _model("s = Mul(x, w) y = Add(s, b)")
    for name in ("w", "b"):
        model.graph.input.append(helper.make_tensor_value_info(name, 1, [4]))
        model.graph.initializer.append(helper.make_tensor(name, 1, [4], [1, 2, 3, 4]))
    plain, _ = _plain(model, tmp_path)
    assert [value.name for value in plain.graph.input] == ["x"]
    model.graph.initializer.append(helper.make_tensor("own", 1, [4], [1, 2, 3, 4]))
    plain, _ = _plain(model, tmp_path)
    assert [value.name for value in plain.graph.input] == ["x", "w", "b"], "these may be meant"


@pytest.mark.parametrize(
    ("value", "held"),
    [
        ("value_int = 3", 3),
        ("value_ints = [3, 4]", [3, 4]),
        ('value_string = "a"', "a"),
        ('value_strings = ["a", "b"]', ["a", "b"]),
        ("value_float = 0.5", 0.5),
    ],
)
def test_a_default_of_every_kind(value: str, held: object, tmp_path: Path) -> None:
    model = _model(f"c = Constant <{value}> () y = Identity(x)")
    model.graph.input.append(helper.make_tensor_value_info("c", 1, []))
    (default,) = _plain(model, tmp_path)[0].graph.initializer
    assert default.name == "c"
    assert numpy_helper.to_array(default).tolist() == held


def test_a_constant_of_no_output_or_of_a_wrong_attribute_is_no_default(tmp_path: Path) -> None:
    model = _model("y = Neg(x)")
    broken = helper.make_node("Constant", [], ["x"], value="text")
    model.graph.node.extend([helper.make_node("Constant", [], [], value_int=1), broken])
    plain, _ = _plain(model, tmp_path)
    assert not plain.graph.initializer


def test_constant_nodes_may_have_the_name_of_another_node(tmp_path: Path) -> None:
    body = (
        "[n] c = Constant <value = float[1] {1}> () [n] d = Constant <value = float[1] {2}> () "
        "t = Add(x, c) [n] y = Mul(t, d)"
    )
    plain, _ = _plain(_model(body), tmp_path)
    assert [node.name for node in plain.graph.node] == ["", "", "", "n"]


@pytest.mark.parametrize(
    ("name", "opsets", "kept"),
    [
        ("com.microsoft.Gelu", '"" : 17, "com.microsoft" : 1', []),
        ("com.microsoft.Gelu", '"" : 17', []),
        ("Gelu", '"" : 20', []),
        ("Gelu", '"" : 17', ["Gelu"]),
        ("own.Gelu", '"" : 17, "own" : 1', ["Gelu"]),
    ],
)
def test_a_function_with_the_name_of_an_operator_is_none(
    name: str, opsets: str, kept: list[str], tmp_path: Path
) -> None:
    domain, _, own = name.rpartition(".")
    function = f'<domain: "{domain}", opset_import: ["" : 17]> {own} (a) => (b) {{ b = Neg(a) }}'
    head = f"<ir_version: 8, opset_import: [{opsets}]>"
    text = f"{head} g (float[4] x) => (float[4] y) {{ y = {name}(x) }} {function}"
    plain, notes = _plain(onnx.parser.parse_model(text), tmp_path)
    assert [each.name for each in plain.functions] == kept
    assert any("is not called" in note for note in notes) == (not kept)


def test_a_tensor_of_no_type_is_left_to_the_checker(tmp_path: Path) -> None:
    broken = onnx.TensorProto(name="c", data_type=999, dims=[1], float_data=[1], int32_data=[1])
    plain, _ = _plain(_model("y = Add(x, c)", broken), tmp_path)
    assert plain.graph.initializer[0] == broken


def test_a_domain_that_nobody_knows_is_left_alone(tmp_path: Path) -> None:
    plain, notes = _plain(_model("y = own.Made(x)"), tmp_path)
    assert [each.domain for each in plain.opset_import] == [""]
    assert not notes


VALUES = np.array([3, 5], np.float32)


def _sparse(
    dims: Sequence[int], indices: Sequence[object], values: np.ndarray = VALUES
) -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(
        values=numpy_helper.from_array(values, "w"),
        indices=numpy_helper.from_array(np.array(indices, np.int64), "wi"),
        dims=dims,
    )


def _with_sparse(tensor: onnx.SparseTensorProto, *, constant: bool = False) -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    if constant:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], name="k", sparse_value=tensor))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [4, 4])], [value("y", TensorProto.FLOAT, [4, 4])]
    )
    if not constant:
        graph.sparse_initializer.append(tensor)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _run(model: onnx.ModelProto) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": np.eye(4, dtype=np.float32)})[0])


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("indices", [[1, 10], [[0, 1], [2, 2]]], ids=["linear", "coordinates"])
def test_a_sparse_tensor_becomes_what_onnxruntime_makes_of_it(
    constant: bool, indices: list[object]
) -> None:
    model = _with_sparse(_sparse([4, 4], indices), constant=constant)
    expected = _run(model)
    assert expected[0, 1] == 3
    assert expected[2, 2] == 5

    normalize.densify(model, where="m.onnx")

    onnx.checker.check_model(model, full_check=True)
    assert not model.graph.sparse_initializer
    assert "sparse" not in str(model)
    np.testing.assert_array_equal(_run(model), expected)


@pytest.mark.parametrize(
    ("dims", "indices"),
    [
        ([4, 4], [1, 16]),
        ([4, 4], [-1, 2]),
        ([4, 4], [1]),
        ([4, 4], [1, 2, 3]),
        ([4, 4], [[0, 4], [1, 1]]),
        ([4, 4], [[0, 1, 2], [0, 1, 2]]),
        ([4, 4], [[[0, 1]], [[1, 1]]]),
    ],
)
def test_indices_that_do_not_fit_are_refused(dims: list[int], indices: list[object]) -> None:
    with pytest.raises(ModelError, match="sparse tensor 'w'") as caught:
        normalize.densify(_with_sparse(_sparse(dims, indices)), where="m.onnx")
    assert "indices" in str(caught.value)


@pytest.mark.parametrize(
    ("dims", "said"), [([2**20, 2**20], "dense form"), ([-4, 4], "negative dimension")]
)
def test_a_dense_form_that_memory_cannot_hold_is_refused(dims: list[int], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        normalize.densify(_with_sparse(_sparse(dims, [1, 10])), where="m.onnx")


@pytest.mark.parametrize(
    ("broken", "said"),
    [({"raw_data": b"123"}, "cannot be read"), ({"data_type": 99}, "has data type 99")],
)
def test_values_that_cannot_be_read_are_refused(broken: dict[str, object], said: str) -> None:
    tensor = _sparse([4, 4], [1, 10])
    for field, value in broken.items():
        setattr(tensor.values, field, value)
    with pytest.raises(ModelError, match=said):
        normalize.densify(_with_sparse(tensor), where="m.onnx")


def test_a_sparse_attribute_of_another_operator_is_refused() -> None:
    model = _with_sparse(_sparse([4, 4], [1, 10]))
    model.graph.node.append(
        helper.make_node("Mine", [], ["m"], name="n", domain="d", s=_sparse([4], [1, 2]))
    )
    with pytest.raises(ModelError, match=r"node 'n' \(d::Mine\) has the sparse attribute 's'"):
        normalize.densify(model, where="m.onnx")
