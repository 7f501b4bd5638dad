"""Sources run in a worker: what it is told, and what stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from epctx.errors import ModelError
from epctx.manifest import ModelSource, VerifyInputs, VerifySettings
from epctx.worker.jobs import SourceJob, StageStarted
from epctx.worker.run_sources import run_sources
from tests.kit.building import mlp
from tests.kit.inline import Inline


def job(tmp_path: Path, *names: str, **inputs: Any) -> SourceJob:
    for name in names:
        onnx.save(mlp(), tmp_path / f"{name}.onnx")
    return SourceJob(
        sources=tuple(ModelSource(name=n, path=tmp_path / f"{n}.onnx") for n in names),
        settings=VerifySettings(inputs=VerifyInputs(**inputs)),
        folder=tmp_path / "kept",
    )


def test_each_is_announced_before_it_runs(tmp_path: Path) -> None:
    heard: list[str] = []

    def started(model: str) -> None:
        heard.append(model)
        assert not (tmp_path / "kept" / model).exists()

    assert run_sources(job(tmp_path, "a", "b", count=2), started) == {}
    assert heard == ["a", "b"]
    assert [len(list((tmp_path / "kept" / name).iterdir())) for name in "ab"] == [2, 2]


def test_a_source_that_is_not_there_is_the_models_error(tmp_path: Path) -> None:
    asked = job(tmp_path, "a")
    (tmp_path / "a.onnx").unlink()
    with pytest.raises(ModelError):
        run_sources(asked, lambda model: (tmp_path / "unreached").touch())


def test_a_worker_carries_it_out(tmp_path: Path) -> None:
    from epctx.worker.jobs import SourceResult

    stages: list[StageStarted] = []
    worker = Inline(tmp_path / "w", tmp_path / "log")
    result = worker.run(job(tmp_path, "a"), SourceResult, started=stages.append)
    assert result.unfed == {} and result.peak_memory > 0
    assert [(s.stage, s.model) for s in stages] == [("source", "a (source)")]
