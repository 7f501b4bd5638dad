"""The import contracts of .importlinter fail for what they are there to refuse."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import epctx

PACKAGE = Path(epctx.__file__).parent
CONTRACTS = Path(__file__).parents[2] / ".importlinter"

BREACHES = {
    "an upward import": (
        "files/digest.py",
        "from epctx.graph import model",
        "Imports run one way",
    ),
    "an upward import for types alone": (
        "stages/compile.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from epctx.worker import jobs",
        "Imports run one way",
    ),
    "an upward import in a face": (
        "graph/__init__.py",
        "from epctx.stages import load",
        "Imports run one way",
    ),
    "a circle": (
        "cache/action.py",
        "from epctx.cache import store",
        "No folder has a circle among its children",
    ),
    "graph imports the manifest": (
        "graph/model.py",
        "from epctx import manifest",
        "graph is pure ONNX",
    ),
    "the command line does the work": (
        "cli/run.py",
        "from epctx.graph import model",
        "The command line does not do the work",
    ),
    "a room that no layer has": (
        "utils/__init__.py",
        "",
        "Imports run one way",
    ),
}


def contracts(package: Path) -> subprocess.CompletedProcess[str]:
    """What the contracts say of a package in a folder of its own."""
    command = [
        *(sys.executable, "-c"),
        "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()",
        *("--no-cache", "--config", str(CONTRACTS)),
    ]
    return subprocess.run(
        command,
        cwd=package.parent,
        env=os.environ | {"PYTHONPATH": str(package.parent), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    ignore = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(PACKAGE, tmp_path / "epctx", ignore=ignore))


@pytest.mark.parametrize("breach", BREACHES)
def test_a_contract_fails_for(breach: str, copied: Path) -> None:
    name, code, contract = BREACHES[breach]
    module = copied / name
    module.parent.mkdir(exist_ok=True)
    text = module.read_text(encoding="utf-8") if module.exists() else ""
    module.write_text(f"{text}\n{code}\n", encoding="utf-8")
    done = contracts(copied)
    assert done.returncode == 1, done.stdout
    assert f"{contract} BROKEN" in done.stdout


def test_the_contracts_hold(copied: Path) -> None:
    done = contracts(copied)
    assert done.returncode == 0, done.stdout
