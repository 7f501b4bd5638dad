import errno
import hashlib
import os
import subprocess
import threading
from pathlib import Path

import blake3
import pytest
from msgspec.structs import replace

from epctx.commands import pull
from epctx.engine.output.place import OutputPaths
from epctx.errors import StorageError
from epctx.files import outputs


def test_both_digests_are_taken_in_the_pass_that_writes(tmp_path: Path) -> None:
    written = outputs.write(tmp_path / "a.bin", [b"con", memoryview(b"tent")])
    assert (tmp_path / "a.bin").read_bytes() == b"content"
    assert written.size == 7
    assert written.sha256.hex == hashlib.sha256(b"content").hexdigest()
    assert written.blake3.hex == blake3.blake3(b"content").hexdigest()


def test_a_file_of_ones_own_is_moved_and_has_both_digests(tmp_path: Path) -> None:
    (tmp_path / "scratch.bin").write_bytes(b"content")
    inode = (tmp_path / "scratch.bin").stat().st_ino
    taken = outputs.OwnFile(tmp_path / "scratch.bin").take(tmp_path / "a.bin")
    assert taken == replace(outputs.write(tmp_path / "b.bin", [b"content"]), name="a.bin")
    assert (tmp_path / "a.bin").stat().st_ino == inode
    assert not (tmp_path / "scratch.bin").exists()


def test_a_file_that_is_written_to_after_all_is_hashed_again(tmp_path: Path) -> None:
    (tmp_path / "scratch.bin").write_bytes(b"content")
    before = set(threading.enumerate())
    own = outputs.OwnFile(tmp_path / "scratch.bin")
    for thread in set(threading.enumerate()) - before:
        thread.join()  # both digests are those of what is there now
    (tmp_path / "scratch.bin").write_bytes(b"another content")
    taken = own.take(tmp_path / "a.bin")
    assert taken == replace(outputs.write(tmp_path / "b", [b"another content"]), name="a.bin")


@pytest.mark.parametrize("kind", ["symlink_to", "hardlink_to"])
def test_a_link_is_not_moved(tmp_path: Path, kind: str) -> None:
    (tmp_path / "real.bin").write_bytes(b"content")
    getattr(tmp_path / "scratch.bin", kind)(tmp_path / "real.bin")
    assert outputs.OwnFile(tmp_path / "scratch.bin").take(tmp_path / "a.bin") is None
    assert (tmp_path / "scratch.bin").exists() and not (tmp_path / "a.bin").exists()


def test_what_the_system_does_not_move_is_left_to_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> Path:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    (tmp_path / "scratch.bin").write_bytes(b"content")
    monkeypatch.setattr(Path, "rename", refuse)
    assert outputs.OwnFile(tmp_path / "scratch.bin").take(tmp_path / "a.bin") is None
    assert (tmp_path / "scratch.bin").read_bytes() == b"content"


def test_nothing_is_moved_over_a_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "scratch.bin").write_bytes(b"new")
    (tmp_path / "a.bin").write_bytes(b"old")
    with pytest.raises(StorageError, match="it exists already"):
        outputs.OwnFile(tmp_path / "scratch.bin").take(tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == b"old"


def test_sums_are_what_sha256sum_checks(tmp_path: Path) -> None:
    files = [outputs.write(tmp_path / name, [name.encode()]) for name in ("b.onnx", "a.bin")]
    outputs.write_sums(tmp_path, files)
    text = (tmp_path / "SHA256SUMS").read_text(encoding="utf-8")
    assert [line.split("  ")[1] for line in text.splitlines()] == ["a.bin", "b.onnx"]
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True)
    (tmp_path / "a.bin").write_bytes(b"x")
    assert subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path).returncode == 1


def test_a_file_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"old")
    with pytest.raises(StorageError, match="File exists"):
        outputs.write(tmp_path / "a.bin", [b"new"])
    assert (tmp_path / "a.bin").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "you may write to"),
        (errno.EACCES, "you may write to"),
        (errno.EEXIST, "move the existing entry away"),
        (errno.EPIPE, "choose another folder"),
    ],
)
def test_a_refused_write_says_what_helps(number: int, words: str) -> None:
    error = outputs.unwritable(Path("dist"), OSError(number, "no"))
    assert error.exit_code == 9 and words in error.remedy and "--out" in error.remedy


@pytest.mark.needs("root", "it gives a folder to another user")
def test_the_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process says that it is another user's: Python itself may be root's alone."""
    outputs.refuse_foreign(tmp_path / "nothing")
    (tmp_path / "m").mkdir()
    os.chown(tmp_path / "m", 1, 1)
    outputs.refuse_foreign(tmp_path / "m")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    outputs.refuse_foreign(tmp_path)
    with pytest.raises(StorageError, match="belongs to another user"):
        outputs.refuse_foreign(tmp_path / "m")
    places = (
        OutputPaths(out=tmp_path, name="m"),
        OutputPaths(out=tmp_path.parent, name=tmp_path.name),
    )
    for held in (pull.working(tmp_path / "m"), *(p.locked(lambda: None) for p in places)):
        with pytest.raises(StorageError, match="belongs to another user"), held:
            pass
    assert not list((tmp_path / "m").iterdir())
