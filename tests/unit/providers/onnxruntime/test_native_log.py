from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from epctx.providers.onnxruntime.native_log import Mark
print("[E:onnxruntime:, before.cc:1 F] before", file=sys.stderr, flush=True)
mark = Mark.here()
for line in (
    "\\x1b[1;31m2026-11-20 10:58:23 [E:onnxruntime:, qnn.cc:2290 GetCapabilityImpl] bad SoC\\x1b[m",
    "2026-11-20 10:58:23 [W:onnxruntime:, qnn.cc:1 F] a warning",
    "[E:onnxruntime:Default, ov.cc:1 F] JSON parsing error",
    "[E:onnxruntime:, qnn.cc:2290 GetCapabilityImpl] bad SoC",
):
    print(line, file=sys.stderr, flush=True)
print(mark.errors())
"""


def test_errors_since_the_mark_are_read_back(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=log, check=True
        )
    assert done.stdout.decode().strip() == "['bad SoC', 'JSON parsing error']"


def test_a_pipe_cannot_be_read_back() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[]"
