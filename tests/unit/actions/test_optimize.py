"""A model optimized by a worker, with all of onnx's inference or with less."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from msgspec.structs import replace

from epctx.actions.optimize import Optimize
from epctx.files import digest
from epctx.graph.native import REACHES, Reach
from epctx.manifest import ModelSource, OptimizeSettings
from tests.kit.building import mlp
from tests.kit.inline import Inline


@pytest.mark.parametrize("reach", REACHES)
def test_a_model_is_written_with_what_was_read(tmp_path: Path, reach: Reach) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(mlp(), path)
    stages: list[str] = []
    action = replace(
        Optimize.of(ModelSource(name="m", path=path), OptimizeSettings(), tmp_path / "o"),
        reach=reach,
    )
    worker = Inline(tmp_path / "w", tmp_path / "log")
    (result,) = worker.run([action], started=lambda stage: stages.append(stage.stage))
    assert stages == ["load", "optimize"]
    (read,) = result.sources
    assert (read.location, read.digest) == ("m.onnx", digest.of_file(path))
    assert sorted(p.name for p in action.folder.iterdir()) == [
        "graph.onnx",
        "places.json",
        "record.json",
    ]
    assert [note.split(": ")[1] for note in result.notes] == {
        "data": [],
        "types": ["shapes that follow from values are not known"],
        "nothing": ["only the shapes that it declares are known"],
    }[reach]
