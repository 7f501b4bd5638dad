"""The hidden folder of a pull. What comes into it: tests/faults/test_registry.py."""

from pathlib import Path

import pytest

from epctx.commands.pull import fetching
from epctx.errors import StorageError
from epctx.oci.artifact import blob_of


def test_two_do_not_pull_into_one_folder(tmp_path: Path) -> None:
    target = tmp_path / "got"
    with (
        fetching.working(target),
        pytest.raises(StorageError, match="another command"),
        fetching.working(target),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_it_stays_when_something_fails(tmp_path: Path) -> None:
    with pytest.raises(ValueError), fetching.working(tmp_path / "got") as work:
        (work / "half").write_bytes(b"half")
        raise ValueError
    with fetching.working(tmp_path / "got") as work:
        assert (work / "half").read_bytes() == b"half"


def test_content_that_is_there_twice_is_copied(tmp_path: Path) -> None:
    blob = blob_of(b"same")
    (tmp_path / blob.digest.hex).write_bytes(b"same")
    tree = fetching.arrange({"a/x": blob, "b": blob}, tmp_path, {"model.sig": b"sig"})
    assert (tree / "a" / "x").read_bytes() == (tree / "b").read_bytes() == b"same"
    assert (tree / "a" / "x").stat().st_ino != (tree / "b").stat().st_ino
    assert (tree / "model.sig").read_bytes() == b"sig"
