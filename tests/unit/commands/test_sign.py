"""`epctx sign`: what it signs, and what it does not."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from epctx import api
from epctx.commands.verify import signatures
from epctx.errors import UsageError, VerificationError
from epctx.signing.keys import Trusted
from tests.kit import signing


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return signing.write_key(tmp_path, "k")[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "f"
    (folder / "g").mkdir(parents=True)
    (folder / "g" / "a.bin").write_bytes(b"a")
    sums = f"{hashlib.sha256(b'a').hexdigest()}  a.bin\n"
    (folder / "g" / "SHA256SUMS").write_text(sums, encoding="utf-8")
    return folder


def test_every_file_is_signed(folder: Path, key: Path) -> None:
    report = api.sign(folder, key=key)
    assert report.path == (folder / "model.sig").as_posix() and report.files == 2
    first = (folder / "model.sig").read_bytes()
    assert api.sign(folder, key=key).files == 2, "the signature is none of its own files"
    assert (folder / "model.sig").read_bytes() == first
    judged = signatures.judge(
        [folder], {folder: "f"}, [], Trusted.load([key.with_suffix(".pub")], [])
    )
    assert not judged.refused


@pytest.mark.needs("POSIX", "has no FIFOs")
def test_a_key_may_come_through_a_pipe(folder: Path, key: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(key.read_bytes(),))
    writer.start()
    assert api.sign(folder, key=tmp_path / "pipe").files == 2
    writer.join()


def test_what_was_changed_since_it_was_built_is_not_signed(folder: Path, key: Path) -> None:
    (folder / "g" / "a.bin").write_bytes(b"b")
    with pytest.raises(VerificationError, match="does not match SHA256SUMS") as caught:
        api.sign(folder, key=key)
    assert caught.value.file == f"{folder.as_posix()}/g/a.bin"
    (folder / "g" / "SHA256SUMS").write_text("x\n", encoding="utf-8")
    with pytest.raises(VerificationError, match="line 1"):
        api.sign(folder, key=key)
    assert not (folder / "model.sig").exists()


@pytest.mark.needs("links", "one lies in the folder")
def test_a_link_is_not_signed(folder: Path, key: Path) -> None:
    (folder / "link").symlink_to("g/a.bin")
    with pytest.raises(UsageError, match="is not a regular file"):
        api.sign(folder, key=key)


def test_a_folder_without_files_and_a_file_are_refused(tmp_path: Path, key: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="has no file to sign"):
        api.sign(tmp_path / "empty", key=key)
    with pytest.raises(UsageError, match="is a file"):
        api.sign(key, key=key)
