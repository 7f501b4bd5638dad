"""The numbers policy over sessions that a test controls; real ones are in tests/integration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import InvalidGraph, ManifestError, ModelError, ProviderUnavailable
from epctx.manifest import ModelSource, Reference, Tolerance, VerifyInputs
from epctx.providers.base import Boundary, Port
from epctx.verification.numbers import expected, files, recordings
from epctx.verification.numbers.expected import Expected, Unfed
from epctx.verification.numbers.input_sets import InputSets
from epctx.verification.numbers.source_model import SourceModel
from tests.kit import folders, onnx_text, two_answers
from tests.kit.controlled import OPENED, Case, Change, Outputs, Session
from tests.kit.folders import context_node


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(tmp_path, monkeypatch)


def test_equal_outputs_pass_and_are_in_the_report(case: Case) -> None:
    case.verify = {"inputs": VerifyInputs(seed=7, count=2)}
    report = case.report()
    assert [(f.check, f.outcome) for f in report.findings] == [
        ("interface", "pass"),
        ("inputs", "pass"),
        ("sensitivity", "pass"),
        ("loads", "pass"),
        ("determinism", "pass"),
        ("outputs", "pass"),
    ]
    assert report.findings[1].message == "generated: 'x' normal about 0"
    assert report.findings[-1].message == (
        "1 output on 2 input sets of the files agree with the source model, on generated inputs, "
        "all values equal"
    )
    assert [(n.model, n.output, n.input_set, n.sessions, n.passed) for n in report.numbers] == [
        ("m_ctx.onnx", "z", "seed 7, set 0", "files", True),
        ("m_ctx.onnx", "z", "seed 7, set 1", "files", True),
    ]
    asked = Tolerance(cosine_min=0.999999, max_rel=5e-5, gain_max=0.04)
    assert report.numbers[0].tolerance == asked


def test_a_small_difference_is_within_the_default_and_measured(case: Case) -> None:
    case.change = lambda out: {"z": out["z"] * np.float32(1 + 2e-6)}
    finding = case.one()
    assert finding.outcome == "pass" and "largest relative error" in finding.message


def test_a_wrong_output_fails_and_says_where(case: Case) -> None:
    def wrong(outputs: Outputs) -> Outputs:
        outputs["z"][0, 2] += 0.1
        return outputs

    case.change = wrong
    finding = case.one()
    assert finding.outcome == "fail"
    assert finding.message.startswith("seed 0, set 0: output 'z': relative error ")
    assert "; worst at [0, 2]: " in finding.message and "verify.tolerance" in finding.remedy
    case.verify = {"tolerance": Tolerance(max_rel=0.2, cosine_min=0.9)}
    assert case.one().outcome == "pass"
    case.verify = {"tolerance": Tolerance(max_rel=10, cosine_min=-1, top_k_min=0)}
    finding = case.one()
    assert finding.outcome == "not checkable", "a tolerance that allows anything checks nothing"
    assert finding.message == "output 'z': 0.00% of its elements could have failed (of the files)"


def test_a_wrong_type_or_shape_fails(case: Case) -> None:
    case.change = lambda out: {"z": out["z"].astype(np.float64)}
    assert "its type is float64, not float32" in case.one().message
    case.change = lambda out: {"z": out["z"].reshape(4, 1)}
    assert "its shape is [4, 1], not [1, 4]" in case.one().message


def test_outputs_that_do_not_depend_on_inputs_are_noticed(case: Case) -> None:
    case.source("m", fill=0.0)
    finding = case.one("sensitivity")
    assert finding.outcome == "not checkable"
    assert finding.message == "its outputs do not depend on the inputs: comparing them cannot fail"
    assert not case.check("outputs"), "nothing has passed"
    case.verify = {"inputs": VerifyInputs(count=3)}
    assert case.one("sensitivity").outcome == "not checkable"
    case.change = lambda out: {"z": out["z"] + 1}
    assert case.check("outputs")[0].outcome == "fail", "what is wrong is wrong all the same"


def test_outputs_of_one_value_are_noticed_where_there_is_one_set_of_inputs(case: Case) -> None:
    """As a quantized Softmax of many classes: zeros on both sides agree perfectly."""
    case.source("m", fill=0.0)
    np.savez(case.tmp / "inputs.npz", x=np.ones((1, 4), np.float32))
    case.verify = {"inputs": VerifyInputs(files=(case.tmp / "inputs.npz",))}
    finding = case.one()
    assert finding.outcome == "not checkable"
    assert finding.message == "output 'z': 0.00% of its elements could have failed (of the files)"
    case.source("m")
    assert not case.check("sensitivity")
    assert case.one().outcome == "pass" and "on given inputs" in case.one().message


def test_sharing_models_are_loaded_together_and_closed_in_reverse(case: Case) -> None:
    case.models = ("m", "second")
    case.sharing = {"main": ("m", "second")}
    case.source("second")
    (case.folder / "second_ctx.onnx").write_bytes(
        folders.model(context_node("s", partition_name="s")).SerializeToString()
    )
    assert {f.outcome for f in case.check()} == {"pass"}
    assert [
        "open m shared",
        "open second shared",
        *["run m shared"] * 3,
        *["run second shared"] * 3,
        "close second shared",
        "close m shared",
    ] == OPENED


@pytest.mark.parametrize(
    ("failure", "outcome", "check", "words"),
    [
        (InvalidGraph("bad checksum", remedy="rebuild"), "fail", "loads", "bad checksum"),
        (RuntimeError("[ONNXRuntimeError] : 1 : FAIL"), "fail", "loads", "cannot be loaded: [ONNX"),
        (
            ProviderUnavailable("no SDK", remedy="pip"),
            "not checkable",
            "outputs",
            "not on this host",
        ),
    ],
)
def test_a_model_that_does_not_load(
    case: Case, failure: Exception, outcome: str, check: str, words: str
) -> None:
    case.failure = failure
    (finding,) = case.check(check)
    assert finding.outcome == outcome and words in finding.message
    assert finding.remedy == getattr(failure, "remedy", finding.remedy) != ""


def test_a_run_that_the_runtime_refuses_says_what_to_do(case: Case) -> None:
    """As for an output whose static shape the source declares, and its data decide otherwise."""

    def refuse(outputs: Outputs) -> Outputs:
        raise InvalidGraph("output 'z' is [1, 3]", remedy="correct what the source declares")

    case.change = refuse
    finding = case.one("runs")
    assert finding.message == "seed 0, set 0: output 'z' is [1, 3]"
    assert finding.remedy == "correct what the source declares"


def test_numbers_off_and_no_source_are_said(case: Case) -> None:
    case.verify = {"numbers": "off"}
    assert (case.one().outcome, case.one().message) == (
        "not checkable",
        "the manifest says `numbers: off`",
    )
    finding, loads = folders.report(case.folder, policies=("numbers",)).findings
    assert finding.outcome == "not checkable" and "--manifest" in finding.remedy
    assert (loads.check, loads.outcome) == ("loads", "pass")
    case.verify = {}
    case.sources["m"].unlink()
    assert "no source: " in case.one().message


@pytest.mark.parametrize("how", ["off", "generating", "no manifest", "no source", "no sizes"])
def test_what_cannot_be_compared_is_loaded_at_least(
    case: Case, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.failure = RuntimeError("[ONNXRuntimeError] : 1 : FAIL : made wrong")
    if how in ("off", "generating"):
        case.verify = {"numbers": how}
    elif how == "no source":
        case.sources["m"].unlink()
    elif how == "no sizes":
        monkeypatch.setenv("EPCTX_LIMIT_SIZE_RUNS", "1")
        open_batch(case)
        case.verify = {"inputs": VerifyInputs(ranges={"x": (0, 1)}, dimensions={"batch": (1,)})}
        source = onnx.load(case.sources["m"])
        source.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 9
        onnx.save(source, case.sources["m"])
    if how == "no manifest":
        findings = list(folders.report(case.folder, policies=("numbers",)).findings)
    else:
        findings = case.check()
    (failed,) = (f for f in findings if f.outcome == "fail")
    assert failed.check == "loads" and failed.message.endswith("FAIL : made wrong")
    assert "optimize: {level: none}" in failed.remedy
    assert any(f.check == "outputs" and f.outcome == "not checkable" for f in findings)


def test_what_passed_before_or_is_broken_is_not_loaded(case: Case) -> None:
    case.verify = {"numbers": "off"}
    case.request = {"passed": ("m_ctx.onnx",)}
    assert case.one().outcome == "not checkable" and OPENED == []
    folders.write_sums(case.folder)
    (case.folder / "m_reference.bin").write_bytes(b"other")
    findings = folders.report(case.folder, policies=("integrity", "numbers")).findings
    assert OPENED == [] and not [f for f in findings if f.check == "loads"]


def test_generating_without_a_generating_session(case: Case) -> None:
    case.verify = {"numbers": "generating"}
    finding = case.one()
    assert finding.outcome == "not checkable" and "no generating session" in finding.message
    assert OPENED == ["open m", "close m"], "it is loaded, and not run"


def record(case: Case, inputs: VerifyInputs, change: Change, place: str = "m") -> None:
    """What a worker does that keeps the outputs of its generating sessions."""
    case.generating()
    source = SourceModel.read(ModelSource(name="m", path=case.sources["m"]))
    session = Session(case.sources["m"], "generating", change)
    for each in InputSets(inputs).cases(source.inputs):
        (result,) = session.run(["z"], each.feeds)
        recordings.write(case.tmp / "recorded", place, each.feeds, {"z": result})


def test_generating_sessions_that_cannot_tell_are_not_checkable(case: Case) -> None:
    case.verify = {"numbers": "generating"}
    case.generating()
    recordings.refuse(case.tmp / "recorded", "m", "two EPs took turns inside a partition")
    finding = case.one()
    assert finding.outcome == "not checkable"
    assert finding.message == "two EPs took turns inside a partition"
    assert finding.remedy == "set `verify.numbers: full`"
    case.verify = {"numbers": "full"}
    assert case.one().outcome == "pass", "the files told what the sessions could not"


def test_recorded_outputs_of_generating_sessions_are_compared(case: Case) -> None:
    inputs = VerifyInputs(seed=3, count=2)
    case.verify = {"numbers": "generating", "inputs": inputs}
    record(case, inputs, lambda out: out)
    assert case.one().message == (
        "1 output on 2 input sets of the generating sessions agree with the source model, "
        "on generated inputs, "
        "all values equal"
    )
    record(case, inputs, lambda out: {"z": -out["z"]})
    assert [f.outcome for f in case.check("outputs")] == ["fail", "fail"]
    assert case.check("outputs")[0].message.endswith("(of the generating sessions)")


def test_required_numbers_are_those_of_every_input_set(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source runs on the first one only, so the second one is run nowhere."""
    compute = Expected.of

    def first_only(expected: Expected, given: Any) -> Any:
        if given.label.endswith("set 1"):
            raise Unfed("the source model runs on set 0, not on set 1")
        return compute(expected, given)

    monkeypatch.setattr(Expected, "of", first_only)
    case.verify = {"inputs": VerifyInputs(count=2)}
    report = case.report()
    assert [n.input_set for n in report.numbers] == ["seed 0, set 0"]
    assert report.unrun == "numbers not all run: the source model runs on set 0, not on set 1"
    case.verify["require"] = ("numbers",)
    (failed,) = case.check("required")
    assert failed.outcome == "fail" and failed.remedy == Unfed.remedy


def test_recordings_of_other_inputs_are_not_used(case: Case) -> None:
    record(case, VerifyInputs(seed=3), lambda out: out)
    case.verify = {"numbers": "generating", "inputs": VerifyInputs(seed=4), "budget": None}
    finding = case.one()
    assert finding.outcome == "not checkable" and "ran other inputs" in finding.message


def test_what_the_generating_sessions_did_not_get_to_is_told(case: Case) -> None:
    record(case, VerifyInputs(count=1), lambda out: out)
    case.verify = {"numbers": "generating", "inputs": VerifyInputs(count=2), "budget": 60.0}
    found = [(f.outcome, f.message) for f in case.check("outputs")]
    assert found[0] == (
        "not checkable",
        "seed 0, set 1: not checked: budget (60 s are used up)",
    )
    assert found[1][0] == "pass" and "on 1 input set" in found[1][1]


def ending(case: Case, monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    """The budget is used up when the source is run on this input set."""
    of = Expected.of

    def ends(expected: Expected, given: Any) -> Any:
        if f"set {index}" in given.label:
            raise folders.Ended
        return of(expected, given)

    monkeypatch.setattr(Expected, "of", ends)
    case.verify = {"budget": 5.0, "inputs": VerifyInputs(count=3)}


def test_the_budget_ends_the_numbers_not_the_findings(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending(case, monkeypatch, 0)
    findings = case.check("interface", "outputs")
    why = "not checked: budget (5 s are used up)"
    assert all(f.outcome == "not checkable" and f.message.endswith(why) for f in findings[1:])
    assert findings[0].outcome == "pass" and len(findings) > 1 and OPENED == []


def test_the_budget_ends_in_a_source(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file was run, though what is right on the first set is known."""
    ending(case, monkeypatch, 1)
    messages = {f.message for f in case.check("outputs")}
    assert messages == {
        f"seed 0, set {index}: not checked: budget (5 s are used up)" for index in range(3)
    }


def test_the_budget_ends_in_the_search_for_sizes(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(expected: Expected, at: object) -> None:
        raise folders.Ended

    monkeypatch.setattr(Expected, "try_sizes", ends)
    open_batch(case)
    case.verify = {"budget": 5.0}
    assert case.one().message == "not checked: budget (5 s are used up)"


def test_the_budget_ends_in_a_file(case: Case) -> None:
    def ends(outputs: Outputs) -> Outputs:
        if OPENED.count("run m") > 1:
            raise folders.Ended
        return outputs

    case.change = ends
    case.verify = {"budget": 5.0, "inputs": VerifyInputs(count=3)}
    outcomes = [(f.outcome, f.message[:13]) for f in case.check("outputs")]
    assert outcomes == [
        ("not checkable", "seed 0, set 1"),
        ("not checkable", "seed 0, set 2"),
        ("pass", "1 output on 1"),
    ]


def test_the_interface_must_be_the_sources(case: Case) -> None:
    other = folders.model()
    other.graph.output[0].name = other.graph.node[1].output[0] = "q"
    other.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    (case.folder / "m_ctx.onnx").write_bytes(other.SerializeToString())
    finding = case.one("interface")
    assert finding.outcome == "fail"
    assert "its outputs are ['q'], those of the source model ['z']" in finding.message
    assert "its input 'x' is float64, the source model's float32" in finding.message


def open_batch(case: Case, name: str = "batch") -> None:
    """Leave the first dimension of the model and of its source open."""
    dynamic = folders.model()
    source = onnx.load(case.sources["m"])
    for model in (dynamic, source):
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_param = name
    (case.folder / "m_ctx.onnx").write_bytes(dynamic.SerializeToString())
    onnx.save(source, case.sources["m"])


def test_open_dimensions_are_checked_at_two_sizes(case: Case) -> None:
    open_batch(case)
    report = case.report()
    (told,) = (f for f in report.findings if f.check == "sizes")
    assert told.message == "its open dimensions are checked at batch=1 and batch=2"
    assert {n.input_set: n.comparison.shape for n in report.numbers} == {
        "seed 0, set 0, batch=1": (1, 4),
        "seed 0, set 0, batch=2": (2, 4),
    }
    case.change = lambda outputs: {
        name: array + (len(array) == 2) for name, array in outputs.items()
    }
    assert "batch=2: output 'z'" in case.one().message


def test_sizes_are_those_that_are_asked_for(case: Case) -> None:
    open_batch(case)
    for sizes, told in (((7,), "batch=7 only"), ((7, 1, 9), "batch=7 and batch=1 and batch=9")):
        case.verify = {"inputs": VerifyInputs(dimensions={"batch": sizes})}
        assert told in case.one("sizes").message
    case.verify = {"inputs": VerifyInputs(dimensions={"bach": (2,)})}
    with pytest.raises(ManifestError, match='"bach", which no model of the group leaves open'):
        case.report()


def test_no_size_that_runs_is_not_checkable_with_what_to_set(case: Case) -> None:
    open_batch(case)
    source = onnx.load(case.sources["m"])
    source.graph.input[0].type.tensor_type.shape.dim[0].dim_param = ""
    source.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 99
    onnx.save(source, case.sources["m"])
    dynamic = folders.model()
    dynamic.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    (case.folder / "m_ctx.onnx").write_bytes(dynamic.SerializeToString())
    finding = case.one()
    assert finding.outcome == "not checkable"
    assert "does not run at x[0]=1 of its open dimensions: " in finding.message
    assert "Got invalid dimensions" in finding.message
    assert finding.remedy.startswith('set `verify.inputs.dimensions: {"x[0]": …}` with sizes')
    case.verify = {"inputs": VerifyInputs(dimensions={"x[0]": (99,)})}
    assert case.one().outcome == "pass"


def test_outputs_of_other_shapes_do_not_show_that_inputs_matter(case: Case) -> None:
    case.source("m", fill=0.0)
    open_batch(case)
    finding = case.one("sensitivity")
    assert finding.outcome == "not checkable", "zeros, of whatever shape"


def test_generating_sessions_are_not_run_at_open_dimensions(case: Case) -> None:
    open_batch(case)
    case.verify = {"numbers": "generating"}
    case.generating()
    assert "the generating sessions were not run" in case.one().message


def test_a_source_of_another_shape_is_another_source(case: Case) -> None:
    case.source("m", shape=(3, 4))
    finding = case.one("interface")
    assert finding.outcome == "fail"
    assert "its input 'x' is of shape [1, 4], the source model's of [3, 4]" in finding.message


def test_a_source_that_does_not_run_is_no_finding_of_the_folders(case: Case) -> None:
    model = onnx.load(case.sources["m"])
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros((5, 4), "f4"), "w"))
    onnx.save(model, case.sources["m"])
    with pytest.raises(ModelError, match="ONNX Runtime refuses the source model"):
        case.report()


def logarithm(case: Case, op: str, *inputs: str) -> None:
    """The source is z = tanh(op(x)), its op on weights and on x."""
    model = onnx.load(case.sources["m"])
    model.graph.node[0].CopyFrom(helper.make_node(op, inputs or ["x"], ["y"], name="mm"))
    onnx.save(model, case.sources["m"])


def test_what_the_source_draws_at_random_is_held_against_nobody(case: Case) -> None:
    logarithm(case, "RandomNormalLike")
    case.change = lambda outputs: {"z": outputs["z"] + 1}
    findings = case.check("outputs", "sensitivity")
    (finding,) = findings
    assert finding.outcome == "not checkable"
    assert finding.message.startswith(
        "random: on the same inputs the source's kernels give other 'z'"
    )
    assert "training mode" in finding.remedy


def test_what_the_generating_sessions_draw_is_not_compared_either(case: Case) -> None:
    logarithm(case, "RandomUniformLike")
    inputs = VerifyInputs(count=2)
    case.verify = {"numbers": "generating", "inputs": inputs}
    record(case, inputs, lambda out: {"z": out["z"] + 1})
    assert {f.outcome for f in case.check("outputs")} == {"not checkable"}


def test_inputs_that_the_source_refuses_are_told_with_ranges(case: Case) -> None:
    model = onnx.load(case.sources["m"])
    model.graph.node[0].CopyFrom(helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64))
    model.graph.node.insert(1, helper.make_node("Gather", ["w", "i"], ["rows"], axis=0))
    model.graph.node.insert(2, helper.make_node("ReduceSum", ["rows"], ["y"], keepdims=1))
    onnx.save(model, case.sources["m"])
    case.verify = {"inputs": VerifyInputs(ranges={"x": (50, 60)})}
    finding = case.one()
    assert finding.outcome == "not checkable"
    assert "the source model runs on inputs in the range of their consumers" in finding.message
    assert "verify.inputs.ranges" in finding.remedy


def test_what_was_computed_before_is_taken(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SHORT", 0.0)
    case.request = {"kept": case.kept}
    findings = case.check()
    monkeypatch.setattr(Expected, "of", None)  # it would fail if it were called
    case.change = lambda outputs: {}
    assert case.check() == findings


def test_what_was_computed_for_other_inputs_is_not(case: Case) -> None:
    case.request = {"kept": case.kept}
    case.check()
    ran = OPENED.count("run m")
    case.verify = {"inputs": VerifyInputs(seed=1)}
    assert case.one().outcome == "pass" and OPENED.count("run m") == 2 * ran


# --- inputs from files ---------------------------------------------------------------------------


def test_a_file_that_fits_no_model_is_an_error(case: Case) -> None:
    file = case.tmp / "case.npz"
    np.savez(file, xx=np.ones((1, 4), np.float32))
    case.verify = {"inputs": VerifyInputs(files=(file,))}
    with pytest.raises(ManifestError, match='names "xx", which is not an input'):
        case.report()
    file.unlink()
    with pytest.raises(ModelError, match=r"case\.npz: does not exist"):
        case.report()


def test_a_range_for_no_input_is_an_error(case: Case) -> None:
    case.verify = {"inputs": VerifyInputs(ranges={"xs": (0, 1)})}
    with pytest.raises(ManifestError) as caught:
        case.report()
    assert 'a range is given for "xs", which is no input of any model' in str(caught.value)
    assert 'did you mean "x"?' in str(caught.value)


def test_files_go_to_the_models_that_they_fit(case: Case) -> None:
    case.models = ("m", "wide")
    case.source("wide", shape=(2, 4))
    wide = folders.model(context_node("w"))
    for info in (*wide.graph.input, *wide.graph.output, *wide.graph.value_info):
        info.type.tensor_type.shape.dim[0].dim_value = 2
    (case.folder / "wide_ctx.onnx").write_bytes(wide.SerializeToString())
    for name, rows in (("one", 1), ("two", 2)):
        np.savez(case.tmp / f"{name}.npz", x=np.ones((rows, 4), np.float32))
    files = tuple(case.tmp / f"{name}.npz" for name in ("one", "two"))
    case.verify = {"inputs": VerifyInputs(files=files)}
    assert [(n.model, n.input_set) for n in case.report().numbers] == [
        ("m_ctx.onnx", "one.npz"),
        ("wide_ctx.onnx", "two.npz"),
    ]
    case.verify = {"inputs": VerifyInputs(files=files[:1])}
    finding = next(f for f in case.check("outputs") if f.subject == "wide_ctx.onnx")
    assert (finding.outcome, finding.message) == ("not checkable", "no input file fits it")


def test_a_file_for_a_model_that_is_not_run_is_no_error(case: Case) -> None:
    case.models = ("m", "wide")
    case.source("wide", shape=("batch", 4))
    np.savez(case.tmp / "one.npz", x=np.ones((1, 4), np.float32))
    np.savez(case.tmp / "two.npz", x=np.ones((2, 4), np.float32))
    files = (case.tmp / "one.npz", case.tmp / "two.npz")
    case.verify = {"inputs": VerifyInputs(files=files)}
    assert [n.input_set for n in case.report().numbers] == ["one.npz"]
    case.source("wide", shape=(3, 4))
    with pytest.raises(ManifestError, match=r"two\.npz: has shape \[2, 4\] for input 'x'"):
        case.report()


def folding(path: Path) -> Path:
    """A source whose kernels compute x, and a stock session 2 x: onnx infers another rank."""
    made = onnx_text.proto(
        "g (float[1,4] x) => (float[1,4] z) <int64[0] a = {}> {"
        " s = Squeeze(x, a) t = Shape(s) r = Size(t) f = Cast <to = 1> (r) z = Mul(x, f) }"
    )
    onnx.save(made, path)
    return path


@pytest.mark.parametrize(("factor", "outcome"), [(0.5, "pass"), (1.0, "fail")])
def test_of_two_answers_that_of_the_kernels_is_right(
    case: Case, factor: float, outcome: str
) -> None:
    case.sources["m"] = folding(case.tmp / "two.onnx")
    case.change = lambda outputs: {"z": outputs["z"] * np.float32(factor)}
    source, *_ = case.check("source")
    assert source.outcome == "not checkable" and source.remedy
    assert "two answers" in source.message and "output 'z': relative error" in source.message
    assert {finding.outcome for finding in case.check("outputs")} == {outcome}


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, "pass"), (1.001, "fail")])
def test_answers_that_differ_by_what_is_fused_are_noticed_where_a_file_fails(
    case: Case, factor: float, outcome: str
) -> None:
    made = two_answers.style()
    onnx.save(made, case.sources["m"])
    context = folders.model()
    for own, other in (
        (context.graph.input, made.graph.input),
        (context.graph.output, made.graph.output),
    ):
        own[0].CopyFrom(other[0])
    (case.folder / "m_ctx.onnx").write_bytes(context.SerializeToString())
    source = SourceModel.read(ModelSource(name="m", path=case.sources["m"]))
    inputs = VerifyInputs(count=2)
    sets = InputSets(inputs)
    runs = expected.Expected(source, source.inputs, sets)
    answers = [runs.compute(each.feeds, False) for each in sets.cases(source.inputs)]
    for each, outputs in zip(sets.cases(source.inputs), answers, strict=True):
        recordings.write(case.tmp / "recorded", "m", each.feeds, outputs)
    case.generating()
    given = iter(answers)
    case.change = lambda outputs: {"z": np.multiply(next(given)["z"], np.float32(factor))}
    case.verify = {"inputs": inputs}
    findings = case.check("source", "outputs")
    assert findings[0].outcome == "not checkable" and findings[0].check == "source"
    assert findings[0].message.startswith(
        "ONNX Runtime gives its source two answers; seed 0, set 0, a stock session against one at "
        "ORT_DISABLE_ALL: output 'z': relative error 0.000"
    )
    assert [f.outcome for f in findings if f.check == "source"] == ["not checkable"], "told once"
    told = {f.message.rpartition("of the ")[2][:5]: f.outcome for f in findings[1:]}
    assert told == {"gener": "pass", "files": outcome}


@pytest.mark.parametrize(("of_source", "hint"), [(False, (-64.0, 63.5)), (True, None)])
def test_inputs_of_what_a_build_quantizes_are_those_of_the_float_model(
    case: Case, of_source: bool, hint: tuple[float, float] | None
) -> None:
    """A build calibrates with samples: inputs that fill the range evenly lie beyond these."""
    text = "g (float[4] x) => (int8[4] z) <float s = {0.5}, int8 i = {0}> "
    onnx.save(onnx_text.proto(text + "{ z = QuantizeLinear(x, s, i) }"), case.tmp / "q.onnx")
    reference = Reference(path=case.sources["m"], of_source=of_source)
    source = ModelSource(name="m", path=case.tmp / "q.onnx", reference=reference)
    hints = [each.hint for each in SourceModel.read(source).inputs]
    assert [each and each[:2] for each in hints] == [hint]


def test_one_answer_is_told_where_there_could_be_two(case: Case) -> None:
    path = case.tmp / "one.onnx"
    text = "g (float[1,4] x) => (float[1,4] z) { t = Shape(x) z = Reshape(x, t) }"
    onnx.save(onnx_text.proto(text), path)
    case.sources["m"] = path
    assert case.one("source").outcome == "pass"


def test_other_nodes_than_the_generating_sessions_ran_are_a_failure(case: Case) -> None:
    case.verify = {"numbers": "generating"}
    record(case, VerifyInputs(), lambda out: out)
    assert case.one("boundaries").outcome == "not checkable", "nothing was kept of them"
    port = Port(name="x", type="tensor(float)", shape=(1, 4))
    right = Boundary(node="main_0", inputs=(port,), outputs=(replace(port, name="y"),))
    recordings.keep(case.tmp / "recorded", "m", "boundaries", [right])
    assert case.one("boundaries").outcome == "pass"
    swapped = replace(right, inputs=(replace(port, name="z"),))
    recordings.keep(case.tmp / "recorded", "m", "boundaries", [swapped])
    found = case.one("boundaries")
    assert found.outcome == "fail"
    assert "node 'main_0': inputs are x, not z" in found.message


def test_each_device_that_a_model_is_for_is_compared_by_itself(case: Case) -> None:
    case.verify = {"numbers": "generating"}
    port = Port(name="x", type="tensor(float)", shape=(1, 4))
    right = Boundary(node="main_0", inputs=(port,), outputs=(replace(port, name="y"),))
    folder, kept = case.tmp / "recorded", []
    for name, change in {"A": lambda out: out, "B": lambda out: {"z": -out["z"]}}.items():
        record(case, VerifyInputs(), change, f"m/{name}")
        recordings.keep(folder, f"m/{name}", "boundaries", [right])
        kept.append(recordings.Variant(name=name, place=f"m/{name}"))
    recordings.keep(folder, "m", "variants", kept)
    good, bad = case.check("outputs")
    assert (good.outcome, bad.outcome) == ("pass", "fail")
    assert "of the generating sessions for A alone agree" in good.message
    assert bad.message.startswith("seed 0, set 0, B: output")
    assert [f.message[:3] for f in case.check("boundaries")] == ["A: ", "B: "]
    kept[0] = replace(kept[0], misfit="graph g is another")
    recordings.keep(folder, "m", "variants", kept)
    wrong = case.check("boundaries")[0]
    assert (wrong.outcome, "graph g is another" in wrong.message) == ("fail", True)


def test_devices_that_the_budget_left_out_are_told(case: Case) -> None:
    case.verify = {"numbers": "generating"}
    record(case, VerifyInputs(), lambda out: out, "m/A")
    variants = [
        recordings.Variant(name="A", place="m/A"),
        recordings.Variant(name="B", place="m/B", begun=False),
        recordings.Variant(name="C", place="m/C"),
    ]
    recordings.keep(case.tmp / "recorded", "m", "variants", variants)
    recordings.refuse(case.tmp / "recorded", "m/C", "it ended")
    found = {f.message for f in case.check("outputs") if f.outcome == "not checkable"}
    assert found == {"B: not checked: budget", "C: not checked: it ended"}
