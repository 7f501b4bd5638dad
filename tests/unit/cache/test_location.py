from pathlib import Path

import platformdirs
import pytest

from epctx.cache.location import Location, locate
from epctx.errors import StorageError, UsageError


def test_the_variable_names_the_folder(tmp_path: Path) -> None:
    assert locate({"EPCTX_CACHE_DIR": str(tmp_path)}).folder == tmp_path
    assert not locate({"EPCTX_CACHE_DIR": str(tmp_path)}).readonly


def test_a_relative_folder_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate({"EPCTX_CACHE_DIR": "here"}).folder == tmp_path / "here"


@pytest.mark.parametrize("environment", [{}, {"EPCTX_CACHE_DIR": ""}])
def test_without_the_variable_it_is_the_users(environment: dict[str, str]) -> None:
    expected = platformdirs.user_cache_path("epctx", appauthor=False)
    assert locate(environment).folder == expected


def test_no_test_sees_the_users_cache() -> None:
    assert locate().folder != platformdirs.user_cache_path("epctx", appauthor=False)


@pytest.mark.parametrize(
    ("value", "readonly"),
    [("1", True), ("true", True), ("YES", True), ("0", False), ("", False), ("off", False)],
)
def test_read_only(value: str, readonly: bool) -> None:
    assert locate({"EPCTX_CACHE_READONLY": value}).readonly is readonly


def test_read_only_is_true_or_false() -> None:
    with pytest.raises(UsageError, match="EPCTX_CACHE_READONLY is 'maybe'"):
        locate({"EPCTX_CACHE_READONLY": "maybe"})


def test_it_is_marked_as_a_cache(tmp_path: Path) -> None:
    location = Location(folder=tmp_path / "cache")
    location.make()
    tag = (tmp_path / "cache" / "CACHEDIR.TAG").read_text(encoding="utf-8")
    assert tag.startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert location.root.is_dir()


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, **options: bool) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StorageError, match="Permission denied") as caught:
        Location(folder=tmp_path / "cache").make()
    assert "--no-cache" in caught.value.remedy


def test_a_file_in_the_caches_place(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(StorageError) as caught:
        Location(folder=tmp_path / "cache").make()
    assert "EPCTX_CACHE_DIR" in caught.value.remedy
