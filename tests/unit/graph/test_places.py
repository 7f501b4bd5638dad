"""Places of an optimized model's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from epctx.files import identity
from epctx.graph.places import Place


def test_a_source_is_unchanged_only_where_each_write_would_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.data"
    file.write_bytes(b"one")
    place = Place.of_source(file)
    monkeypatch.setattr(identity, "tells", lambda path, text: True)
    assert place.is_unchanged()
    monkeypatch.setattr(identity, "tells", lambda path, text: False)
    assert not place.is_unchanged()


def test_a_source_that_was_written_to_or_is_gone_is_changed(tmp_path: Path) -> None:
    file = tmp_path / "a.data"
    file.write_bytes(b"one")
    place = Place.of_source(file)
    file.write_bytes(b"longer")
    assert not place.is_unchanged()
    file.unlink()
    assert not place.is_unchanged()
