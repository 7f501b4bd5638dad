"""What tells without reading whether a file is unchanged."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from epctx.files import identity
from epctx.files.regular import open_regular
from tests.kit.mapping import written_map


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


def shown(path: Path) -> None:
    """Let writes to a file show."""
    with path.open("rb") as stream:
        identity.show_writes(stream.fileno())


@pytest.mark.needs("file systems that tell of each write")
def test_a_write_through_a_map_that_was_written_to_shows(file: Path) -> None:
    def is_seen(text: bytes) -> bool:
        before = identity.of_path(file)
        time.sleep(0.02)  # the clock of files has steps of up to 10 ms
        mapped[:2] = text
        return identity.of_path(file) != before

    with written_map(file) as mapped:
        # Seen by itself only where the system has written it back meanwhile, as it may at any time.
        assert not all(is_seen(text) for text in (b"AS", b"as") * 10)
        shown(file)
        assert is_seen(b"is")


@pytest.mark.needs("file systems that tell of each write")
def test_so_it_does_of_a_file_that_is_opened_as_a_source(file: Path) -> None:
    with written_map(file) as mapped:
        _, descriptor = open_regular(file, where="it")
        os.close(descriptor)
        before = identity.of_path(file)
        time.sleep(0.02)
        mapped[:2] = b"AS"
        assert identity.of_path(file) != before


@pytest.mark.needs("leases")
def test_nothing_is_written_back_where_nobody_writes(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    monkeypatch.setattr(identity, "_written_back", lambda descriptor: synced.append(descriptor))
    shown(file)
    assert synced == []
    with written_map(file):
        shown(file)
    assert len(synced) == 2  # the second where the first is refused
    monkeypatch.setitem(identity._types, str(file.stat().st_dev), identity._OVERLAY)
    shown(file)
    assert len(synced) == 3


@pytest.mark.needs("Linux", "leases are there on Linux only")
def test_a_broken_disk_is_told_and_what_cannot_be_written_back_is_not(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fdatasync", refuse)
    monkeypatch.setattr(identity, "_written_back", lambda descriptor: False)
    with written_map(file):
        number = errno.EROFS
        shown(file)
        number = errno.EIO
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            shown(file)


@pytest.mark.needs("leases")
def test_who_opens_it_that_very_moment_ends_nobody(file: Path) -> None:
    """A lease that is broken sends a signal, which by default would end the process."""
    code = (
        "import fcntl, os, subprocess, sys\n"
        "from epctx.files import identity\n"
        "own = fcntl.fcntl\n"
        "def taken(descriptor, command, argument):\n"
        "    if (command, argument) == (fcntl.F_SETLEASE, fcntl.F_UNLCK):\n"
        "        subprocess.run([sys.executable, '-c', 'import os, sys;'\n"
        "            'os.open(sys.argv[1], os.O_WRONLY | os.O_NONBLOCK)', sys.argv[1]])\n"
        "    return own(descriptor, command, argument)\n"
        "fcntl.fcntl = taken\n"
        "identity.show_writes(os.open(sys.argv[1], os.O_RDONLY))\n"
        "print('alive')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode != -signal.SIGIO
    assert "BlockingIOError" in done.stderr, "the lease was not broken"
    assert done.stdout == "alive\n"


@pytest.mark.needs("/proc", "there is no such file system here")
def test_a_file_system_that_is_not_known_to_tell_does_not(file: Path) -> None:
    there = Path("/proc/version")
    assert not identity.tells(there, identity.of_path(there).text)
    assert not identity.tells(file.with_name("missing"), "0:0:0:0:0")
