"""`epctx bisect`: what it prints of each end, and the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from epctx.cli.app import app
from epctx.commands.bisect.result import Bisection
from tests.kit.bisections import FOUND
from tests.unit.cli.conftest import answer


def run(found: Bisection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *options: str) -> Result:
    answer(monkeypatch, (found, Path("dist/page.html")))
    manifest = tmp_path / "m.yaml"
    manifest.touch()
    return CliRunner().invoke(app, ["bisect", str(manifest), "g", "a", *options])


def test_what_was_found_is_told_with_the_lines_to_paste(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = run(FOUND, monkeypatch, tmp_path)
    assert ran.exit_code == 7
    for words in (
        "first wrong node: '<n2>' (MatMul); all its inputs are right",
        "cause: fp16 overflow: too large",
        "tried: a node: its numbers pass",
        "model_groups:\n  g:\n    partition:\n      exclude:\n        nodes:\n          - n2\n",
        "page: dist/page.html",
    ):
        assert words in ran.stdout, words


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ("budget", "the budget is used up: raise --budget"),
        ("vanished", "the fault disappears as soon as values are read"),
    ],
)
def test_a_search_without_an_end_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ended: str, words: str
) -> None:
    found = replace(FOUND, ended=ended, cause=None, tried=(), suspects=5)
    ran = run(found, monkeypatch, tmp_path)
    assert (
        ran.exit_code == 7
        and words in ran.stdout
        and "first known wrong node: '<n2>' (MatMul); 5 nodes before it were not" in ran.stdout
    )


def test_a_model_that_cannot_be_run_has_no_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    crashed = replace(FOUND, ended="crashed", readings=(), first=(), nodes=31, builds=9)
    ran = run(crashed, monkeypatch, tmp_path)
    assert ran.exit_code == 7
    assert ran.stdout.startswith(
        "31 nodes, 9 builds, 0 s\nthe model does not compile, or cannot be run"
    )
    assert "first wrong node" not in ran.stdout and "- n2" in ran.stdout


def test_nothing_wrong_is_said_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = replace(FOUND, ended="nothing wrong", readings=(), cause=None, tried=())
    ran = run(found, monkeypatch, tmp_path)
    assert ran.exit_code == 0 and "nothing is wrong" in ran.stdout


def test_a_budget_is_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(FOUND, monkeypatch, tmp_path, "--budget", "10m").exit_code == 7
    wrong = run(FOUND, monkeypatch, tmp_path, "--budget", "soon")
    assert wrong.exit_code == 2 and "write it like 90s" in wrong.stderr
