"""Sources run in a worker: what it is told, and what stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from epctx.actions.action import StageStarted
from epctx.actions.run_source import RunSource, of_group
from epctx.errors import ModelError
from epctx.manifest import ModelGroup, ModelSource, Reference, VerifyInputs, VerifySettings
from tests.kit import folders
from tests.kit.building import mlp
from tests.kit.inline import Inline


def group(tmp_path: Path, *names: str, **inputs: Any) -> ModelGroup:
    for name in names:
        onnx.save(mlp(), tmp_path / f"{name}.onnx")
    return folders.group(
        models=tuple(ModelSource(name=n, path=tmp_path / f"{n}.onnx") for n in names),
        verify=VerifySettings(inputs=VerifyInputs(**inputs)),
    )


def test_each_is_announced_before_it_runs(tmp_path: Path) -> None:
    heard: list[tuple[str, int]] = []

    def started(stage: StageStarted) -> None:
        name = str(stage.model).removesuffix(" (source)")
        assert stage.stage == "source"
        heard.append((name, len(list((tmp_path / "kept").glob(f"{name}/*/output_0.pb")))))

    worker = Inline(tmp_path / "w", tmp_path / "log")
    job = list(of_group(group(tmp_path, "a", "b", count=2), tmp_path / "kept"))
    results = worker.run(job, started=started)
    assert [(each.ran, each.unfed) for each in results] == [(True, None)] * 6
    assert heard == [(name, count) for name in "ab" for count in range(3)]
    assert worker.peak_memory > 0


def test_a_source_that_is_not_there_is_the_models_error(tmp_path: Path) -> None:
    job = list(of_group(group(tmp_path, "a"), tmp_path / "kept"))
    (tmp_path / "a.onnx").unlink()
    with pytest.raises(ModelError):
        Inline(tmp_path / "w", tmp_path / "log").run(job, started=lambda stage: None)


def test_of_a_folder_what_is_in_it_is_run_and_then_its_references(tmp_path: Path) -> None:
    asked = group(tmp_path, "m", "n", files=(tmp_path / "a.npz", tmp_path / "b.npz"))
    reference = Reference(path=tmp_path / "n.onnx")
    asked = folders.group(
        models=tuple(
            ModelSource(name=each.name, path=each.path, reference=reference)
            for each in asked.models
        ),
        verify=asked.verify,
    )
    built = folders.write(tmp_path / "out")
    found = list(of_group(asked, tmp_path / "kept", built))
    assert [(each.place.name, each.reference, each.index) for each in found] == [
        *(("m", False, index) for index in range(3)),
        *(("m", True, index) for index in range(3)),
    ]
    assert {each.built for each in found} == {built / "m_ctx.onnx"}
    unbuilt = [(each.place.name, each.built) for each in of_group(asked, tmp_path / "kept")]
    assert unbuilt == [(name, None) for name in "mn" for _ in range(3)]


def test_paths_are_not_in_the_key_of_what_was_run(tmp_path: Path) -> None:
    asked = group(tmp_path, "m")
    (run, *_), (other, *_) = (of_group(asked, tmp_path / name) for name in ("a", "b"))
    fields = {n for n in RunSource.__struct_fields__ if n not in RunSource.beside}
    assert {n: getattr(run, n) for n in fields} == {n: getattr(other, n) for n in fields}
