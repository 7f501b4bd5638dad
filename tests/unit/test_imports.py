"""What a command does not need is not imported (design section 4)."""

import subprocess
import sys

import pytest

HEAVY = ("numpy", "onnx", "onnx_ir", "onnxruntime", "jsonschema", "rich.live", "psutil")


@pytest.mark.parametrize("module", ["epctx", "epctx.cli.app", "epctx.api", "epctx.engine.build"])
def test_a_command_that_needs_nothing_heavy_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert printed.stdout.split() == [], printed.stderr
