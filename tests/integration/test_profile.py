"""`epctx build --profile`: every 10 ms of a build's processes is told."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.kit import building, command_line

UNTOLD = 0.010
"""Seconds that may be missing between two things that a process did."""


@pytest.mark.needs_device("QNNExecutionProvider")
def test_all_of_a_build_is_told(tmp_path: Path) -> None:
    onnx.save(building.mlp(), tmp_path / "m.onnx")
    (tmp_path / "m.yaml").write_text(
        "schema_version: 1\nname: m\nmodels: {m: {path: m.onnx}}\n"
        "execution_providers: {npu: {provider: QNNExecutionProvider}}\n"
        "model_groups: {g: {models: [m], execution_providers: [npu]}}\n",
        encoding="utf-8",
    )
    ran = command_line.epctx("build", "m.yaml", "--no-verify", "--profile", "p.json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    events = json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))["traceEvents"]
    names = {each["pid"]: each["args"]["name"] for each in events if each["ph"] == "M"}
    assert set(names.values()) == {"epctx", "worker"}
    functions = {each["name"] for each in events}
    assert "interpreter" in functions
    assert any(name.endswith("stages/compile.py:run") for name in functions)
    for pid, name in names.items():
        (main,) = (each["tid"] for each in events if each["pid"] == pid and each["ph"] == "M")
        spans = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (pid, main)]
        end = min(span["ts"] for span in spans)
        for span in sorted(spans, key=lambda span: span["ts"]):
            assert span["ts"] - end < UNTOLD * 1e6, (name, span)
            end = max(end, span["ts"] + span["dur"])
        assert f"{name}: " in ran.stderr
    assert "p.json; open it in https://ui.perfetto.dev" in ran.stderr
