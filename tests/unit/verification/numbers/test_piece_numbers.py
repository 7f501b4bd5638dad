"""A model in pieces: each piece judged by itself, and all of them one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epctx.errors import ProviderUnavailable
from epctx.graph.epcontext import Cuts
from epctx.inference.session import Session
from epctx.manifest import ModelSource, Pieces, Reference, Tolerance, VerifyInputs, VerifySettings
from epctx.verification.findings import Finding, FolderReport, OutputNumbers
from epctx.verification.numbers import sessions
from tests.kit import folders, in_pieces

QDQ = """g (float[2,8] x) => (float[2,8] z)
  <float[8,8] w1, float[8,8] w2, float s = {0.02}, uint8 p = {128}> {
  h = MatMul(x, w1)
  a = Tanh(h)
  q = QuantizeLinear(a, s, p)
  d = DequantizeLinear(q, s, p)
  z = MatMul(d, w2)
}"""


class Case:
    """A folder of models in pieces, with their sources."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp = tmp_path
        self.folder = tmp_path / "out"
        self.sources: dict[str, Path] = {}
        self.settings: dict[str, Any] = {}
        self.changes: dict[str, Any] = {"pieces": Pieces(max_memory=1)}

    def model(
        self, *names: str, body: str = in_pieces.MLP, cuts: Cuts = in_pieces.CUTS, **how: Any
    ) -> None:
        """Write a model, `m`, or several that share the context of each piece."""
        for name in names or ("m",):
            self.sources[name] = in_pieces.source(self.tmp / f"{name}.onnx", body)
        in_pieces.assemble(self.folder, self.sources, cuts, **how)

    def report(self, **request: Any) -> FolderReport:
        models = tuple(ModelSource(name=n, path=p) for n, p in self.sources.items())
        group = folders.group(models=models, verify=VerifySettings(**self.settings), **self.changes)
        return folders.report(self.folder, policies=("numbers",), group=group, **request)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def rows(report: FolderReport, sessions: str, model: str = "m") -> list[OutputNumbers]:
    return [n for n in report.numbers if (n.sessions, n.model) == (sessions, f"{model}_ctx.onnx")]


def failed(report: FolderReport) -> list[str]:
    return [found.message for found in report.findings if found.outcome == "fail"]


def unchecked(report: FolderReport) -> list[Finding]:
    return [found for found in report.findings if found.outcome == "not checkable"]


def test_each_piece_and_the_chain_are_judged(case: Case) -> None:
    case.model()
    case.settings = {"inputs": VerifyInputs(count=2)}
    report = case.report()
    assert not failed(report) and not unchecked(report) and report.unrun is None
    assert [(n.output, n.input_set) for n in rows(report, "pieces") if "set 1" in n.input_set] == [
        ("m1", "seed 0, set 1, piece 1 of 3"),
        ("a1", "seed 0, set 1, piece 1 of 3"),
        ("early", "seed 0, set 1, piece 1 of 3"),
        ("m2", "seed 0, set 1, piece 2 of 3"),
        ("z", "seed 0, set 1, piece 3 of 3"),
    ]
    for kind in ("chain", "files"):
        assert Counter(n.output for n in rows(report, kind)) == {"early": 2, "z": 2}
    assert {n.tolerance.max_rel for n in report.numbers} == {5e-5}
    told = [found.message for found in report.findings if found.check in ("loads", "outputs")]
    assert "piece 2 of 3: loads on this host" in told
    assert (
        "1 output on 2 input sets of piece 2 of 3 by itself agree with the source model, on "
        "generated inputs, all values equal" in told
    )
    assert any("2 outputs on 2 input sets of the pieces one after" in each for each in told)


def test_cuts_in_a_file_do_not_count_without_pieces_in_its_manifest(case: Case) -> None:
    case.model(body=in_pieces.MLP.replace("z = Add(h3", "p = Less(h3, a1)  z = Where(p, h3"))
    case.changes = {}
    report = case.report()
    assert {n.sessions for n in report.numbers} == {"files"}
    assert "in pieces" not in " ".join(found.message for found in report.findings)


def test_a_wrong_piece_is_blamed_alone(case: Case) -> None:
    case.model(wrong={2: "w2"})
    report = case.report()
    passed = {n.input_set[-12:]: n.passed for n in rows(report, "pieces")}
    assert passed == {"piece 1 of 3": True, "piece 2 of 3": False, "piece 3 of 3": True}
    assert {n.output: n.passed for n in rows(report, "chain")} == {"early": True, "z": False}
    (blamed,) = [message for message in failed(report) if "piece" in message.split("(")[0]]
    assert blamed.startswith("seed 0, set 0, piece 2 of 3: output 'm2': relative error ")
    assert blamed.endswith(" (of piece 2 of 3 by itself)")


def test_a_piece_that_cannot_be_loaded_is_named(case: Case) -> None:
    case.model()
    (case.folder / "m_2_reference.bin").unlink()
    report = case.report()
    named = [message for message in failed(report) if message.startswith("piece ")]
    assert len(named) == 1 and named[0].startswith("piece 2 of 3: ")
    assert {n.input_set for n in report.numbers} == {
        "seed 0, set 0, piece 1 of 3",
        "seed 0, set 0, piece 3 of 3",
    }, "the others are judged all the same"
    assert not unchecked(report)


def test_a_piece_that_does_not_run_is_named(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.model()
    run = Session.run

    def lost(session: Session, names: Sequence[str], feeds: Any, options: Any = None) -> Any:
        if [*names] == ["m2"]:
            raise RuntimeError("device lost")
        return run(session, names, feeds, options)

    monkeypatch.setattr(Session, "run", lost)
    report = case.report()
    assert failed(report) == [
        "seed 0, set 0, piece 2 of 3: fails where its source runs: device lost",
        "seed 0, set 0, piece 2 of 3 after the others: fails where its source runs: device lost",
    ]
    assert not rows(report, "chain")
    assert all(n.passed for n in report.numbers) and rows(report, "files")


def test_pieces_that_this_host_cannot_load_are_no_numbers(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.model()
    open_ = sessions.open_files

    def opened(*args: Any, changed: bytes | None = None, **how: Any) -> Session:
        if changed is None or b"m_2_reference" in changed:
            raise ProviderUnavailable("this host cannot run it", remedy="run it on the device")
        return open_(*args, changed=changed, **how)

    monkeypatch.setattr(sessions, "open_files", opened)
    report = case.report()
    assert [found.message for found in unchecked(report)] == [
        "not on this host: this host cannot run it",
        "piece 2 of 3: not on this host: this host cannot run it",
        "not checked: not every piece of it can be loaded on this host",
    ]
    assert {n.sessions for n in report.numbers} == {"pieces"} and not failed(report)
    assert report.unrun == ("numbers not all run: not every piece of it can be loaded on this host")


def test_without_the_whole_the_chain_counts_as_numbers(case: Case) -> None:
    case.model()
    report = case.report(only_pieces="it takes 9 GB", require=("numbers",))
    (told,) = unchecked(report)
    assert (told.check, told.message) == ("end_to_end", "not checked end to end: it takes 9 GB")
    assert not failed(report) and report.unrun is None
    assert {n.sessions for n in report.numbers} == {"pieces", "chain"}


def test_without_the_whole_pieces_are_loaded_if_nothing_is_run(case: Case) -> None:
    case.model()
    (case.folder / "m_2_reference.bin").unlink()
    case.settings = {"numbers": "off"}
    found = [f for f in case.report(only_pieces="it takes 9 GB").findings if f.check == "loads"]
    assert [f.outcome for f in found] == ["pass", "fail", "pass"]


def test_a_chain_that_was_not_run_is_missed_by_require(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.model()
    run = Session.run

    def ends(session: Session, names: Sequence[str], feeds: Any, options: Any = None) -> Any:
        if [*names] == ["m2"]:
            raise folders.Ended
        return run(session, names, feeds, options)

    monkeypatch.setattr(Session, "run", ends)
    report = case.report(only_pieces="it takes 9 GB", require=("numbers",))
    assert any(found.check == "required" for found in report.findings)
    assert [n.output for n in report.numbers] == ["m1", "a1", "early"]
    told = "seed 0, set 0, pieces 2, 3 of 3: not checked: budget (300 s are used up)"
    assert told in [found.message for found in unchecked(report)]


def test_one_session_of_a_piece_is_open_at_a_time(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.model()
    case.settings = {"inputs": VerifyInputs(count=3)}
    events: list[str] = []
    open_, close = sessions.open_files, Session.close

    def opened(*args: Any, **how: Any) -> Session:
        events.append("open")
        return open_(*args, **how)

    def closed(session: Session) -> None:
        events.append("close")
        close(session)

    monkeypatch.setattr(sessions, "open_files", opened)
    monkeypatch.setattr(Session, "close", closed)
    case.report(only_pieces="it takes 9 GB")
    assert events == ["open", "close"] * 3, "once for all input sets, by itself and in the chain"


def test_values_that_the_source_calls_otherwise_are_named(case: Case) -> None:
    case.model()
    case.sources["m"] = in_pieces.source(case.tmp / "m.onnx", in_pieces.MLP.replace("m1", "other"))
    report = case.report()
    assert [found.message for found in unchecked(report)] == [
        "piece 1 of 3: its value 'm1' is not compared: the source has none of this name",
        "piece 2 of 3: not run by itself: the source has no 'm1' to give it",
    ]
    assert [n.output for n in rows(report, "pieces")] == ["a1", "early", "z"]
    assert [n.output for n in rows(report, "chain")] == ["early", "z"]
    assert not failed(report)


def test_a_quantized_value_at_a_cut_may_be_a_step_off(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.model(body=QDQ, cuts=(("q",),))
    run, step = Session.run, 1

    def off(session: Session, names: Sequence[str], feeds: Any, options: Any = None) -> Any:
        found = run(session, names, feeds, options)
        return [each + np.uint8(step) if each.dtype == np.uint8 else each for each in found]

    monkeypatch.setattr(Session, "run", off)
    report = case.report()
    (row,) = [n for n in rows(report, "pieces") if n.output == "q"]
    assert row.passed and row.comparison.max_abs == 1 and row.tolerance.max_rel == 0.05
    step = 9
    assert any("piece 1 of 2: output 'q': " in message for message in failed(case.report()))


def test_models_that_share_are_run_by_their_pieces(case: Case) -> None:
    case.model("a", "b", wrong={3: "w3"})
    binaries = sorted(path.name for path in case.folder.glob("*.bin"))
    assert binaries == [f"a_{piece}_reference.bin" for piece in (1, 2, 3)]
    case.changes |= {"sharing_groups": {"main": ("a", "b")}}
    report = case.report()
    assert all(n.passed for n in rows(report, "pieces", "a"))
    assert [n.output for n in rows(report, "pieces", "b") if not n.passed] == ["z"]
    assert [n.output for n in rows(report, "chain", "a")] == ["early", "z"]


def test_inputs_of_open_size_are_run(case: Case) -> None:
    """The source is in pieces at each of the sizes; the files have one."""
    body = in_pieces.MLP.replace("float[2,8]", "float[n,8]")
    case.sources["m"] = in_pieces.source(case.tmp / "m.onnx", body)
    fixed = in_pieces.source(case.tmp / "fixed.onnx")
    in_pieces.assemble(case.folder, {"m": fixed})
    report = case.report()
    assert not failed(report) and len(rows(report, "chain")) == 2


def test_the_float_reference_is_not_what_pieces_are_held_to(case: Case) -> None:
    case.model()
    other = in_pieces.source(case.tmp / "float.onnx", in_pieces.MLP.replace("Tanh", "Sigmoid"))
    reference = Reference(path=other, tolerance=Tolerance(max_rel=10, cosine_min=-1))
    source = ModelSource(name="m", path=case.sources["m"], reference=reference)
    group = folders.group(models=(source,), pieces=Pieces(count=3))
    report = folders.report(case.folder, policies=("numbers",), group=group)
    assert {n.right for n in report.numbers if n.sessions == "files"} == {
        "the source model",
        "its reference",
    }
    assert {n.right for n in report.numbers if n.sessions != "files"} == {"the source model"}
    assert not failed(report)
