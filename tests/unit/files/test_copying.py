import errno
import os
from pathlib import Path

import pytest

from epctx.files import copying, digest

CONTENT = bytes(range(256)) * 40_000  # more than one chunk


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    return path


def copy_hashed(source: Path, target: Path) -> digest.Digest:
    with source.open("rb", buffering=0) as reader:
        return copying.copy_hashed(reader, target)


def test_a_copy_has_the_content_and_is_no_link(source: Path, tmp_path: Path) -> None:
    copying.copy(source, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == CONTENT
    assert not (tmp_path / "target").samefile(source)
    assert (tmp_path / "target").stat().st_nlink == 1


@pytest.mark.needs("POSIX", "Windows' own copy replaces")
def test_a_target_that_exists_stays(source: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    with pytest.raises(FileExistsError):
        copying.copy(source, tmp_path / "target")
    with pytest.raises(FileExistsError):
        copy_hashed(source, tmp_path / "target")
    assert (tmp_path / "target").read_text() == "mine"


@pytest.mark.needs("copy_file_range", "a call of Linux")
def test_what_the_kernel_leaves_is_moved_by_hand(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, calls = os.copy_file_range, []

    def once(from_: int, to: int, count: int) -> int:
        calls.append(count)
        if len(calls) > 1:
            raise OSError(errno.EXDEV, "other file system")
        return kernel(from_, to, 1000)

    monkeypatch.setattr(os, "copy_file_range", once)
    copying.copy(source, tmp_path / "target")
    assert len(calls) == 2
    assert (tmp_path / "target").read_bytes() == CONTENT


linux = pytest.mark.needs("Linux", "FICLONE is a call of Linux")


@pytest.fixture
def clones(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As on a file system that makes clones; the requests it got."""
    import fcntl

    requests: list[int] = []

    def clone(target: int, request: int, source: int) -> int:
        requests.append(request)
        os.pwrite(target, os.pread(source, 1 << 30, 0), 0)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", clone)
    return requests


@linux
def test_a_clone_is_not_copied_again(
    source: Path, tmp_path: Path, clones: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "copy_file_range")
    copying.copy(source, tmp_path / "target")
    assert clones == [0x40049409]
    assert (tmp_path / "target").read_bytes() == CONTENT


@linux
def test_of_a_clone_what_is_there_is_hashed(
    source: Path, tmp_path: Path, clones: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def damaged(target: int, request: int, source: int) -> int:
        os.pwrite(target, b"other", 0)
        return 0

    assert copy_hashed(source, tmp_path / "whole") == digest.of_bytes(CONTENT)
    monkeypatch.setattr(fcntl, "ioctl", damaged)
    assert copy_hashed(source, tmp_path / "damaged") == digest.of_bytes(b"other")


@linux
def test_an_error_of_the_disk_is_no_missing_feature(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def full(target: int, request: int, source: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fcntl, "ioctl", full)
    with pytest.raises(OSError, match="No space"):
        copying.copy(source, tmp_path / "target")
