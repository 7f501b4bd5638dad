from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from epctx.files import paths


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty"),
        ("a\x00b", "it has a control character"),
        ("a\nb", "it has a control character"),
        ("a\\b", "it has a backslash: `/` separates folders"),
        ("/etc/passwd", "it is absolute"),
        ("//host/share", "it is absolute"),
        ("C:/x.bin", "it is absolute"),
        ("c:x.bin", "it is absolute"),
        ("../x.bin", "it has `..`"),
        ("sub/../x.bin", "it has `..`"),
        ("sub/", "it names a folder"),
        (".", "it names a folder"),
        ("./", "it names a folder"),
    ],
)
def test_paths_that_are_not_relative_and_inside(text: str, reason: str) -> None:
    assert paths.objection(text) == reason


@pytest.mark.parametrize("text", ["x.bin", "sub/x.bin", "./x.bin", "a..b.bin", "...", "ä b.bin"])
def test_paths_that_are(text: str) -> None:
    assert paths.objection(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty"),
        ("a\x00b", "it contains a NUL"),
        ("a\\b", "it contains a backslash; ONNX separates folders by `/`"),
        ("/w.data", "it is absolute"),
        ("C:w.data", "it is absolute"),
        ("sub/../w.data", "it leads out of the folder by `..`"),
        ("./.", "it is the folder itself"),
    ],
)
def test_texts_that_are_no_location(text: str, reason: str) -> None:
    assert paths.fault(text) == reason


def test_one_spelling_for_one_location() -> None:
    for text in ("sub/w.data", "./sub//w.data", "sub/./w.data"):
        assert paths.fault(text) is None
        assert paths.normalize(text) == "sub/w.data"


@pytest.mark.parametrize(
    ("text", "bare", "plain"),
    [
        ("x.bin", True, True),
        ("ä b.bin", True, True),
        ("sub/x.bin", False, True),
        ("file:stream", True, False),
        ("./x.bin", False, False),
        ("sub//x.bin", False, False),
        ("sub/", False, False),
        ("", False, False),
        (".", False, False),
        ("..", False, False),
        ("a/../x.bin", False, False),
        ("/x.bin", False, False),
        ("c:x.bin", False, False),
        ("a\\x.bin", False, False),
        ("a\0", False, False),
        ("a\n", False, False),
    ],
)
def test_bare_names_and_plain_paths(text: str, bare: bool, plain: bool) -> None:
    assert (paths.is_bare(text), paths.is_plain(text)) == (bare, plain)


def test_a_regular_file_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x.bin").write_bytes(b"1")
    for text in ("sub/x.bin", "./sub/x.bin", "sub//x.bin"):
        assert paths.missing(tmp_path, text) is None


def test_what_is_missing_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "sub").mkdir()
    assert paths.missing(tmp_path, "gone.bin") == "it does not exist"
    assert paths.missing(tmp_path, "sub") == "it is a folder"
    assert paths.missing(tmp_path, "file/x") == "'file' is not a folder"
    assert "does not exist" in str(paths.missing(tmp_path, "no/x"))
    assert paths.missing(tmp_path / "sub", "../file") == "it has `..`"
    assert paths.missing(tmp_path, str(tmp_path / "file")) == "it is absolute"
    assert "does not exist" in str(paths.missing(tmp_path, "x" * 5000))


@pytest.mark.needs("links")
def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x.bin").write_bytes(b"1")
    (tmp_path / "link.bin").symlink_to("real/x.bin")
    (tmp_path / "dir").symlink_to("real")
    assert paths.missing(tmp_path, "link.bin") == "'link.bin' is a link"
    assert paths.missing(tmp_path, "dir/x.bin") == "'dir' is a link"


@pytest.mark.needs("POSIX", "no FIFO here")
def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.bin")
    assert paths.missing(tmp_path, "pipe.bin") == "it is not a regular file"


def test_entries_go_down_and_follow_no_link(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "f").write_bytes(b"")
    (tmp_path / "z").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    expected = ["a/b/f", "empty/", "z"]
    if sys.platform != "win32":
        (tmp_path / "loop").symlink_to(tmp_path)
        expected.insert(2, "loop")
    assert paths.entries(tmp_path) == expected
