"""Quantize actions, within a build and outside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from epctx.actions.quantize import QuantizeResult
from epctx.cache.digests import FreshDigests
from epctx.engine import ranges
from epctx.engine.actions import quantize
from epctx.engine.actions.base import files_in
from epctx.errors import CompileError, LockError, ManifestError, ModelError
from epctx.files.digest import of_bytes
from epctx.manifest import ModelGroup
from epctx.parsing import load
from epctx.worker.pool import Pool
from tests.kit.projects import Project, flip, ran
from tests.kit.reports import quantized

SAMPLES = {"calibration": {"files": ["calib/*.npz"]}}


@pytest.fixture
def one(project: Project) -> Project:
    """The project with model `a` alone, quantized by two samples."""
    project.document["models"] = {"a": {"path": "a.onnx"}}
    project.section("defaults").pop("verify")
    project.section("model_groups", "g").update(models=["a"], quantize=SAMPLES)
    (project.folder / "calib").mkdir()
    for number in range(2):
        sample(project, number)
    return project


def sample(project: Project, number: int, scale: float = 1.0) -> None:
    values = np.random.default_rng(number).standard_normal((1, 32)).astype(np.float32)
    np.savez(project.folder / "calib" / f"{number}.npz", x=values * np.float32(scale))


def quantizations(project: Project, **options: object) -> int:
    return [action for action, _ in ran(project.build(**options))].count("quantize")


def test_once_and_then_from_the_cache(one: Project) -> None:
    assert quantizations(one) == 1
    files, kept = one.files(), (one.folder / "m.ranges.json").read_bytes()
    assert quantizations(one) == 0
    for left in (one.folder / "dist" / "m", one.folder / "dist" / "m.build.json"):
        left.rename(left.with_name(f"old-{left.name}"))
    assert quantizations(one) == 0, "the folder is gone, the cache has it"
    assert one.files() == files
    assert quantizations(one, cache=False) == 1
    assert one.files() == files
    assert (one.folder / "m.ranges.json").read_bytes() == kept


def test_two_groups_of_one_model_share_it(one: Project) -> None:
    groups = one.section("model_groups")
    groups["h"] = {**one.section("model_groups", "g"), "node_name_prefix": "h_"}
    assert quantizations(one) == 1


def test_a_group_in_pieces_has_a_quantized_model_of_its_own(one: Project) -> None:
    """One job at a time: here all jobs run in one process, of which the tools change the state."""
    plain, groups = one.section("model_groups", "g"), one.section("model_groups")
    pieces = {"pieces": {"count": 2}}
    groups["h"] = {**plain, "node_name_prefix": "h_", "partition": pieces}
    assert quantizations(one, jobs=1) == 2
    assert len(json.loads((one.folder / "m.ranges.json").read_bytes())["calibrations"]) == 2
    assert quantizations(one, jobs=1) == 0


def test_other_samples_are_another_calibration(one: Project) -> None:
    one.build()
    before = json.loads((one.folder / "m.ranges.json").read_bytes())["calibrations"]
    sample(one, 1, scale=3)
    assert quantizations(one) == 1
    after = json.loads((one.folder / "m.ranges.json").read_bytes())["calibrations"]
    assert len(after) == 1 and before.keys().isdisjoint(after)


def test_a_lock_holds_the_ranges(one: Project) -> None:
    one.build()
    assert quantizations(one, locked=True, cache=False) == 1
    flip(one.folder / "calib" / "0.npz")
    with pytest.raises(LockError, match=r"calib/0\.npz"):
        one.build(locked=True)


def test_from_ranges_alone_the_locked_bytes_come_out(
    one: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.build()
    files = one.files()

    def never(*_: object) -> None:
        raise AssertionError("it is calibrated")

    monkeypatch.setattr("epctx.quantization.quantizer.Quantizer.calibrate", never)
    one.build(locked=True, cache=False)
    assert one.files() == files


def test_a_failure_is_told_of_each_group_and_tried_once(one: Project) -> None:
    groups = one.section("model_groups")
    groups["h"] = {**one.section("model_groups", "g"), "node_name_prefix": "h_"}
    for group in ("g", "h"):
        settings = {**SAMPLES, "exclude": {"nodes": ["*"]}}
        one.section("model_groups", group)["quantize"] = settings
    with pytest.raises(ModelError, match="has nothing that these settings can quantize"):
        one.build(keep_going=True, jobs=1)
    report = json.loads((one.folder / "dist" / "m.build.json").read_bytes())
    told = [group["failure"]["what"] for group in report["groups"]]
    assert told == ["has nothing that these settings can quantize"] * 2
    assert not (one.folder / "m.ranges.json").exists()


@pytest.mark.parametrize("lie", ["another content", "data that is not there"])
def test_a_worker_that_tells_of_other_files_is_not_believed(tmp_path: Path, lie: str) -> None:
    (tmp_path / "model.onnx").write_bytes(b"four")
    result = QuantizeResult(
        model=of_bytes(b"four"), locations=(), data=(), ranges=None, report=quantized()
    )
    files = files_in(tmp_path, [tmp_path])
    quantize._refuse_other(result, files, "a")
    if lie == "another content":
        result = replace(result, model=of_bytes(b""))
    else:
        result = replace(result, locations=("m.data",), data=(of_bytes(b""),))
    with pytest.raises(CompileError, match="differ from the written files"):
        quantize._refuse_other(result, files, "a")


def test_a_sample_that_is_gone_is_named(one: Project) -> None:
    one.section("model_groups", "g")["quantize"] = {
        "calibration": {"files": ["calib/0.npz", "calib/gone.npz"]}
    }
    (one.folder / "calib" / "gone.npz").symlink_to("nowhere.npz")
    with pytest.raises(ModelError, match=r"calib/gone\.npz"):
        one.build()


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
    with pytest.raises(ManifestError, match="its quantization ranges are unknown") as caught:
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
