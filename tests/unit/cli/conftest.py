from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from epctx.cli import declared

GOOD = """\
schema_version: 1
name: m
models: {a: {path: a.onnx}}
model_groups: {g: {models: [a], execution_providers: []}}
"""


def answer(monkeypatch: pytest.MonkeyPatch, result: object) -> None:
    """Have each command get this result from its function of `epctx.api`."""
    bound = declared.bound

    def answered(command: Callable[..., object], values: dict[str, Any]) -> list[partial[object]]:
        bound(command, values)
        return [partial(lambda **named: result)]

    monkeypatch.setattr(declared, "bound", answered)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: a model, a manifest of it, and one that is wrong twice."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(GOOD, encoding="utf-8")
    bad = GOOD.replace("[a], ex", "[b], ex").replace("name: m", "nam: m")
    (tmp_path / "bad.yaml").write_text(bad, encoding="utf-8")
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch"])
    other = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value], [other])
    onnx.save(helper.make_model(graph), tmp_path / "a.onnx")
    return tmp_path
