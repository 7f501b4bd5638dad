from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from epctx.commands.report.sections import Links


def test_what_is_not_there_is_not_pointed_to(tmp_path: Path) -> None:
    links = Links(folder=tmp_path, page=tmp_path)
    assert links.to("a.bin") is None
    assert links.to("a" * 5000) is None, "a name that no file can have"
    assert links.to() is None, "a folder"


def test_nothing_outside_is_pointed_to(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.touch()
    (tmp_path / "dist/a").mkdir(parents=True)
    links = Links(folder=tmp_path / "dist", page=tmp_path / "dist")
    for parts in (("../outside.txt",), ("a", "..", "../outside.txt"), (str(outside),)):
        assert links.to(*parts) is None


@pytest.mark.needs("POSIX", "there these are names of files")
@pytest.mark.parametrize("name", ["c:x", "c:\\x", "\\\\host\\share", "a\\..\\x"])
def test_what_leads_outside_on_windows_is_not_pointed_to(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert Links(folder=tmp_path, page=tmp_path).to(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "a b#c;d%41&'.bin",
        "ü.log",
        pytest.param(
            'x"><b>?.log', marks=pytest.mark.needs("POSIX", "Windows has no such name of a file")
        ),
    ],
)
def test_every_name_leads_to_its_file_and_nowhere_else(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    found = Links(folder=tmp_path, page=tmp_path).to(name)
    assert found is not None
    parts = urlsplit(found)
    assert (parts.scheme, parts.netloc, parts.query, parts.fragment) == ("", "", "", "")
    assert unquote(parts.path) == f"./{name}" and not set(found) & set("\"'<>")
