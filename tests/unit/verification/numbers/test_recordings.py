from __future__ import annotations

from pathlib import Path
from typing import Any

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


def test_outputs_are_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        recordings.write(tmp_path, "m", FEEDS, Ending({"y": np.zeros(1), "z": np.zeros(1)}))
    assert recordings.read(tmp_path, "m", FEEDS) is None and not recordings.has(
        tmp_path, "m", FEEDS
    )
    for value in (1.0, 2.0):
        recordings.write(tmp_path, "m", FEEDS, {"y": np.full(1, value)})
        assert recordings.read(tmp_path, "m", FEEDS) == {"y": np.full(1, value)}


class Ending(dict[str, Array]):
    """Its process ends while the second of two is written."""

    def items(self) -> Any:
        yield from list(super().items())[:1]
        raise KeyboardInterrupt


def test_what_is_known_of_a_model_is_kept_by_name(tmp_path: Path) -> None:
    assert recordings.kept(tmp_path, "m", "sizes", tuple[dict[str, int], ...]) is None
    for sizes in (({"n": 1},), ({"n": 2}, {"n": 3})):
        recordings.keep(tmp_path, "m", "sizes", sizes)
        assert recordings.kept(tmp_path, "m", "sizes", tuple[dict[str, int], ...]) == sizes
    assert recordings.kept(tmp_path, "n", "sizes", tuple[dict[str, int], ...]) is None
    with pytest.raises(StorageError, match="a recorded output is broken"):
        recordings.kept(tmp_path, "m", "sizes", str)


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


def test_a_folder_without_outputs_is_none_of_these_inputs(tmp_path: Path) -> None:
    """As one that was to be copied out of a cache which had lost them."""
    (tmp_path / "m" / recordings.name_of(FEEDS)).mkdir(parents=True)
    assert not recordings.has(tmp_path, "m", FEEDS)
    assert recordings.read(tmp_path, "m", FEEDS) is None
