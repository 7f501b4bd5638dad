"""Files by their content."""

from __future__ import annotations

from pathlib import Path

import pytest

from epctx.errors import ModelError
from epctx.files import digest, items


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
