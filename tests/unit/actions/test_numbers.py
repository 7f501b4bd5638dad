"""Sources run in a worker: what it is told, and what stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from epctx.actions.action import StageStarted
from epctx.actions.numbers import RunSources
from epctx.errors import ModelError
from epctx.manifest import ModelSource, VerifyInputs, VerifySettings
from tests.kit.building import mlp
from tests.kit.inline import Inline


def sources(tmp_path: Path, *names: str, **inputs: Any) -> RunSources:
    for name in names:
        onnx.save(mlp(), tmp_path / f"{name}.onnx")
    return RunSources(
        sources=tuple(ModelSource(name=n, path=tmp_path / f"{n}.onnx") for n in names),
        settings=VerifySettings(inputs=VerifyInputs(**inputs)),
        folder=tmp_path / "kept",
    )


def test_each_is_announced_before_it_runs(tmp_path: Path) -> None:
    heard: list[str | None] = []

    def started(stage: StageStarted) -> None:
        heard.append(stage.model)
        assert stage.stage == "source"
        assert not (tmp_path / "kept" / str(stage.model).partition(" ")[0]).exists()

    worker = Inline(tmp_path / "w", tmp_path / "log")
    (result,) = worker.run([sources(tmp_path, "a", "b", count=2)], started=started)
    assert result.unfed == {} and worker.peak_memory > 0
    assert heard == ["a (source)", "b (source)"]
    assert [len(list((tmp_path / "kept" / name).iterdir())) for name in "ab"] == [2, 2]


def test_a_source_that_is_not_there_is_the_models_error(tmp_path: Path) -> None:
    asked = sources(tmp_path, "a")
    (tmp_path / "a.onnx").unlink()
    with pytest.raises(ModelError):
        Inline(tmp_path / "w", tmp_path / "log").run([asked], started=lambda stage: None)
