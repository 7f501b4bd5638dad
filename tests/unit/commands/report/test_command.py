from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx import codec
from epctx.commands.report import command
from epctx.errors import StorageError, UsageError
from tests.kit.reports import report


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


def test_a_folder_of_outputs_has_the_report_that_belongs_to_it(tmp_path: Path) -> None:
    group = tmp_path / "a" / "target" / "group"
    group.mkdir(parents=True)
    with pytest.raises(UsageError, match="has no report"):
        command.of_folder(tmp_path)
    own = tmp_path / "a.build.json"
    own.touch()
    for folder in (tmp_path, tmp_path / "a", group.parent, group):
        assert command.of_folder(folder) == own
    (tmp_path / "b.build.json").touch()
    assert command.of_folder(group) == own
    with pytest.raises(UsageError, match="has the reports of 2 builds") as caught:
        command.of_folder(tmp_path)
    assert own.as_posix() in caught.value.remedy


def test_a_folder_is_looked_for_from_inside_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "dist" / "a" / "target" / "group"
    group.mkdir(parents=True)
    own = tmp_path / "dist" / "a.build.json"
    own.touch()
    monkeypatch.chdir(group.parent)
    for folder in (Path("group"), Path(), Path(".."), Path("../target"), Path("../../a/target")):
        assert command.of_folder(folder) == own.resolve(), folder
    monkeypatch.chdir(tmp_path)
    for name in ("dist", "dist/a", "dist/a/target/group"):
        assert command.of_folder(Path(name)) == Path("dist/a.build.json")
