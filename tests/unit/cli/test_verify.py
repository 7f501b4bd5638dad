from __future__ import annotations

from pathlib import Path

import pytest
from junitparser import JUnitXml
from typer.testing import CliRunner, Result

from epctx.cli.app import app
from epctx.providers.base import Outcome
from epctx.verification.findings import Finding, FolderReport, PolicyName, VerifyReport
from tests.unit.cli.conftest import answer


def finding(
    outcome: Outcome, subject: str = "m.onnx", message: str = "it is so", **changes: str
) -> Finding:
    given = {"check": "sums", "remedy": "do this" if outcome != "pass" else "", **changes}
    policy: PolicyName = "integrity"
    return Finding(policy=policy, subject=subject, outcome=outcome, message=message, **given)


def run(
    monkeypatch: pytest.MonkeyPatch, *findings: Finding, strict: bool = False, **options: str
) -> Result:
    folder = FolderReport(folder="dist/g", models=("m.onnx",), findings=findings)
    report = VerifyReport(folders=(folder,), strict=strict)
    answer(monkeypatch, report)
    return CliRunner().invoke(app, ["verify", ".", *options.values()])


def test_a_pass_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, finding("pass"), finding("pass"))
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "dist/g",
        "  integrity      ok             2 ok",
        "verified: 1 folder, 1 model, 2 checks passed",
    ]


def test_every_check_is_told_with_v(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, finding("pass"), finding("pass", "n.onnx"), verbose="-v")
    assert "  ok: m.onnx, n.onnx: it is so  [integrity/sums]" in result.stdout.splitlines()


def test_failures_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, finding("fail"), finding("pass"), finding("fail", "."))
    assert result.exit_code == 7
    assert result.stdout.splitlines()[1:] == [
        "  integrity      failed         1 ok, 2 failed",
        "  failed[E0701]: m.onnx, .: it is so  [integrity/sums]",
        "    -> do this",
        "NOT verified: 1 folder, 1 model, 1 check passed, 2 failed",
    ]


def test_what_cannot_be_checked_is_told_once_a_reason_of_all_folders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unknown = finding("not checkable", "m.onnx", "it is not here")
    folders = tuple(
        FolderReport(folder=f"dist/{name}", models=("m.onnx",), findings=(unknown,))
        for name in ("a", "b", "c")
    )
    report = VerifyReport(folders=folders, strict=False)
    answer(monkeypatch, report)
    result = CliRunner().invoke(app, ["verify", "."])
    told = [line for line in result.stdout.splitlines() if "it is not here" in line]
    places = "dist/a/m.onnx, dist/b/m.onnx and 1 more"
    assert told == [f"  not checkable: {places}: it is not here  [integrity/sums]"]
    every = CliRunner().invoke(app, ["verify", ".", "-v"]).stdout
    assert every.count("it is not here") == 3


def test_what_cannot_be_checked_fails_only_when_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = finding("not checkable")
    result = run(monkeypatch, finding("pass"), unknown)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == (
        "verified: 1 folder, 1 model, 1 check passed, 1 not checkable"
    )
    result = run(monkeypatch, finding("pass"), unknown, strict=True)
    assert result.exit_code == 7
    assert result.stdout.splitlines()[-1].endswith("1 not checkable (--strict)")


def test_brackets_and_colons_of_messages_are_printed_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = run(monkeypatch, finding("fail", message="[red]worst at [0, 3]: :smile: x"))
    assert "[red]worst at [0, 3]: :smile: x" in result.stdout


def test_what_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["verify", str(tmp_path / "gone")])
    assert result.exit_code == 2 and "does not exist" in result.stderr


def test_junit_is_written_whatever_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "verify.xml"
    result = run(monkeypatch, finding("fail"), a="--junit", b=str(file), c="-q")
    assert result.exit_code == 7
    assert JUnitXml.fromfile(str(file)).failures == 1
    (tmp_path / "v.xml").mkdir()
    result = run(monkeypatch, finding("pass"), a="--junit", b=str(tmp_path / "v.xml"))
    assert result.exit_code == 2 and "v.xml: is a folder" in result.stderr
