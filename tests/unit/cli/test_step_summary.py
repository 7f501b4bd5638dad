"""The tables on the page of a GitHub run: appended, escaped, bounded."""

from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace

from epctx.cli import step_summary
from epctx.error_codes import Code
from epctx.verification.findings import Finding, FolderReport, VerifyReport
from tests.kit.reports import report as made

HOSTILE = "a|b`c`\n::error::[x](javascript:y) <img src=x> **b**"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "summary.md"
    path.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    return path


def html(page: Path) -> str:
    """As GitHub makes it: GFM's tables."""
    made: str = MarkdownIt("gfm-like", {"linkify": False}).render(page.read_text(encoding="utf-8"))
    return made


def test_a_build_is_a_table_with_what_failed(page: Path) -> None:
    step_summary.build(made())
    shown = html(page)
    assert shown.startswith("<p>before") and shown.count("<table>") == 2
    assert f"<td>{Code.CRASHED}</td>" in shown
    assert "<td>crashed: a bug</td>" in shown and "<td>report it</td>" in shown


def test_a_verification_is_a_row_a_folder(page: Path) -> None:
    bad = Finding("integrity", "sums", "m.onnx", "fail", HOSTILE, "copy it again")
    good = Finding("conformance", "names", ".", "pass", "is so")
    report = VerifyReport(folders=(FolderReport(folder="dist/m", findings=(bad, good)),))
    step_summary.verify(report)
    shown = html(page)
    assert "<td>1 fail</td>" in shown and "<td>1 pass</td>" in shown and "E0701" in shown
    assert "numbers" not in shown  # nobody looked


def test_numbers_that_were_not_run_are_told(page: Path) -> None:
    spent = Finding("numbers", "outputs", "m.onnx", "not checkable", "not checked: budget (5 s)")
    folder = FolderReport(folder="dist/m", models=("m.onnx",), findings=(spent,))
    group = replace(made().groups[0], verify=folder)
    step_summary.build(replace(made(), groups=(group,)))
    assert f"{group.group}@{group.target}: numbers not run: budget (5 s)" in html(page)
    numbers = tuple(n for each in made().groups if each.verify for n in each.verify.numbers)
    step_summary.verify(VerifyReport(folders=(folder, replace(folder, numbers=numbers))))
    assert numbers and "verified on generated inputs, numbers not all run" in html(page)
    step_summary.verify(VerifyReport(folders=(folder,)))
    assert "verified, numbers not run" in html(page)


def test_nothing_in_a_name_is_a_mark(page: Path) -> None:
    report = made()
    step_summary.build(replace(report, name=HOSTILE))
    shown = html(page)
    assert "<img" not in shown and "<a " not in shown and "<strong>" not in shown
    assert "<h3>a|b`c` ::error::[x](javascript:y) &lt;img src=x&gt; **b**</h3>" in shown


def test_it_is_bounded(page: Path) -> None:
    report = made()
    groups = tuple(replace(report.groups[0], group=f"g{n}" * 400) for n in range(2000))
    step_summary.build(replace(report, groups=groups))
    assert page.stat().st_size < 1 << 20
    assert "and 1800 more" in page.read_text(encoding="utf-8")


def test_nowhere_else_is_anything_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert not step_summary.wanted()
    step_summary.build(made())


def test_a_summary_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no" / "page.md"))
    step_summary.build(made())
    assert capsys.readouterr().err.startswith("warning: GITHUB_STEP_SUMMARY: ")
