import os
from pathlib import Path

import platformdirs
import pytest

from epctx.cache.location import Location, locate
from epctx.errors import StorageError


@pytest.mark.parametrize("environment", [{}, {"EPCTX_CACHE_DIR": ""}])
def test_without_the_variable_it_is_the_users(environment: dict[str, str]) -> None:
    expected = platformdirs.user_cache_path("epctx", appauthor=False)
    assert locate(environment).folder == expected


@pytest.mark.parametrize(
    ("value", "readonly"),
    [("1", True), ("true", True), ("YES", True), ("0", False), ("", False), ("off", False)],
)
def test_read_only(value: str, readonly: bool) -> None:
    assert locate({"EPCTX_CACHE_READONLY": value}).readonly is readonly


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


@pytest.mark.needs("POSIX", "modes and owners are POSIX's")
@pytest.mark.parametrize("inner", [False, True])
def test_a_cache_that_everybody_can_write_to_is_refused(tmp_path: Path, inner: bool) -> None:
    location = Location(folder=tmp_path / "cache")
    location.make()
    (location.root if inner else location.folder).chmod(0o777)
    named = {"EPCTX_CACHE_DIR": str(location.folder)}
    with pytest.raises(StorageError, match="the cache is not used") as caught:
        locate(named)
    assert "everybody can write to it (mode 777)" in str(caught.value)
    assert "EPCTX_CACHE_SHARED=1" in caught.value.remedy
    assert locate({**named, "EPCTX_CACHE_SHARED": "1"}).folder == location.folder


@pytest.mark.needs("POSIX", "modes and owners are POSIX's")
def test_a_cache_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = Location(folder=tmp_path / "cache")
    location.make()
    found = location.folder.stat()
    stat_of = Path.stat

    def of_another(self: Path, **options: bool) -> os.stat_result:
        status = stat_of(self, **options)
        return (
            os.stat_result((*status[:4], 54321, *status[5:])) if self == location.root else status
        )

    monkeypatch.setattr(Path, "stat", of_another)
    assert found.st_uid != 54321
    named = {"EPCTX_CACHE_DIR": str(location.folder)}
    with pytest.raises(StorageError, match="belongs to another user, number 54321"):
        locate({**named, "EPCTX_CACHE_READONLY": "1"})
    assert locate({**named, "EPCTX_CACHE_SHARED": "1"}).folder == location.folder


@pytest.mark.needs("POSIX", "modes and owners are POSIX's")
def test_a_new_cache_is_its_users_alone(tmp_path: Path) -> None:
    location = Location(folder=tmp_path / "above" / "cache")
    location.make()
    for folder in (location.folder, location.root):
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.needs("links")
def test_the_tag_is_not_written_through_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "CACHEDIR.TAG").symlink_to(tmp_path / "elsewhere")
    Location(folder=folder).make()
    assert not (tmp_path / "elsewhere").exists()
