"""README.md as a new user follows it: its console is run, and prints what it shows.

`make` and `pip install` are run as far as they can be inside a test, which `make test` is part of.

With EPCTX_UPDATE_GOLDEN=1 the output that it shows is written anew.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.kit import pages
from tests.kit.command_line import epctx

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
LINES = pages.lines(TEXT)
START = next(place for place, line in enumerate(LINES) if line.startswith("epctx init --example"))
_VARYING = re.compile(r"in \d+\.\d s|\d\.\de-\d\d")


def hold(printed: str) -> None:
    """Compare the output of the example with what a command printed."""
    (shown,) = re.findall(r"^```text\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    if os.environ.get("EPCTX_UPDATE_GOLDEN"):
        README.write_text(TEXT.replace(shown, printed), encoding="utf-8", newline="\n")
    else:
        assert _VARYING.sub("…", shown) == _VARYING.sub("…", printed)


@pytest.mark.needs("module onnxruntime_qnn")
def test_the_example(tmp_path: Path) -> None:
    ran = {}
    for line in LINES[START : START + 4]:
        program, *arguments = shlex.split(line)
        assert program == "epctx"
        ran[arguments[0]] = epctx(*arguments, cwd=tmp_path)
        assert ran[arguments[0]].returncode == 0, ran[arguments[0]].stderr
    hold(ran["build"].stdout)
    assert "nodes: 1 on QNNExecutionProvider" in ran["run"].stdout
    assert "QNNExecutionProvider: simulated on x86: not the device's time" in ran["run"].stdout
    page = tmp_path / ran["report"].stdout.strip()
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    again = epctx("build", cwd=tmp_path)
    assert "nothing to do" in again.stdout
    listed = (ROOT / "docs" / "reference" / "outputs.md").read_text(encoding="utf-8")
    names = re.findall(r"^    (\w\S*)", listed, re.MULTILINE)
    folder = tmp_path / "dist" / "digits" / "default" / "main"
    assert sorted(names) == sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("line", [line for line in LINES if "pip install" in line])
def test_what_is_installed_is_there(line: str, tmp_path: Path) -> None:
    pages.install(line, tmp_path)


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("make ")])
def test_what_is_made_is_a_target(line: str) -> None:
    """Neither is run: this test is part of one of them, and CI runs both in a fresh clone."""
    asked = subprocess.run(
        [*shlex.split(line), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "pytest" in asked.stdout or "epctx build" in asked.stdout


def test_no_line_of_console_is_left() -> None:
    """Each is one that a test above carries out; a new one belongs to a test first."""
    carried_out = [*LINES[START : START + 4]]
    carried_out += [line for line in LINES if "pip install" in line or line.startswith("make ")]
    assert sorted(set(carried_out)) == sorted(set(LINES))
