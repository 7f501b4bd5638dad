from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx import codec
from epctx.commands.compared import command
from epctx.engine.report import BuildReport
from epctx.errors import StorageError, UsageError
from tests.kit.reports import failing, report


def write(path: Path, made: BuildReport) -> Path:
    path.write_bytes(codec.encode(made))
    return path


def test_the_page_goes_beside_the_new_report(tmp_path: Path) -> None:
    old = write(tmp_path / "old.build.json", report())
    new = write(tmp_path / "made.build.json", failing())
    page = command.page_of(new)
    assert page == tmp_path / "made.compared.html"
    command.write(old, new, page)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_one_report_is_not_two(tmp_path: Path) -> None:
    path = write(tmp_path / "made.build.json", report())
    with pytest.raises(UsageError, match="is both of the builds") as caught:
        command.write(path, tmp_path / "." / path.name, tmp_path / "page.html")
    assert "epctx build --out" in caught.value.remedy
    assert not (tmp_path / "page.html").exists()


def test_what_is_no_report_is_refused_and_nothing_written(tmp_path: Path) -> None:
    good = write(tmp_path / "made.build.json", report())
    bad = write(tmp_path / "bad.build.json", replace(report(), schema_version=2))
    for pair in ((good, bad), (bad, good)):
        with pytest.raises(UsageError, match="has version 2"):
            command.write(*pair, tmp_path / "page.html")
    with pytest.raises(UsageError, match="does not exist"):
        command.write(good, tmp_path / "none.json", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    old = write(tmp_path / "old.build.json", report())
    new = write(tmp_path / "made.build.json", failing())
    with pytest.raises(StorageError, match="cannot be written"):
        command.write(old, new, tmp_path / "none" / "page.html")
