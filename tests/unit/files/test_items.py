"""Files by their content."""

from __future__ import annotations

from pathlib import Path

import pytest

from epctx.errors import ModelError
from epctx.files import digest, items


def test_a_text_and_a_file_of_the_same_content_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"text")
    made, found = items.made(b"text"), items.found(path)
    assert (made.sha256, made.blake3, made.size) == (found.sha256, found.blake3, found.size)
    assert (made.content, made.source, found.source) == (b"text", None, path)


def test_of_a_folder_every_file_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "f" / "deep").mkdir(parents=True)
    (tmp_path / "f" / "deep" / "b.txt").write_bytes(b"b")
    (tmp_path / "f" / "a.txt").write_bytes(b"a")
    found = items.below(tmp_path / "f")
    assert list(found) == ["a.txt", "deep/b.txt"]
    assert items.below(tmp_path / "f" / "a.txt").keys() == {"a.txt"}
    expected = {name: item.sha256 for name, item in found.items()}
    assert items.digest_of(found) == digest.of_folder(expected)


def test_what_cannot_be_read_is_an_error_of_the_input(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be packaged"):
        items.found(tmp_path / "missing")
