"""Which files of a folder are signed, and how a folder differs from what was."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from epctx.files.digest import Digest
from epctx.signing import oms


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name, encoding="utf-8")


def sha(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def test_all_files_but_the_signature_and_those_of_git(tmp_path: Path) -> None:
    write(tmp_path, "a", "b/c", "b/model.sig", "b/.git/x", "model.sig", ".git/x", ".gitignore")
    (tmp_path / "empty").mkdir()
    found = oms.folder_digests(tmp_path)
    assert found == {n: Digest("sha256", sha(n)) for n in ("a", "b/.git/x", "b/c", "b/model.sig")}


@pytest.mark.needs("links", "one lies in the folder")
def test_a_link_has_no_digest(tmp_path: Path) -> None:
    write(tmp_path, "f/a", "outside/b")
    (tmp_path / "f" / "link").symlink_to(tmp_path / "f" / "a")
    (tmp_path / "f" / "folder").symlink_to(tmp_path / "outside")
    found = oms.folder_digests(tmp_path / "f")
    assert found["link"] == found["folder"] == "cannot be read: is not a regular file"
    assert set(found) == {"a", "link", "folder"}


@pytest.mark.needs("POSIX", "it has pipes, and names that are no text")
def test_a_pipe_is_not_waited_for_and_an_odd_name_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    write(tmp_path, "back\\slash")
    found = oms.folder_digests(tmp_path)
    assert found["pipe"] == "cannot be read: is not a regular file"
    assert str(found["back\\slash"]).startswith("cannot be signed: it has a backslash")


def test_how_a_folder_differs(tmp_path: Path) -> None:
    write(tmp_path, "same", "changed", "added")
    signed = {"same": sha("same"), "changed": "00" * 32, "gone": "11" * 32}
    assert dict(oms.differences(signed, {**oms.folder_digests(tmp_path), "link": "is a link"})) == {
        "added": "is not signed",
        "changed": "was changed since it was signed",
        "gone": "is missing, but was signed",
        "link": "is a link",
    }
