"""Weights are fed to the kernels from the mapped file: no anonymous memory, one copy a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.building import build, mlp

MB = 1 << 20
WIDTH, LAYERS = 2048, 8
WEIGHTS = WIDTH * WIDTH * 4 * LAYERS

SCRIPT = f"""
import sys
import numpy as np
from pathlib import Path
from epctx.runtime import InferenceSession
import epctx.providers.reference.loading, epctx.providers.reference.provider

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

x = np.ones((1, {WIDTH}), np.float32)
small = InferenceSession(sys.argv[1])
small.run(None, {{"x": np.ones((1, 64), np.float32)}})
before = anonymous()
sessions = [InferenceSession(path, {{"ep.share_ep_contexts": "1"}}) for path in sys.argv[2:]]
for session in sessions:
    session.run(None, {{"x": x}})
print(anonymous() - before)
"""


@pytest.mark.needs("/proc", "needs Linux's /proc")
def test_weights_take_no_anonymous_memory(tmp_path: Path) -> None:
    small = build(tmp_path / "small", {"s": mlp(width=64)}) / "s_ctx.onnx"
    model = mlp(width=WIDTH, layers=LAYERS)
    out = build(tmp_path / "large", {"a": model, "b": model})
    paths = [small, out / "a_ctx.onnx", out / "b_ctx.onnx"]
    assert (out / "a_reference.bin").stat().st_size < 1.05 * WEIGHTS
    printed = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, paths)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert int(printed.stdout) < 24 * MB, f"{int(printed.stdout) / MB:.0f} MB of {WEIGHTS / MB:.0f}"
