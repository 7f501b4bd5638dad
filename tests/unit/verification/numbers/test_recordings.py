from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from epctx.errors import StorageError
from epctx.verification.numbers import recordings
from tests.kit.building import Array

FEEDS: dict[str, Array] = {"x": np.arange(4, dtype=np.float32)}


def test_outputs_come_back_by_name_type_and_bits(tmp_path: Path) -> None:
    outputs: dict[str, Array] = {
        "logits": np.array([[1.5, np.nan]], np.float32),
        "low/precision": np.array([0.1], ml_dtypes.bfloat16),
        "ids": np.array(7, np.int64),
        "none": np.zeros((0, 3), np.float16),
    }
    recordings.write(tmp_path, "m", FEEDS, outputs)
    found = recordings.read(tmp_path, "m", FEEDS)
    assert found is not None and list(found) == list(outputs)
    for name, array in outputs.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


def test_other_inputs_or_another_model_have_nothing(tmp_path: Path) -> None:
    recordings.write(tmp_path, "m", FEEDS, {"y": np.zeros(1)})
    assert recordings.read(tmp_path, "n", FEEDS) is None
    assert recordings.read(tmp_path, "m", {"x": FEEDS["x"] + 1}) is None
    assert recordings.read(tmp_path / "gone", "m", FEEDS) is None


def test_why_nothing_is_recorded_is_kept(tmp_path: Path) -> None:
    recordings.refuse(tmp_path, "m", "the sessions do not fit together")
    assert recordings.refusal(tmp_path, "m") == "the sessions do not fit together"
    assert recordings.refusal(tmp_path, "n") is None
    assert recordings.read(tmp_path, "m", FEEDS) is None
    next(tmp_path.rglob("not_recorded.json")).write_bytes(b"\xff")
    with pytest.raises(StorageError, match="a recorded output is broken"):
        recordings.refusal(tmp_path, "m")


def test_a_broken_recording_is_an_error(tmp_path: Path) -> None:
    recordings.write(tmp_path, "m", FEEDS, {"y": np.zeros(1)})
    (file,) = tmp_path.rglob("output_0.pb")
    file.write_bytes(b"\xff\xff")
    with pytest.raises(StorageError, match="a recorded output is broken"):
        recordings.read(tmp_path, "m", FEEDS)


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"a file where a folder goes")
    with pytest.raises(StorageError, match="cannot be written"):
        recordings.refuse(tmp_path, "m", "why")
    with pytest.raises(StorageError, match="cannot be written"):
        recordings.write(tmp_path, "m", FEEDS, {"y": np.zeros(1)})


def test_sizes_are_kept_and_broken_ones_are_told(tmp_path: Path) -> None:
    assert recordings.read_sizes(tmp_path, "m") is None
    recordings.write_sizes(tmp_path, "m", ({"batch": 2}, {"batch": 3}))
    assert recordings.read_sizes(tmp_path, "m") == ({"batch": 2}, {"batch": 3})
    (tmp_path / "m" / "sizes.json").write_text("{}", encoding="utf-8")
    with pytest.raises(StorageError, match="broken"):
        recordings.read_sizes(tmp_path, "m")
