"""What a group was built from, made again to verify it: of the same ranges, the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from epctx.cache.digests import FreshDigests
from epctx.engine import ranges
from epctx.engine.actions import quantize
from epctx.errors import ManifestError
from epctx.manifest import ModelGroup
from epctx.parsing import load
from epctx.worker.pool import Pool
from tests.kit.projects import Project


@pytest.fixture
def built(project: Project) -> Project:
    """The project, quantized: model `a` by random samples."""
    project.document["models"] = {"a": {"path": "a.onnx"}}
    project.section("model_groups", "g").update(
        models=["a"], quantize={"calibration": {"random": True, "count": 2}}
    )
    project.build()
    return project


def again(project: Project, folder: Path, *, calibrate: bool = False) -> ModelGroup:
    manifest = load.load(project.manifest)
    pool = Pool(work=folder / "work", logs=folder / "logs")
    with pool.lease(None) as lease:
        return quantize.again(
            manifest.targets[0].groups[0],
            ranges.of(manifest),
            FreshDigests(),
            folder / "q",
            lease,
            calibrate=calibrate,
        )


def test_it_is_made_of_the_known_ranges(built: Project, tmp_path: Path) -> None:
    (model,) = again(built, tmp_path / "v").models
    assert model.name == "a" and model.path.is_file()
    assert model.reference is not None and model.reference.of_source
    assert model.reference.path == built.folder / "a.onnx"
    (other,) = again(built, tmp_path / "w").models
    assert model.path.read_bytes() == other.path.read_bytes()


def test_without_ranges_nobody_knows_what_was_built(built: Project, tmp_path: Path) -> None:
    ranges.place(built.manifest).unlink()
    with pytest.raises(ManifestError, match="nothing tells the ranges") as caught:
        again(built, tmp_path / "v")
    assert caught.value.failure.file == str(built.folder / "m.ranges.json")


def test_what_was_not_built_is_calibrated_where_that_is_asked_for(
    built: Project, tmp_path: Path
) -> None:
    (known,) = again(built, tmp_path / "v").models
    ranges.place(built.manifest).unlink()
    (found,) = again(built, tmp_path / "w", calibrate=True).models
    assert found.path.read_bytes() == known.path.read_bytes()
    assert not ranges.place(built.manifest).exists()
