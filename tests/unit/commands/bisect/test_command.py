"""`epctx bisect`: what it finds, and its page."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from epctx import codec
from epctx.commands.bisect import command
from epctx.commands.bisect.result import Bisection
from epctx.commands.bisect.search import Spent, Trials
from epctx.error_codes import Code
from epctx.errors import CompileError, Interrupted, UsageError
from epctx.manifest import ModelGroup, VerifyInputs
from epctx.providers.base import KnownFault
from epctx.verification.findings import OutputNumbers
from tests.kit.bisections import FOUND


def bisect(
    manifest: Path, *, model: str = "net", cuts: int = 4, budget: float | None = None
) -> tuple[Bisection, list[str]]:
    told: list[str] = []
    found = command.bisect(
        manifest,
        "g",
        model,
        cuts=cuts,
        budget=budget,
        allow_outside=False,
        listener=lambda event: told.append(event.detail or ""),
    )
    return found, told


def test_the_damaged_weight_is_found_and_its_node_kept_off(damaged: Path) -> None:
    found, told = bisect(damaged)
    (first,) = found.first
    assert (found.ended, first.node, first.op_type) == ("found", "product6", "MatMul")
    assert not first.passed and (first.comparison.sqnr or 0) < 0
    assert found.cause is not None and found.cause.kind == "unknown"
    assert found.repair is not None and "product6" in str(found.repair.manifest)
    assert found.builds == len(told) - 1, "each is told, and that the source is run"
    assert told[1].startswith("cut 1 of about 3, suspects: 29, read: 4")
    states = [each.passed for each in found.readings]
    assert states == sorted(states, reverse=True), "what is before it is right"
    assert (found.inputs.seed, found.inputs.count, found.input_set) == (0, 1, "seed 0, set 0")


def test_a_spent_budget_tells_how_far_it_came(damaged: Path) -> None:
    found, _ = bisect(damaged, budget=0)
    assert (found.ended, found.builds, found.suspects) == ("budget", 1, 29)
    assert found.cause is None and found.first[0].value == "y"


def test_a_model_that_the_group_does_not_have_is_refused(damaged: Path) -> None:
    with pytest.raises(UsageError, match='no model "nett"'):
        bisect(damaged, model="nett")


@pytest.mark.parametrize("refused", [False, True])
def test_a_fault_that_is_gone_when_many_values_are_read_is_looked_for_with_fewer(
    damaged: Path, monkeypatch: pytest.MonkeyPatch, *, refused: bool
) -> None:
    """As with real EPs, which compute something else, or nothing, where values are outputs."""
    real, counts = Trials.build, list[int]()

    def build(self: Trials, group: ModelGroup) -> Sequence[OutputNumbers]:
        numbers = real(self, group)
        counts.append(len(numbers))
        if len(numbers) > 3 and refused:
            raise CompileError("too many outputs", remedy="fewer")
        return [replace(each, passed=True) if len(numbers) > 3 else each for each in numbers]

    monkeypatch.setattr(Trials, "build", build)
    found, _ = bisect(damaged)
    assert found.ended == "found" and found.first[0].node == "product6"
    assert counts[:3] == [1, 5, 3]


def test_a_fault_that_is_gone_with_any_value_read_is_said_to_be(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Trials.build

    def build(self: Trials, group: ModelGroup) -> Sequence[OutputNumbers]:
        numbers = real(self, group)
        return [replace(each, passed=True) if len(numbers) > 1 else each for each in numbers]

    monkeypatch.setattr(Trials, "build", build)
    found, _ = bisect(damaged)
    assert found.ended == "vanished" and found.cause is None and not found.tried


@pytest.mark.parametrize("known", [True, False])
def test_of_a_model_that_crashes_the_known_faults_are_tried(
    damaged: Path, monkeypatch: pytest.MonkeyPatch, *, known: bool
) -> None:
    """QNN's AveragePool may end the process that runs it: then there is nothing to compare."""
    op_type = "MatMul" if known else "Tanh"  # that repairs the damaged one, or does not
    fault = KnownFault(
        op_type=op_type, concerns=lambda node: True, what="it is known", remedy="keep it off"
    )
    faulty = importlib.import_module("epctx_faulty").FaultyExecutionProvider
    monkeypatch.setattr(faulty, "faults", (fault,), raising=False)

    def build(self: Trials, group: ModelGroup) -> Sequence[OutputNumbers]:
        code = Code.CRASHED if known else Code.OUT_OF_MEMORY
        raise CompileError("the worker process crashed", remedy="see its log", code=code)

    monkeypatch.setattr(Trials, "build", build)
    if not known:
        with pytest.raises(CompileError, match="crashed"):
            bisect(damaged)
        return
    found, _ = bisect(damaged)
    assert found.ended == "crashed" and not found.readings
    assert found.cause is not None and found.cause.kind == "known EP fault"
    assert found.cause.why == "it is known. Without a change: the worker process crashed"
    assert found.repair is not None and found.repair.what.count("product") == 10


def fail(
    monkeypatch: pytest.MonkeyPatch, needed: set[str] | None, *, running: bool = False
) -> list[str]:
    """Let each build crash that gives these nodes to the EP, or any; return what was tried.

    Args:
        running: the build compiles, and crashes where it runs.
    """
    tried: list[str] = []

    def run(self: Trials, group: ModelGroup) -> object:
        if self.count and self.deadline is not None and len(tried) >= self.deadline:
            raise Spent
        self.count += 1
        tried.append(group.verify.numbers)
        out = set(group.partition.exclude_nodes)
        if running and group.verify.numbers == "off" and not out:
            return SimpleNamespace(verify=None), None
        if needed is not None and needed <= out:
            kept = len(out) < 30
            nothing = CompileError("nothing", remedy="", code=Code.NOTHING_COMPILED)
            return SimpleNamespace(verify=None), None if kept else nothing
        if needed is not None and group.partition.exclude_op_types == ("MatMul",):
            return SimpleNamespace(verify=None), None
        error = CompileError("QNN crashed", remedy="see the log", code=Code.CRASHED)
        return SimpleNamespace(verify=None), error

    monkeypatch.setattr(Trials, "run", run)
    return tried


@pytest.mark.parametrize("running", [False, True])
def test_the_one_node_that_does_not_compile_is_found_and_kept_off(
    damaged: Path, monkeypatch: pytest.MonkeyPatch, *, running: bool
) -> None:
    tried = fail(monkeypatch, {"small6"}, running=running)
    found, told = bisect(damaged)
    assert found.ended == "crashed" and found.cause is not None and found.repair is not None
    assert found.cause.kind == "compile failure"
    assert found.cause.why == "QNN crashed; the build passes without 'small6' (Tanh)"
    assert found.repair.manifest == {
        "model_groups": {"g": {"partition": {"exclude": {"nodes": ["small6"]}}}}
    }
    assert found.builds == len(tried) <= 3 + 6 + 1, "as it is, without numbers, without all"
    assert "15 of 30 nodes kept off" in told
    assert tried[-1] == "full", "what is proposed has its numbers checked"
    assert set(tried[2:-1]) == {"full" if running else "off"}


def test_nodes_that_are_all_of_their_type_are_kept_off_by_it(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, {f"product{number}" for number in range(10)})
    found, _ = bisect(damaged)
    assert found.cause is not None and "'product3' (MatMul), 6 more" in found.cause.why
    assert found.repair is not None and found.repair.manifest == {
        "model_groups": {"g": {"partition": {"exclude": {"op_types": ["MatMul"]}}}}
    }


def test_a_spent_budget_tells_which_nodes_are_left(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = fail(monkeypatch, {"product0"})
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)  # the deadline counts trials
    found, _ = bisect(damaged, budget=1)
    assert (found.ended, found.suspects, found.builds) == ("budget", 0, 1)
    assert found.cause is not None and found.cause.why == "QNN crashed"
    tried.clear()
    found, _ = bisect(damaged, budget=5)
    assert (found.ended, found.suspects, found.builds) == ("budget", 7, 5)
    assert (
        found.cause is not None
        and "7 of 30 nodes: 'product0' (MatMul), 'small0'" in found.cause.why
    )
    assert not found.tried


def test_what_fails_whatever_is_kept_off_fails_as_it_is(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = fail(monkeypatch, None)
    with pytest.raises(CompileError, match="QNN crashed"):
        bisect(damaged)
    assert len(tried) == 3


def test_an_interrupt_ends_it_at_once(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = Trials.run, 0

    def run(self: Trials, group: ModelGroup) -> object:
        nonlocal count
        count += 1
        if count == 2:
            raise Interrupted("interrupted", remedy="start again")
        return real(self, group)

    monkeypatch.setattr(Trials, "run", run)
    with pytest.raises(Interrupted):
        bisect(damaged)
    assert count == 2


def test_only_the_inputs_that_are_wrong_are_run_again() -> None:
    generated = VerifyInputs(seed=3, count=5)
    assert command._only(generated, "seed 3, set 1").count == 2
    files = VerifyInputs(files=(Path("/a/one.npz"), Path("/a/two.npz")))
    assert command._only(files, "two.npz").files == (Path("/a/two.npz"),)


def test_the_page_has_first_node_cause_repair_plot_and_table(tmp_path: Path) -> None:
    path = command.write_result(FOUND, tmp_path / "dist")
    text = path.read_text(encoding="utf-8")
    assert path.name == "m.g.a.bisect.html"
    for words in (
        "First wrong node",
        "&lt;n2&gt;",
        "fp16 overflow",
        "- n2",
        "2 tensors from -3.0 dB (v2) to 40.0 dB",
    ):
        assert words in text, words
    assert "<n2>" not in text, "names are escaped"
    assert text.count("<rect") == 2, "one without noise has no column"
    kept = path.with_suffix(".json").read_bytes()
    assert codec.decode(kept, Bisection) == FOUND


def test_of_nothing_wrong_the_page_says_so(tmp_path: Path) -> None:
    nothing = Bisection(name="m", target="default", group="g", model="a")
    text = command.write_result(nothing, tmp_path).read_text(encoding="utf-8")
    assert "nothing wrong" in text and "<rect" not in text and "<table" not in text
