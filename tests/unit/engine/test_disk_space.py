"""Whether there is room: told where much is needed, refused where it cannot be enough."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from epctx.engine.disk_space import TOLD, DiskSpace
from epctx.errors import StorageError

FREE = 10 * TOLD


@pytest.fixture(autouse=True)
def _disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of a known size: no test can have one."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=FREE))


def test_little_is_not_told(tmp_path: Path) -> None:
    told: list[str] = []
    with DiskSpace([tmp_path / "not" / "there"]).promised(TOLD - 1, told.append):
        assert told == []


def test_much_is_told_for_all_folders_of_a_disk_together(tmp_path: Path) -> None:
    told: list[str] = []
    with DiskSpace([tmp_path, tmp_path / "cache"]).promised(2 * TOLD, told.append):
        assert "about 4.00 GB of disk are needed, 10.00 GB are free" in told[0]


def test_what_cannot_be_enough_is_refused_with_what_others_were_promised(tmp_path: Path) -> None:
    space = DiskSpace([tmp_path])
    with space.promised(6 * TOLD, lambda words: None):
        second = space.promised(9 * TOLD, lambda words: None)
        with pytest.raises(StorageError, match=r"about 9\.00 GB .* needed, 4\.00 GB are free"):
            second.__enter__()
    with space.promised(9 * TOLD, lambda words: None):
        pass
