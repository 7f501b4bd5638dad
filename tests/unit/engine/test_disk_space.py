"""Whether there is room: told where much is needed, refused where it cannot be enough."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from epctx.engine.actions.compile import TOLD, DiskSpace
from epctx.errors import StorageError

FREE = 10 * TOLD


@pytest.fixture(autouse=True)
def _disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of a known size: no test can have one."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=FREE))


@pytest.mark.parametrize(
    ("stores", "copied", "words"),
    [
        (0, False, "1.00 GB to 2.00 GB"),
        (1, False, "2.00 GB to 4.00 GB"),
        (0, True, "3.00 GB to 4.00 GB"),  # what is compiled, and what comes of it
        (1, True, "3.00 GB to 4.00 GB"),  # the copies are gone before the cache is written
    ],
)
def test_much_is_told_once_a_disk(tmp_path: Path, stores: int, copied: bool, words: str) -> None:
    told: list[str] = []
    space = DiskSpace(tmp_path, [tmp_path / "cache"] * stores)
    with space.promised(2 * TOLD, told.append, copied=copied):
        assert told == [f"{words} of disk are needed, 10.00 GB are free in {tmp_path}"]


def test_what_cannot_be_enough_is_refused_with_what_others_were_promised(tmp_path: Path) -> None:
    space = DiskSpace(tmp_path)
    with space.promised(6 * TOLD, lambda words: None):
        second = space.promised(9 * TOLD, lambda words: None)
        with pytest.raises(StorageError, match=r"4\.50 GB to 9\.00 GB .* 4\.00 GB are free"):
            second.__enter__()
    with space.promised(9 * TOLD, lambda words: None):
        pass
