"""The samples of a model: which files fit, and what is said of those that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from epctx.error_codes import Code
from epctx.errors import ManifestError, ModelError
from epctx.manifest import Calibration, ModelSource
from epctx.quantization import samples
from tests.kit import onnx_text

TWO = "g (float[1,3] x, int64[1] n) => (float[1,3] y) { c = Cast<to = 1>(n) y = Add(x, c) }"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(onnx_text.proto(TWO), path)
    return path


def sample(number: int, **changes: Any) -> dict[str, Any]:
    return {"x": np.full((1, 3), number, np.float32), "n": np.array([number]), **changes}


def write(folder: Path, *values: dict[str, Any]) -> tuple[Path, ...]:
    paths = []
    for number, each in enumerate(values):
        np.savez(folder / f"{number}.npz", **each)
        paths.append(folder / f"{number}.npz")
    return tuple(paths)


def read(
    model: Path, *files: Path, others: tuple[ModelSource, ...] = (), **settings: Any
) -> samples.Samples:
    return samples.of(model, "a", Calibration(files=files, **settings), others)


def test_one_after_the_other_in_the_manifests_order(model: Path, tmp_path: Path) -> None:
    files = write(tmp_path, *map(sample, range(4)))
    found = read(model, *reversed(files), count=3)
    assert len(found) == 3
    assert found.feeds(0)["n"] == [3]
    found.set_range(1, 9)
    given = [*iter(found.get_next, None)]
    assert [each["n"][0] for each in given if each is not None] == [2, 1]


def test_a_folder_of_onnx_test_data_is_one_sample(model: Path, tmp_path: Path) -> None:
    files = []
    for number in range(2):
        folder = tmp_path / f"test_data_set_{number}"
        folder.mkdir()
        for place, value in enumerate(sample(number).values()):
            path = folder / f"input_{place}.pb"
            path.write_bytes(numpy_helper.from_array(value).SerializeToString())
            files.append(path)
    assert len(read(model, *files)) == 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"z": np.zeros(1)}, 'it names "z", which is not an input of the model'),
        ({"x": np.zeros((3, 1), np.float32)}, "it has shape [3, 1] for input 'x'"),
        ({"x": np.zeros((1, 3))}, "it has float64 for input 'x', which is float32"),
        ({"x": np.array([[0, np.nan, 1]], np.float32)}, "its input 'x' is nan at [0, 1]"),
        ({"x": np.array([[0, 1, -np.inf]], np.float32)}, "its input 'x' is -inf at [0, 2]"),
    ],
)
def test_what_does_not_fit_is_told_with_its_file(
    changes: dict[str, Any], why: str, model: Path, tmp_path: Path
) -> None:
    files = write(tmp_path, sample(0), sample(1, **changes))
    with pytest.raises(ManifestError) as caught:
        read(model, *files)
    told = caught.value.failure
    assert told.what == "is not a sample for model a" and told.file == str(files[1])
    assert told.why is not None and why in told.why
    assert told.code is Code.CALIBRATION


def test_files_of_another_model_of_the_group_are_left_to_it(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    onnx.save(onnx_text.proto("g (float[3] other) => (float[3] y) { y = Neg(other) }"), other)
    others = (ModelSource(name="b", path=other),)
    its = {"other": np.zeros(3, np.float32)}
    files = write(tmp_path, its, sample(1), sample(2))
    assert len(read(model, *files, others=others)) == 2
    with pytest.raises(ManifestError, match="is not a sample for model a"):
        read(model, files[0], others=others)
    broken = sample(1, x=np.zeros((9, 9), np.float32))
    with pytest.raises(ManifestError, match="is not a sample for model a"):
        read(model, *write(tmp_path, broken, sample(1)), others=others)


def test_random_samples_are_the_same_each_time(model: Path) -> None:
    first, again = (read(model, random=True) for _ in range(2))
    assert len(first) == samples.RANDOM
    np.testing.assert_equal(first.feeds(0), again.feeds(0))
    first.set_range(1, 2)
    other = first.get_next()
    assert other is not None and not np.array_equal(other["x"], again.feeds(0)["x"])


def test_for_some_inputs_nothing_can_be_generated(tmp_path: Path) -> None:
    text = "g (string[1] x) => (string[1] y) { y = Identity(x) }"
    onnx.save(onnx_text.proto(text), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="no samples can be generated"):
        read(tmp_path / "m.onnx", random=True)
