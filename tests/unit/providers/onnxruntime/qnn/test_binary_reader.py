"""The process that reads a context binary: small, and clear about what it was given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from epctx.providers.onnxruntime.qnn import binary_reader


def ended(library: Path, binary: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", binary_reader.__name__, str(library)]
    return subprocess.run(command, input=binary, capture_output=True, text=True)


def test_a_library_that_is_none_is_another_end_than_a_binary_that_is_none(tmp_path: Path) -> None:
    missing = ended(tmp_path / "libQnnSystem.so", __file__)
    assert (missing.returncode, missing.stdout) == (binary_reader.MISSING, "")
    assert "libQnnSystem.so" in missing.stderr


def test_it_imports_nothing_that_takes_its_time() -> None:
    code = f"import sys, {binary_reader.__name__}; print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert printed.returncode == 0
    heavy = {"typing_extensions", "msgspec", "numpy", "onnx", "onnxruntime", "pathlib"}
    assert not heavy & set(printed.stdout.split())
