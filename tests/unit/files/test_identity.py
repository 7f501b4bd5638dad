"""What tells without reading whether a file is unchanged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from epctx.files import identity


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"as it was")
    return path


def test_a_write_shows_even_if_size_and_time_are_put_back(file: Path) -> None:
    before, times = identity.of_path(file), file.stat()
    assert identity.of_path(file) == before
    file.write_bytes(b"is it not")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert identity.of_path(file) != before


def test_an_open_file_and_its_path_have_one_identity(file: Path) -> None:
    with file.open("rb") as stream:
        assert identity.of_descriptor(stream.fileno()) == identity.of_path(file)


def test_the_content_is_the_same_after_a_renaming_and_another_after_a_write(file: Path) -> None:
    before = identity.of_content(file.stat())
    file = file.rename(file.with_name("renamed"))
    assert identity.of_content(file.stat()) == before
    os.utime(file, (0, 0))
    assert identity.of_content(file.stat()) != before
    copy = file.with_name("copy")
    copy.write_bytes(file.read_bytes())
    os.utime(copy, (0, 0))
    assert identity.of_content(copy.stat()) != identity.of_content(file.stat())


def test_an_identity_settles_two_seconds_after_the_last_change(file: Path) -> None:
    fresh = identity.of_path(file)
    assert not fresh.settled
    assert fresh.settled_at(fresh.changed + identity.SETTLED + 0.1)
    assert not fresh.settled_at(fresh.changed + identity.SETTLED)


def test_a_file_from_the_future_never_settles(file: Path) -> None:
    os.utime(file, (2**33, 2**33))
    assert not identity.of_path(file).settled
