"""Files replaced whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from epctx.errors import StorageError
from epctx.files import atomic


def test_a_small_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json"
    atomic.replace(path, b"one")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        atomic.replace(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_whatever_ends_the_writing_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    with pytest.raises(KeyboardInterrupt), atomic.replacing(path) as stream:
        stream.write(b"tw")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    path = tmp_path / "file"
    path.symlink_to(outside)
    atomic.replace(path, b"two")
    assert path.read_bytes() == b"two" and not path.is_symlink()
    assert outside.read_bytes() == b"precious"
    assert {entry.name for entry in tmp_path.iterdir()} == {"file", "outside"}


def test_a_folder_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(StorageError, match="file: cannot be written"):
        atomic.replace(tmp_path / "file", b"")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.needs("POSIX", "Windows has no such locks, nor needs them")
def test_what_a_killed_process_left_is_gone_after_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "file"
    abandoned = tmp_path / f".file.{'0a' * 8}.tmp"
    others = {".file.x.tmp", f".other.{'0a' * 8}.tmp", "file"}
    for name in (*others, abandoned.name):
        (tmp_path / name).touch()
    with atomic.replacing(path) as stream:
        stream.write(b"one")
        (writing,) = set(tmp_path.iterdir()) - {abandoned, *(tmp_path / name for name in others)}
        atomic.replace(path, b"two")  # by somebody else, meanwhile
        assert writing.is_file() and not abandoned.exists()
    assert path.read_bytes() == b"one"
    assert {entry.name for entry in tmp_path.iterdir()} == others
