"""Files that are loaded, run, and run again; `test_policy` has what is told of their sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

from epctx.manifest import ModelSource, Reference, Tolerance, VerifyInputs
from epctx.verification.folder import ContextModel, GroupFolder, Providers, open_folder
from epctx.verification.numbers import files
from epctx.verification.numbers.files import Feeding, Files
from epctx.verification.numbers.input_sets import Case as InputCase
from tests.kit import folders, onnx_text
from tests.kit.controlled import OPENED, Case, Change, Outputs, source_model


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(tmp_path, monkeypatch)


def with_history(give: Callable[[list[Outputs]], Outputs]) -> Change:
    """Give what `give` makes of the right outputs of all runs so far."""
    runs: list[Outputs] = []

    def change(outputs: Outputs) -> Outputs:
        runs.append(outputs)
        return give(runs)

    return change


LATER = "seed 0, set 0, in a later run: output 'z': relative error "


def off(outputs: Outputs, by: float) -> Outputs:
    return {"z": outputs["z"] * np.float32(1 + by)}


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda runs: runs[0], "seed 0, set 1: 'z' is what the run before gave"),
        (
            lambda runs: runs[max(0, len(runs) - 2)],
            "seed 0, set 1: 'z' is what the run before gave",
        ),
        (lambda runs: off(runs[-1], 0.1 * (len(runs) == 3)), LATER),
        (lambda runs: off(runs[-1], 0.1 * (len(runs) > 1)), LATER),
    ],
    ids=["of the first run", "of the run before", "third run", "random"],
)
def test_outputs_that_depend_on_the_runs_before_are_told_by_one_input_set(
    case: Case, give: Callable[[list[Outputs]], Outputs], message: str
) -> None:
    case.change = with_history(give)
    failed, agreed = case.check("outputs", "determinism")
    assert failed.outcome == "fail" and failed.message.startswith(message)
    assert agreed.outcome == "pass" and "on 1 input set of the files agree" in agreed.message


def test_equal_outputs_are_not_stale_where_the_limits_allow_them(case: Case) -> None:
    case.change = with_history(lambda runs: runs[0])
    case.verify = {"tolerance": Tolerance(max_rel=9.0, cosine_min=-1.0)}
    outcomes = [(each.outcome, each.message) for each in case.check("determinism")]
    assert outcomes == [
        (
            "not checkable",
            "seed 0, set 1: 'z' is what the run before gave, and the limits allow that",
        ),
        ("pass", "its outputs are the same when it is run again"),
    ]


def test_the_first_of_several_sets_is_run_again_after_the_last(case: Case) -> None:
    case.verify = {"inputs": VerifyInputs(count=2)}
    case.change = with_history(lambda runs: runs[1 if len(runs) > 2 else -1])
    assert "seed 0, set 0, in a later run: " in case.check("outputs")[0].message
    assert len(OPENED) == 5


def test_what_is_the_same_each_time_is_told(case: Case) -> None:
    told = case.one("determinism")
    assert (told.outcome, told.message) == (
        "pass",
        "its outputs are the same when it is run again",
    )
    case.change = with_history(lambda runs: off(runs[-1], 2e-6 * (len(runs) % 2)))
    assert case.one("determinism").message.endswith("when it is run again"), (
        "the third as the first"
    )
    case.change = with_history(lambda runs: off(runs[-1], 2e-6 * len(runs)))
    told = case.one("determinism")
    assert (told.outcome, told.message) == (
        "pass",
        "'z' differ from run to run, within the tolerance",
    )


def test_a_run_that_is_long_is_not_repeated(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SHORT", 0.0)
    told = case.one("determinism")
    assert told.outcome == "pass"
    assert told.message == "not tried: a run takes a second or longer, or the budget was used up"
    assert OPENED == ["open m", "run m", "close m"]


def test_what_is_wrong_is_not_said_to_be_the_same(case: Case) -> None:
    case.change = lambda outputs: off(outputs, 0.1)
    assert not case.check("determinism")


def test_a_failing_input_set_does_not_end_the_others(case: Case) -> None:
    def lost(runs: list[Outputs]) -> Outputs:
        raise RuntimeError(f"device lost in run {len(runs)}")

    case.change = with_history(lost)
    case.verify = {"inputs": VerifyInputs(count=2)}
    assert [(f.outcome, f.message) for f in case.check("runs", "determinism")] == [
        ("fail", "seed 0, set 0: fails where its source runs: device lost in run 1"),
        ("fail", "seed 0, set 1: fails where its source runs: device lost in run 2"),
    ]
    assert OPENED[-1] == "close m"


def test_a_later_run_that_fails_is_told(case: Case) -> None:
    def lost(runs: list[Outputs]) -> Outputs:
        if len(runs) > 1:
            raise RuntimeError("device lost")
        return runs[-1]

    case.change = with_history(lost)
    told = case.one("runs").message
    assert told == "seed 0, set 1: fails where its source runs: device lost, in a later run"


def test_a_run_that_did_not_come_to_be_repeated_is_not_said_to_be(case: Case) -> None:
    def ends(runs: list[Outputs]) -> Outputs:
        if len(runs) > 2:
            raise folders.Ended
        return runs[-1]

    case.change = with_history(ends)
    assert case.one("determinism").message.startswith("not tried: ")


def test_what_the_source_draws_at_random_is_not_said_to_be_the_same(case: Case) -> None:
    onnx.save(
        onnx_text.proto("g (float[1,4] x) => (float[1,4] z) { z = RandomNormalLike(x) }"),
        case.sources["m"],
    )
    assert not case.check("determinism")


def test_a_later_run_is_held_to_the_reference_on_its_inputs(case: Case) -> None:
    reference = Reference(path=source_model(case.tmp / "float.onnx"))
    source = ModelSource(name="m", path=case.sources["m"], reference=reference)
    case.request = {"group": replace(case.group(), models=(source,))}
    assert case.one("determinism").outcome == "pass"
    assert {f.outcome for f in case.check("outputs")} == {"pass"}
    case.change = with_history(lambda runs: runs[0])
    assert case.one("determinism").outcome == "fail"


class Given(Feeding):
    """Two input sets for each model."""

    count = 2

    def cases(self, model: ContextModel, index: int | None) -> Iterator[InputCase]:
        for each in range(2) if index is None else (index,) if index < 2 else ():
            yield InputCase(label=f"set {each}", feeds={"x": np.full((1, 4), each, np.float32)})


@pytest.fixture
def folder(case: Case) -> GroupFolder:
    """A folder of two models that share nothing."""
    case.source("n")
    other = folders.model(folders.context_node("n", ep_cache_context="n_reference.bin"))
    (case.folder / "n_ctx.onnx").write_bytes(other.SerializeToString())
    return open_folder(case.folder, providers=Providers())


def test_a_model_is_open_until_another_is_run(case: Case, folder: GroupFolder) -> None:
    heard: list[tuple[str, int, int]] = []
    made = Files(folder, case.kept, (), lambda *told: heard.append(told))
    for file, index in [("m_ctx.onnx", 0), ("m_ctx.onnx", 1), ("n_ctx.onnx", 0), ("m_ctx.onnx", 2)]:
        made.run(Given(), file, index)
    made.close()
    assert heard == [("m", 0, 0), ("m", 1, 2), ("m", 2, 2), ("n", 0, 0), ("n", 1, 2), ("m", 0, 0)]
    first = ["open m", "run m", "run m", "close m", "open n", "run n", "close n"]
    assert [*first, "open m", "run m", "close m"] == OPENED


def test_what_was_kept_is_not_run_again_and_what_passed_is_not_loaded(
    case: Case, folder: GroupFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SHORT", -1.0)
    for _ in range(2):
        Files(folder, case.kept, (), lambda *_: None, passed=["n_ctx.onnx"]).run(Given())
    assert OPENED == ["open m", "run m", "run m", "open m"]
