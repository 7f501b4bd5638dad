from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path

import pytest

from epctx.errors import ModelError
from epctx.files import entries, regular
from epctx.graph.weights.data_file import READ, DataFile


@pytest.mark.needs("POSIX", "POSIX files")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match="not a regular file"):
        DataFile.open(tmp_path / "pipe")


@pytest.mark.needs("POSIX", "POSIX files")
def test_a_pipe_is_a_document_where_it_may_be_one_and_is_read_in_bounds(tmp_path: Path) -> None:
    def write() -> None:
        with contextlib.suppress(BrokenPipeError), (tmp_path / "pipe").open("wb", 0) as pipe:
            while True:
                pipe.write(b"x" * 1000)

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(entries.Irregular):
        entries.read_document(tmp_path / "pipe", 10)
    writer = threading.Thread(target=write)
    writer.start()
    assert entries.read_document(tmp_path / "pipe", 2500, pipes=True) == b"x" * 2501
    writer.join()


@pytest.mark.needs("POSIX", "POSIX files")
def test_a_loop_of_links_is_an_error_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(ModelError, match="cannot be opened"):
        DataFile.open(tmp_path / "a")


@pytest.mark.needs("POSIX", "an open file cannot be replaced")
def test_a_file_exchanged_while_it_is_opened_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, secret = tmp_path / "w.bin", tmp_path / "secret"
    path.write_bytes(b"weights")
    secret.write_bytes(b"secret!")
    real_open = os.open

    def race(target: Path, flags: int) -> int:
        path.unlink()
        path.symlink_to(secret)
        return real_open(target, flags)

    monkeypatch.setattr(os, "open", race)
    with pytest.raises(ModelError, match="exchanged"):
        DataFile.open(path)


@pytest.mark.needs("/proc", "counts its files by /proc")
def test_one_file_per_tensor_may_exceed_the_soft_limit_of_open_files(tmp_path: Path) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(each.name) for each in Path("/proc/self/fd").iterdir()}
    low = [number for number in range(len(used) + 21) if number not in used][-1]
    if hard <= low + 50:
        pytest.skip("the hard limit is too low to show it")
    for i in range(60):
        (tmp_path / f"{i}.bin").write_bytes(bytes(READ + 1))  # mapped: it keeps a descriptor
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    try:
        files = [DataFile.open(tmp_path / f"{i}.bin") for i in range(60)]
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > low
        assert all(bytes(file.view()) == bytes(READ + 1) for file in files)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_at_the_hard_limit_of_open_files_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(8))
    monkeypatch.setattr(regular, "_raise_file_limit", lambda: False)

    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(ModelError, match="Too many open files"):
        DataFile.open(tmp_path / "w.bin")


def test_a_file_deleted_while_it_is_opened_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w.bin").write_bytes(b"weights")
    real_open = os.open

    def race(target: Path, flags: int) -> int:
        descriptor = real_open(target, flags)
        (tmp_path / "w.bin").rename(tmp_path / "moved")
        return descriptor

    monkeypatch.setattr(os, "open", race)
    with pytest.raises(ModelError, match="exchanged"):
        DataFile.open(tmp_path / "w.bin")


def test_a_link_that_is_turned_after_it_was_opened_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, first, second = tmp_path / "w.bin", tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"weights")
    second.write_bytes(b"secret!")
    link.symlink_to(first)

    real_open = os.open

    def race(target: Path, flags: int) -> int:
        descriptor = real_open(target, flags)
        link.unlink()
        link.symlink_to(second)
        return descriptor

    monkeypatch.setattr(os, "open", race)
    with pytest.raises(ModelError, match="exchanged"):
        DataFile.open(link)


def test_a_limit_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert entries.read_document(tmp_path / "file", 1 << 62) == b"abc"
    with entries.open_entry(tmp_path / "file") as stream:
        assert (stream.read(1 << 62), stream.read(1 << 62)) == (b"abc", b"")
