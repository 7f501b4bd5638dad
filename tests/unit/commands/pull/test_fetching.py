"""The hidden folder of a pull. What comes into it: tests/faults/test_registry.py."""

import stat
from pathlib import Path

import pytest

from epctx.commands import pull
from epctx.errors import StorageError
from epctx.oci.artifact import Damaged
from epctx.transfer.attempts import StoreError


def test_two_do_not_pull_into_one_folder(tmp_path: Path) -> None:
    target = tmp_path / "got"
    with (
        pull.working(target),
        pytest.raises(StorageError, match="another command"),
        pull.working(target),
    ):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [StoreError("is slow"), KeyboardInterrupt()])
def test_it_stays_when_the_rest_may_come_another_time(error: BaseException, tmp_path: Path) -> None:
    with pytest.raises(type(error)), pull.working(tmp_path / "got") as work:
        (work / "half").write_bytes(b"half")
        raise error
    with pull.working(tmp_path / "got") as work:
        assert (work / "half").read_bytes() == b"half"


@pytest.mark.parametrize(
    "error",
    [
        Damaged("is not what its digest says"),
        StoreError("wants another password", lasting=True),
        StorageError("is full", remedy="free some space"),
    ],
)
def test_nothing_stays_when_the_pull_fails_for_good(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(type(error)), pull.working(tmp_path / "got") as work:
        (work / "half").write_bytes(b"half")
        raise error
    assert not list(tmp_path.iterdir())


@pytest.mark.needs("POSIX", "modes")
def test_its_folder_is_the_users_alone(tmp_path: Path) -> None:
    with pull.working(tmp_path / "got") as work:
        assert stat.S_IMODE(work.stat().st_mode) == 0o700


@pytest.mark.needs("links", "one is in the way")
def test_a_link_in_its_place_is_not_adopted(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / ".got.pulling").symlink_to(tmp_path / "other")
    with pytest.raises(StorageError, match="is a link"), pull.working(tmp_path / "got"):
        pass
    assert not list((tmp_path / "other").iterdir())
