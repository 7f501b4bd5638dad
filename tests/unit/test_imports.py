"""Imports run one way, and what a command does not need is not imported (design section 4)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import epctx

ROOT = Path(epctx.__file__).parent

LAYERS = (
    {"_version", "errors", "limits", "digest", "suggest", "codec", "sizes", "listing"},
    {"manifest", "outputs"},
    {"findings"},
    {"graph", "providers", "runtime", "cache"},
    {"document", "schemas", "rules", "layers", "parsing", "starter"},
    {"keys", "verification", "unchanged"},
    {"lock", "policies", "inspection", "junit", "trying"},
    {"releases"},
    {"stages"},
    {"model_report", "planning", "publish", "events"},
    {"build_report"},
    {"generated_numbers", "worker"},
    {"diagnosis", "probing", "packages"},
    {"runner", "group_folders", "verifying", "preview", "inspecting", "diagnosing", "reporting"},
    {"file_comparison", "reproduction", "comparing"},
    {"verbs", "generation", "running", "packaging"},
    {"cli"},
)
"""From the ground up: a module imports from its own layer and those before it."""


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


def layer(name: str) -> int:
    found = [i for i, names in enumerate(LAYERS) if name in names]
    assert found, f"{name} is in no layer: give it one in LAYERS"
    return found[0]


def imported(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if node.module == "epctx":
                names.update(alias.name for alias in node.names)
            elif node.module.startswith("epctx."):
                names.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            names.update(a.name.split(".")[1] for a in node.names if a.name.startswith("epctx."))
    return names - {"__version__"}


SOURCES = [p for p in ROOT.rglob("*.py") if p.name not in ("__init__.py", "__main__.py")]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_nothing_imports_upward(path: Path) -> None:
    own = layer(module_of(path))
    upward = {
        name for name in imported(ast.parse(path.read_text(encoding="utf-8"))) if layer(name) > own
    }
    assert not upward


HEAVY = ("numpy", "onnx", "onnx_ir", "onnxruntime", "jsonschema", "rich.live", "psutil")


@pytest.mark.parametrize("module", ["epctx", "epctx.cli", "epctx.verbs", "epctx.runner"])
def test_a_command_that_needs_nothing_heavy_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert printed.stdout.split() == [], printed.stderr
