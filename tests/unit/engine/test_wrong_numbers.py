"""The failure of a group whose numbers are wrong: the way out, in its order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epctx.engine.plan import PlannedGroup
from epctx.engine.wrong_numbers import explain
from epctx.error_codes import Code
from epctx.errors import ModelError, VerificationError
from epctx.manifest import ModelSource, Tolerance
from epctx.verification.findings import (
    WRONG,
    Comparison,
    Finding,
    FolderReport,
    OutputNumbers,
    Sessions,
    TopK,
)
from tests.kit import folders

ERROR = VerificationError("numbers: wrong", remedy=WRONG, code=Code.NUMBERS)
MODEL = ModelSource(
    name="m", path=Path("m.onnx"), dimensions={"n": 1}, shapes={"x": (1, 3)}, guessed=("n", "x")
)


def planned(model: ModelSource = MODEL, target: str = "default") -> PlannedGroup:
    group = folders.group(models=(model,))
    return PlannedGroup(target=target, group=group, session_groups=())


def numbers(output: str, sessions: Sessions = "files", **found: Any) -> OutputNumbers:
    values: dict[str, Any] = {"max_abs": 0.7, "max_rel": 0.4261, "cosine": 0.80429, **found}
    return OutputNumbers(
        model="m_ctx.onnx",
        output=output,
        input_set="seed 0, set 0",
        sessions=sessions,
        comparison=Comparison(dtype="float32", shape=(1, 2), **values),
        tolerance=Tolerance(max_rel=0.2, cosine_min=0.99),
        passed=False,
    )


def fail(output: str, remedy: str = WRONG) -> Finding:
    message = f"seed 0, set 0: output '{output}': it is wrong"
    return Finding("numbers", "outputs", "m_ctx.onnx", "fail", message, remedy)


def test_guesses_come_first_then_inputs_float16_a_tolerance_and_bisect() -> None:
    generated = Finding("numbers", "inputs", "m_ctx.onnx", "pass", "generated: 'x' normal about 0")
    over = Finding(
        "numbers", "headroom", "m_ctx.onnx", "pass", "overflows float16", "scale it down"
    )
    found = FolderReport(
        folder=".",
        findings=(fail("a"), fail("b"), generated, over),
        numbers=(numbers("a", max_rel=0.3), numbers("b")),
    )
    error = explain(ERROR, found, planned(), Path("epctx.yaml"))
    assert error.code == Code.NUMBERS and error.file == "m_ctx.onnx"
    assert error.what == (
        "numbers: seed 0, set 0: output 'b': it is wrong (the worst of 2 outputs that are wrong)"
    )
    assert error.remedy.splitlines() == [
        "its sizes are guesses of `epctx init` (n: 1, x: [1, 3]): set yours in `dimensions` and "
        "`shapes` of `models.m`, and remove their names from `guessed`",
        "its inputs are generated: 'x' normal about 0: give real ones with `verify.inputs.files`, "
        "or set `verify.inputs.ranges`",
        "it overflows float16: scale it down",
        "if the EP's precision explains it, `verify.tolerance: {max_rel: 0.43, cosine_min: 0.8}` "
        "would pass",
        "find the first wrong node: `epctx bisect epctx.yaml g m`",
    ]


def test_what_is_not_so_is_not_said() -> None:
    found = FolderReport(folder=".", findings=(fail("a"),), numbers=(numbers("a"),))
    model = ModelSource(name="m", path=Path("m.onnx"))
    error = explain(ERROR, found, planned(model, "chip"), Path("my files/m.yaml"))
    assert error.what == "numbers: seed 0, set 0: output 'a': it is wrong"
    assert error.remedy.splitlines()[-1] == (
        'find the first wrong node: `epctx bisect "my files/m.yaml" g@chip m`'
    )
    assert len(error.remedy.splitlines()) == 2


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"problem": "its type is int8"}, None),
        ({"max_rel": None}, None),
        ({"top_k": TopK(rows=9, decided=8, agreeing=6, winners=4)}, "top_k_min: 0.75}"),
        ({"cosine": 0.999}, "explains it, `verify.tolerance: {max_rel: 0.43}`"),
        ({"max_rel": 3e4}, "no precision explains this: only `verify.tolerance: {max_rel: 30000"),
    ],
)
def test_a_tolerance_is_named_only_if_it_would_pass(
    found: dict[str, Any], told: str | None
) -> None:
    report = FolderReport(folder=".", findings=(fail("a"),), numbers=(numbers("a", **found),))
    remedies = explain(ERROR, report, planned(), Path("m.yaml")).remedy
    assert ("would pass" in remedies) == (told is not None)
    assert told is None or told in remedies


def test_of_what_was_quantized_the_remedies_stay_and_its_own_tolerance_is_named() -> None:
    report = FolderReport(
        folder=".", findings=(fail("a", "more samples"),), numbers=(numbers("a", "quantized"),)
    )
    remedies = explain(ERROR, report, planned(), Path("m.yaml")).remedy.splitlines()
    assert remedies[1] == "more samples" and "`quantize.tolerance: {" in remedies[2]


def test_other_failures_are_left_as_they_are() -> None:
    loads = Finding("numbers", "loads", "m_ctx.onnx", "fail", "does not load", "build it again")
    report = FolderReport(folder=".", findings=(loads,))
    other = ModelError("is broken", remedy="export it")
    for error in (ERROR, other):
        assert explain(error, report, planned(), Path("m.yaml")) is error
    outputs = FolderReport(folder=".", findings=(fail("a"),), numbers=(numbers("a"),))
    assert explain(other, outputs, planned(), Path("m.yaml")) is other


def test_a_piece_that_is_wrong_by_itself_is_named_before_what_follows_from_it() -> None:
    piece = replace(numbers("h", "pieces", max_rel=0.3), input_set="seed 0, set 0, piece 2 of 4")
    told = replace(fail("h"), message="seed 0, set 0, piece 2 of 4: output 'h': it is wrong")
    found = FolderReport(
        folder=".",
        findings=(fail("z"), told),
        numbers=(numbers("z", max_rel=0.9), piece, numbers("z", "chain", max_rel=0.9)),
    )
    error = explain(ERROR, found, planned(), Path("epctx.yaml"))
    assert error.what.startswith("numbers: seed 0, set 0, piece 2 of 4: output 'h': it is wrong")
