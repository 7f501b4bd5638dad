from dataclasses import replace
from pathlib import Path

import pytest

from epctx import codec
from epctx.commands.report import command
from epctx.errors import StorageError, UsageError
from tests.kit.reports import report


def test_a_report_goes_to_a_page_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "made.build.json"
    path.write_bytes(codec.encode(report()))
    page = command.page_of(path)
    assert page == tmp_path / "made.report.html"
    assert command.write(path, page) == report()
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is no build report of this version of epctx"),
        (b"\xff\xfe", "is no build report of this version of epctx"),
        (b'{"folders": []}', "is no build report of this version of epctx"),
        (codec.encode(replace(report(), schema_version=2)), "has version 2, this epctx reads 1"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        command.write(path, tmp_path / "page.html")
    assert caught.value.what == what
    assert not (tmp_path / "page.html").exists()


def test_a_report_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        command.read(tmp_path / "none.json")


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "made.build.json"
    path.write_bytes(codec.encode(report()))
    for page in (tmp_path / "none" / "page.html", path / "page.html", tmp_path):
        with pytest.raises(StorageError, match="cannot be written"):
            command.write(path, page)
