"""SARIF 2.1.0: what the standard requires of a log, rules with their pages, relative paths."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from epctx.cli import problems, sarif
from epctx.cli.app import app
from epctx.cli.problems import Problem
from epctx.commands import explain
from epctx.error_codes import Code
from epctx.verification.findings import Finding, FolderReport, VerifyReport

runner = CliRunner()
RUN_KEYS = {"tool", "results", "columnKind", "originalUriBaseIds"}


def run_of(content: bytes) -> dict[str, Any]:
    """The run of a log that has what sections 3.13 to 3.52 of the standard require."""
    log = json.loads(content)
    assert log["version"] == "2.1.0" and set(log) == {"$schema", "version", "runs"}
    (run,) = log["runs"]
    assert set(run) == RUN_KEYS
    rules = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"] == "epctx"
    assert len({rule["id"] for rule in rules}) == len(rules)
    for result in run["results"]:
        assert result["message"]["text"]
        assert result["level"] in ("error", "note")
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        for location in result["locations"]:
            artifact = location["physicalLocation"]["artifactLocation"]
            assert artifact.get("uriBaseId", "SRCROOT") in run["originalUriBaseIds"]
            assert all(n >= 1 for n in location["physicalLocation"].get("region", {}).values())
    found: dict[str, Any] = run
    return found


@pytest.mark.usefixtures("folder")
def test_validate_writes_what_is_wrong_at_its_line() -> None:
    result = runner.invoke(app, ["validate", "bad.yaml", "good.yaml", "--sarif", "out.sarif"])
    assert result.exit_code == 3
    run = run_of(Path("out.sarif").read_bytes())
    assert [each["ruleId"] for each in run["results"]] == [Code.UNKNOWN_KEY, Code.NO_SUCH_NAME]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "bad.yaml", "uriBaseId": "SRCROOT"}
    assert place["region"] == {"startLine": 2, "startColumn": 1}
    assert [rule["help"]["markdown"] for rule in run["tool"]["driver"]["rules"]] == [
        explain.text(Code.UNKNOWN_KEY),
        explain.text(Code.NO_SUCH_NAME),
    ]


@pytest.mark.usefixtures("folder")
def test_where_nothing_is_wrong_there_is_a_log_without_results() -> None:
    assert runner.invoke(app, ["validate", "good.yaml", "--sarif", "out.sarif"]).exit_code == 0
    assert run_of(Path("out.sarif").read_bytes())["results"] == []


@pytest.mark.parametrize(("strict", "levels"), [(False, ["error", "note"]), (True, ["error"] * 2)])
def test_verification_tells_what_failed_and_what_it_could_not_check(
    strict: bool, levels: list[str]
) -> None:
    findings = (
        Finding("integrity", "sums", "a b.onnx", "fail", "was changed", "copy it again"),
        Finding("conformance", "names", ".", "pass", "is so"),
        Finding("numbers", "outputs", "m.onnx", "not checkable", "no source", "name it"),
    )
    folder = FolderReport(folder="dist/m", findings=findings)
    report = VerifyReport(folders=(folder,), strict=strict)
    run = run_of(sarif.document(list(problems.of_verification(report))))
    assert [each["level"] for each in run["results"]] == levels
    assert [each["ruleId"] for each in run["results"]] == [Code.INTEGRITY, Code.NUMBERS]
    place = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "dist/m/a%20b.onnx", "uriBaseId": "SRCROOT"}


def test_paths_are_relative_to_the_checkout_or_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    inside, outside = tmp_path / "models" / "m.yaml", tmp_path.parent / "m.yaml"
    results = [
        Problem(code=Code.MANIFEST, what="is bad", file=str(path)) for path in (inside, outside)
    ]
    run = run_of(sarif.document([*results, Problem(code=Code.MANIFEST, what="is bad")]))
    one, other, none = (each["locations"] for each in run["results"])
    assert one[0]["physicalLocation"]["artifactLocation"]["uri"] == "models/m.yaml"
    assert other[0]["physicalLocation"]["artifactLocation"] == {"uri": outside.as_uri()}
    assert none == []


@pytest.mark.needs("POSIX", "names of files are text elsewhere")
def test_a_file_whose_name_is_no_text_is_named_all_the_same() -> None:
    told = Problem(code=Code.MANIFEST, what="is wrong", file="x/../b\udcff.yaml")
    (result,) = run_of(sarif.document([told]))["results"]
    place = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert place.endswith("b%FF.yaml") and ".." not in place
