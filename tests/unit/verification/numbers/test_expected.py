"""What a source gives, and who is to blame where it gives nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import ManifestError, ModelError
from epctx.graph.inputs import Array
from epctx.manifest import ModelSource, Reference, VerifyInputs
from epctx.verification.findings import Finding
from epctx.verification.folder import summarize
from epctx.verification.numbers import expected, recordings, sessions, source_model
from epctx.verification.numbers.expected import Expected, NotHere, SourceRuns, Unfed
from epctx.verification.numbers.input_sets import Case, InputSets
from epctx.verification.numbers.source_model import SourceModel
from tests.kit import in_pieces

INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT


def source(tmp_path: Path, *nodes: onnx.NodeProto, name: str = "m") -> ModelSource:
    """A model of `i`, four indices, and `x`, of what `nodes` make of them: `y`."""
    graph = helper.make_graph(
        [*nodes, helper.make_node("Identity", ["x"], ["z"])],
        "g",
        [
            helper.make_tensor_value_info("i", INT64, [4]),
            helper.make_tensor_value_info("x", FLOAT, [3]),
        ],
        [onnx.ValueInfoProto(name="y"), onnx.ValueInfoProto(name="z")],
        [
            numpy_helper.from_array(np.arange(10, dtype=np.float32), "t"),
            numpy_helper.from_array(np.array(100), "hundred"),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path / f"{name}.onnx"
    onnx.save(made, path)
    return ModelSource(name=name, path=path)


def gather(index: str = "i") -> onnx.NodeProto:
    return helper.make_node("Gather", ["t", index], ["y"])


def shifted(op: str) -> tuple[onnx.NodeProto, ...]:
    """An index that the graph does not tell of."""
    return helper.make_node(op, ["i", "hundred"], ["j"]), gather("j")


def of(model: ModelSource, **inputs: Any) -> tuple[Expected, Case]:
    sets = InputSets(VerifyInputs(**inputs))
    specs = source_model.inputs(model)
    return Expected(SourceModel.read(model), specs, sets), next(sets.cases(specs))


def run(
    model: ModelSource, kept: Path, *indices: int, fed: bool = True, **inputs: Any
) -> list[str | None]:
    """Run it on input sets, by default on the only one and the one beside; what that returns."""
    runs = SourceRuns(model, VerifyInputs(**inputs), kept)
    assert runs.fed == fed
    return [runs.run(index) for index in indices or (0, 1)]


def computed(kept: Path, *place: str) -> int:
    """How many input sets outputs are kept of."""
    return len(list(kept.joinpath(*place).glob("*/output_0.pb")))


def test_a_source_that_runs_on_nothing_is_blamed(tmp_path: Path) -> None:
    runs, case = of(source(tmp_path, *shifted("Add")))
    with pytest.raises(ModelError) as raised:
        runs.of(case)
    assert raised.value.what == (
        "the source model does not run: not on seed 0, set 0, inputs in the range of their "
        "consumers, zeros nor ones"
    )
    assert raised.value.model == "m" and "m.onnx" in (raised.value.file or "")
    assert "indices element out of data bounds, idx=10" in (raised.value.why or "")


@pytest.mark.parametrize(
    ("nodes", "works"),
    [
        ((gather(),), "inputs in the range of their consumers"),
        (shifted("Mul"), "zeros"),
        (
            (
                helper.make_node("Mul", ["i", "hundred"], ["k"]),
                helper.make_node("Sub", ["k", "hundred"], ["l"]),
                gather("l"),
            ),
            "ones",
        ),
    ],
    ids=["a range", "zeros", "ones"],
)
def test_a_source_that_runs_on_others_is_not(
    tmp_path: Path, nodes: tuple[onnx.NodeProto, ...], works: str
) -> None:
    made = source(tmp_path, *nodes)
    runs, case = of(made, ranges={"i": (50, 60)})
    with pytest.raises(Unfed, match=f"the source model runs on {works}, not on seed 0, set 0: "):
        runs.of(case)


def test_inputs_of_files_are_not_exchanged_for_others(tmp_path: Path) -> None:
    np.savez(tmp_path / "far.npz", i=np.full(4, 70), x=np.zeros(3, np.float32))
    runs, case = of(source(tmp_path, gather()), files=(tmp_path / "far.npz",))
    with pytest.raises(ModelError, match=r"the source model does not run on far\.npz"):
        runs.of(case)


def test_a_model_that_ran_on_an_input_set_is_not_blamed_for_another(tmp_path: Path) -> None:
    runs, case = of(source(tmp_path, *shifted("Add")))
    runs.ran = "seed 0, set 0"
    with pytest.raises(Unfed, match="runs on seed 0, set 0, not on"):
        runs.of(case)


def test_what_this_host_cannot_run_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, case = of(source(tmp_path, gather()))
    for said in (
        "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Conv(11)",
        "/onnxruntime_src/bfc_arena.cc:360 Failed to allocate memory for requested buffer",
        "[ONNXRuntimeError] : 1 : FAIL : std::bad_alloc",
    ):
        monkeypatch.setattr(sessions, "open_source", _raising(RuntimeError(said)))
        with pytest.raises(NotHere, match="the source model itself does not run: "):
            runs.of(case)


@pytest.mark.parametrize(
    "said",
    [
        "bad shapes",
        "[ONNXRuntimeError] : 1 : FAIL : model format error!",
        "[ONNXRuntimeError] : 1 : FAIL : Load model from /bad_alloc/NOT_IMPLEMENTED/m.onnx failed:"
        "Fatal error: com.microsoft:New(-1) is not a registered function/op",
    ],
)
def test_a_source_that_onnxruntime_refuses_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    runs, case = of(source(tmp_path, gather()))
    monkeypatch.setattr(sessions, "open_source", _raising(RuntimeError(said)))
    with pytest.raises(ModelError, match="ONNX Runtime refuses the source model: ") as raised:
        runs.of(case)
    assert raised.value.remedy


def _raising(error: Exception) -> object:
    def open_source(*_: object, **__: object) -> None:
        raise error

    return open_source


def test_what_the_inputs_are_wrong_for_is_told_and_kept(tmp_path: Path) -> None:
    made = source(tmp_path, *shifted("Mul"))
    told, beside = run(made, tmp_path, ranges={"i": (50, 60)})
    assert told is not None and beside is None, "it is no fault of what nobody asked for"
    assert "the source model runs on zeros, not on seed 0, set 0" in told
    _, case = of(made, ranges={"i": (50, 60)})
    failed = recordings.failure(tmp_path, "m", case.feeds)
    assert failed is not None and (failed.outcome, failed.message) == ("not checkable", told)
    assert failed.remedy == Unfed.remedy and computed(tmp_path, "m") == 0
    broken = source(tmp_path, *shifted("Add"), name="c")
    with pytest.raises(ModelError, match="does not run"):
        run(broken, tmp_path, ranges={"i": (50, 60)})


def test_a_source_that_no_inputs_can_be_made_for_is_passed_over(tmp_path: Path) -> None:
    made = source(tmp_path, gather())
    proto = onnx.load(made.path)
    proto.graph.input[1].CopyFrom(helper.make_tensor_value_info("x", TensorProto.STRING, [3]))
    onnx.save(proto, made.path)
    assert run(made, tmp_path / "kept", fed=False) == [None, None]
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("index", [0, 1])
def test_of_a_built_model_its_shapes_count_and_one_of_others_is_passed_over(
    tmp_path: Path, index: int
) -> None:
    model = dynamic(tmp_path, helper.make_node("Neg", ["x"], ["y"]), shapes={"x": ["n"]})
    built = onnx.load(model.path)
    built.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 5
    runs = SourceRuns(model, VerifyInputs(), tmp_path, built=summarize("dynamic_ctx.onnx", built))
    assert runs.fed and runs.run(index) is None
    (file,) = tmp_path.glob("dynamic/*/output_0.pb")
    assert numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes())).shape == (5,)
    built.graph.input[0].name = built.graph.node[0].input[0] = "other"
    runs = SourceRuns(model, VerifyInputs(), tmp_path, built=summarize("dynamic_ctx.onnx", built))
    assert not runs.fed
    model.path.unlink()
    assert not SourceRuns(
        model, VerifyInputs(), tmp_path, built=summarize("dynamic_ctx.onnx", built)
    ).fed
    with pytest.raises(ModelError):
        SourceRuns(model, VerifyInputs(), tmp_path)


def test_a_reference_is_run_on_the_inputs_of_its_model(tmp_path: Path) -> None:
    model = dynamic(tmp_path, helper.make_node("Neg", ["x"], ["y"]), shapes={"x": ["n"]})
    built = summarize("dynamic_ctx.onnx", onnx.load(model.path))
    other = onnx.load(model.path)
    other.graph.node[0].op_type = "Abs"
    onnx.save(other, tmp_path / "float.onnx")
    model = replace(model, reference=Reference(path=tmp_path / "float.onnx"))
    runs = SourceRuns(model, VerifyInputs(), tmp_path, built=built)
    assert [runs.run(index) for index in range(2)] == [None, None]
    references = SourceRuns(model, VerifyInputs(), tmp_path, built=built, reference=True)
    assert references.fed and [references.run(index) for index in range(2)] == [None, None]
    sizes = recordings.kept(tmp_path, "dynamic", expected.SIZES, tuple[dict[str, int], ...])
    assert sizes == ({"n": 1}, {"n": 2})
    assert computed(tmp_path, "dynamic") == 3, "the one beside is at the first sizes"
    assert computed(tmp_path, "dynamic", expected.REFERENCE) == 2
    for case in runs._sets.cases(runs._inputs, sizes):
        right = recordings.read(tmp_path, "dynamic", case.feeds)
        given = recordings.read(tmp_path, "dynamic/reference", case.feeds)
        assert right is not None and given is not None
        np.testing.assert_array_equal(right["y"], np.negative(case.feeds["x"]))
        np.testing.assert_array_equal(given["y"], np.abs(case.feeds["x"]))
    other.graph.output[0].name = other.graph.node[0].output[0] = "other"
    onnx.save(other, tmp_path / "float.onnx")
    with pytest.raises(
        ManifestError, match=r"float\.onnx cannot be the reference of the model dynamic"
    ):
        SourceRuns(model, VerifyInputs(), tmp_path, built=built, reference=True)


def test_a_dropout_of_training_that_a_stock_session_leaves_out_is_random(tmp_path: Path) -> None:
    ratio, training = np.array(0.5, "f4"), np.array(True)
    nodes = [
        helper.make_node("Constant", [], ["ratio"], value=numpy_helper.from_array(ratio)),
        helper.make_node("Constant", [], ["training"], value=numpy_helper.from_array(training)),
        helper.make_node("Concat", ["x", "t"], ["a"], axis=0),
        helper.make_node("Dropout", ["a", "ratio", "training"], ["b"], seed=1),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    runs, case = of(source(tmp_path, *nodes))
    stock = runs.of(case)
    np.testing.assert_array_equal(
        stock["y"], -np.append(case.feeds["x"], np.arange(10, dtype="f4"))
    )
    assert runs.random(case) == {"y"}


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.5, np.nan, -np.inf], np.float32),
        np.array([1.5], ml_dtypes.bfloat16),
        np.array([1.5], ml_dtypes.float8_e4m3fn),
        np.array(3, np.int64),
        np.array([True]),
        np.array(["a", "ü"], object),
        np.zeros((0, 3), np.float16),
        np.array([1], ml_dtypes.int4),
    ],
    ids=lambda a: str(a.dtype),
)
def test_outputs_of_every_type_come_back_as_they_were(tmp_path: Path, array: Array) -> None:
    recordings.write(tmp_path, "m", {}, {"y": array})
    found = recordings.read(tmp_path, "m", {})
    assert found is not None and found["y"].dtype == array.dtype
    assert expected.differing({"y": array}, found) == frozenset()
    assert expected.differing({"y": array}, {"y": np.array([7.25])}) == {"y"}
    assert expected.differing({"y[0]": array, "y[1]": array}, {"y[0]": array}) == {"y[1]"}


def dynamic(tmp_path: Path, *nodes: onnx.NodeProto, shapes: Mapping[str, Any]) -> ModelSource:
    """A model of inputs with open dimensions; `y` is its output."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in shapes.items()],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.ones((6, 2), np.float32), "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path / "dynamic.onnx"
    onnx.save(made, path)
    return ModelSource(name="dynamic", path=path)


def sized(model: ModelSource, **inputs: Any) -> Expected:
    source = SourceModel.read(model)
    return Expected(source, source.inputs, InputSets(VerifyInputs(**inputs)))


def test_values_that_do_not_fit_are_no_matter_of_sizes(tmp_path: Path) -> None:
    made = source(tmp_path, *shifted("Add"))
    proto = onnx.load(made.path)
    proto.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "n"
    table = helper.make_node("Gather", ["t", "i"], ["y"])
    proto.graph.node[0].CopyFrom(table)
    del proto.graph.node[1]
    onnx.save(proto, made.path)
    asked = sized(made, ranges={"i": (50, 60)})
    assert asked.find_sizes() == ({"n": 1}, {"n": 2})


def test_of_a_source_in_pieces_nothing_is_measured_that_takes_it_whole(tmp_path: Path) -> None:
    body = in_pieces.MLP.replace("z = Add(h3, a1)", "p = Greater(h3, a1)  z = Where(p, h3, a1)")
    made = ModelSource(name="m", path=in_pieces.source(tmp_path / "m.onnx", body))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for kept, cuts in ((whole, None), (parts, in_pieces.CUTS)):
        runs = SourceRuns(made, VerifyInputs(), kept, magnitudes=True, cuts=cuts)
        assert [runs.run(index) for index in (0, 1)] == [None, None]
    assert computed(whole, "m", expected.MAGNITUDES) and not computed(whole, "m", "pieces", "1")
    assert not computed(parts, "m", expected.MAGNITUDES)
    assert [computed(parts, "m", "pieces", piece) for piece in "123"] == [2, 2, 2]
    told = recordings.kept(parts, "m", expected.COVERAGE, Finding)
    assert told is not None and told.message == (
        "it is not known which nodes the inputs exercise: it runs in pieces"
    )
    names = {path.relative_to(whole) for path in whole.rglob("output_0.pb")}
    for name in names - {path for path in names if expected.MAGNITUDES in path.parts}:
        assert (parts / name).read_bytes() == (whole / name).read_bytes()
