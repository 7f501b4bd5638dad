from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from epctx.errors import ModelError
from epctx.graph.checks import soundness, structure
from epctx.graph.prepare import lenient
from epctx.graph.serde import reader
from epctx.graph.weights.external_data import DataFolder
from epctx.graph.weights.mapped import DataFile
from tests.kit import oddities, onnx_text

_UNKNOWN = ("layer normalization before opset 17", "simplified layer normalization")
"""Operators that onnx does not have: they are as they were."""


def _plain(model: onnx.ModelProto, folder: Path) -> tuple[onnx.ModelProto, list[str]]:
    onnx.save(model, folder / "m.onnx")
    file = DataFile.open(folder / "m.onnx")
    found = reader.read(file, DataFolder(folder, model=folder / "m.onnx"), where="m.onnx")
    return found.proto, list(lenient.write_plainly(found, where="m.onnx"))


def _model(body: str, *weights: onnx.TensorProto, opsets: str = '"" : 17') -> onnx.ModelProto:
    model = onnx_text.proto(f"g (float[4] x) => (float[4] y) {{ {body} }}", opsets=opsets)
    model.graph.initializer.extend(weights)
    return model


def _same(name: str, value: float, count: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.full(count, value, np.float32), name)


@pytest.mark.parametrize("name", [n for n in oddities.FORBIDDEN if n.split()[0] != "an"])
def test_onnx_has_nothing_against_what_it_is_now(name: str, tmp_path: Path) -> None:
    plain, _ = _plain(oddities.FORBIDDEN[name](), tmp_path)
    structure.normalize(plain, where="m.onnx")
    objection = soundness.objection(plain)
    known = name not in _UNKNOWN and not name.startswith("a sparse constant")
    assert (objection is None) == known, objection


def test_a_plain_model_stays_as_it_is(tmp_path: Path) -> None:
    model = _model("c = Constant <value = float[1] {1}> () y = Add(x, c)")
    before = model.SerializeToString()
    plain, notes = _plain(model, tmp_path)
    assert plain.SerializeToString() == before
    assert not notes


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
