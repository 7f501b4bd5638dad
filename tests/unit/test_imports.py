"""What a command does not need is not imported (design section 4)."""

import pkgutil
import subprocess
import sys

import pytest

from epctx import cli

HEAVY = ("numpy", "onnx", "onnx_ir", "onnxruntime")
"""Packages that only workers need at once; the rest stands at the top of modules."""


@pytest.mark.parametrize("module", ["epctx", "epctx.cli.app", "epctx.api", "epctx.engine.build"])
def test_a_command_that_needs_nothing_heavy_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert printed.stdout.split() == [], printed.stderr


def test_no_module_of_the_command_line_imports_onnx_before_it_must() -> None:
    names = [f"epctx.cli.{each.name}" for each in pkgutil.iter_modules(cli.__path__)]
    code = (
        f"import sys, {', '.join(names)}; "
        f"print(*[m for m in {(*HEAVY, 'pydantic', 'distributed')!r} if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert printed.stdout.split() == [], printed.stderr


def test_what_reads_the_header_of_a_model_needs_no_onnx_ir() -> None:
    """It imports sympy, which takes longer than all that `epctx init` does."""
    commands = "epctx.commands.init.command, epctx.commands.validate.models"
    code = (
        f"import sys, epctx.graph.serde.reader, {commands}; "
        "print(*[m for m in ('onnx', 'onnx_ir', 'sympy', 'onnxruntime') if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert printed.stdout.split() == ["onnx"], printed.stderr
