"""README.md as a new user follows it: its console is run, and prints what it shows.

`make` and `pip install` are run as far as they can be inside a test, which `make test` is part of.

With EPCTX_UPDATE_GOLDEN=1 the manifest and the output that it shows are written anew.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from epctx.commands.init import example
from tests.kit.command_line import epctx

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
LINES = [
    line.removeprefix("$ ").partition("    #")[0].strip()
    for block in re.findall(r"^```console\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]
ACTIVATED = "python -m venv .venv && . .venv/bin/activate"
FIRST = "epctx init model.onnx --option soc_model=sc8380xp"
_VARYING = re.compile(r"in \d+\.\d s|\d\.\de-\d\d")
_UPDATE = bool(os.environ.get("EPCTX_UPDATE_GOLDEN"))


def block(kind: str, after: str) -> str:
    """The first block of a kind after some words."""
    found = re.search(
        rf"{re.escape(after)}.*?^```{kind}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE
    )
    assert found is not None, after
    return found[1]


def hold(kind: str, place: str, printed: str) -> None:
    shown = block(kind, place)
    if _UPDATE:
        before, after = (f"```{kind}\n{content}```" for content in (shown, printed))
        text = README.read_text(encoding="utf-8").replace(before, after)
        README.write_text(text, encoding="utf-8", newline="\n")
        return
    assert _VARYING.sub("…", shown) == _VARYING.sub("…", printed)


def installs(line: str, folder: Path) -> None:
    """What is installed has been, or this test would not run: pip finds it, and changes nothing."""
    *_, wanted = shlex.split(line)
    extra = wanted.partition("[")[2]
    target = f"{ROOT}[{extra}" if extra else str(ROOT)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps"]
    offline = ["--no-index", "--no-build-isolation", target]
    subprocess.run([*command, *offline], cwd=folder, check=True, timeout=300)


@pytest.mark.needs("module onnxruntime_qnn")
def test_from_a_model_to_a_context(tmp_path: Path) -> None:
    (example.write(tmp_path)).rename(tmp_path / "model.onnx")
    start = LINES.index(FIRST)
    ran = {}
    for line in LINES[start : start + 4]:
        program, *arguments = shlex.split(line)
        assert program == "epctx"
        ran[arguments[0]] = epctx(*arguments, cwd=tmp_path)
        assert ran[arguments[0]].returncode == 0, ran[arguments[0]].stderr
    manifest = (tmp_path / "epctx.yaml").read_text(encoding="utf-8")
    hold("yaml", "It writes `epctx.yaml`", manifest)
    hold("text", "`epctx build` says", ran["build"].stdout)
    assert "nodes: 1 on QNNExecutionProvider" in ran["run"].stdout
    assert "QNNExecutionProvider: simulated on x86: not the device's time" in ran["run"].stdout
    page = tmp_path / ran["report"].stdout.strip()
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    listed = re.findall(r"^    (\w\S*)", block("text", "dist/model.build.json"), re.MULTILINE)
    folder = tmp_path / "dist" / "model" / "default" / "main"
    assert sorted(listed) == sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("line", [line for line in LINES if "pip install" in line])
def test_what_is_installed_is_there(line: str, tmp_path: Path) -> None:
    installs(line, tmp_path)


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("make ")])
def test_what_is_made_is_a_target(line: str) -> None:
    """Neither is run: this test is part of one of them, and CI runs both in a fresh clone."""
    asked = subprocess.run(
        [*shlex.split(line), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "pytest" in asked.stdout or "epctx build" in asked.stdout


def test_a_checkout_builds_without_make(tmp_path: Path) -> None:
    """As on Windows, in the environment that is there."""
    start = LINES.index("python -m venv .venv")
    _, installed, models, build = LINES[start : start + 4]
    assert shlex.split(installed)[:4] == [".venv/bin/python", "-m", "pip", "install"]
    command = [sys.executable, *shlex.split(models)[1:], str(tmp_path / "models")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    _, verb, manifest = shlex.split(build)
    shutil.copy(ROOT / manifest, tmp_path / "m.yaml")
    ran = epctx(verb, "m.yaml", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_an_environment_is_made_and_used(tmp_path: Path) -> None:
    ran = subprocess.run(
        ["bash", "-c", f"{ACTIVATED} && python -c 'import sys; print(sys.prefix)'"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(ran.stdout.strip()) == tmp_path / ".venv"


def test_no_line_of_console_is_left() -> None:
    """Each is one that a test above carries out; a new one belongs to a test first."""
    start, venv = LINES.index(FIRST), LINES.index("python -m venv .venv")
    carried_out = [*LINES[start : start + 4], *LINES[venv : venv + 4], ACTIVATED]
    carried_out += [line for line in LINES if "pip install" in line or line.startswith("make ")]
    assert sorted(set(carried_out)) == sorted(set(LINES))
