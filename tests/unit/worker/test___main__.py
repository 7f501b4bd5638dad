"""What a worker's process does not import before it is used."""

from __future__ import annotations

import subprocess
import sys

BEGUN = """\
import sys
from epctx.worker import __main__ as worker
sys.meta_path.insert(0, worker._Seldom)
from epctx.worker import listener
from epctx.stages import optimize
print("onnx_ir" in sys.modules, "sympy.core" in sys.modules)
import onnx_ir as ir
print((ir.SymbolicDim("n") * 2 + 1).evaluate({"n": 4}), "sympy.core" in sys.modules)
"""


def test_sympy_is_imported_by_who_uses_it() -> None:
    run = subprocess.run([sys.executable, "-c", BEGUN], capture_output=True, text=True)
    assert (run.stdout.splitlines(), run.stderr) == (["True False", "9 True"], "")
