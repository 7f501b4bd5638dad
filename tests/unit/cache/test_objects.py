import os
from pathlib import Path

import pytest

from epctx.cache.location import Location
from epctx.cache.store import Cache
from epctx.errors import StorageError
from epctx.files import digest

CONTENT = b"weights" * 100_000
DIGEST = digest.of_bytes(CONTENT)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    return path


def adopt(cache: Cache, source: Path) -> Path:
    cache.objects.adopt(source, content=DIGEST, size=len(CONTENT))
    return cache.objects.path(DIGEST)


def fetch(cache: Cache, target: Path) -> bool:
    return cache.objects.fetch(DIGEST, size=len(CONTENT), target=target)


def test_in_and_out_again_without_a_link(cache: Cache, source: Path, tmp_path: Path) -> None:
    place = adopt(cache, source)
    assert fetch(cache, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == CONTENT
    inodes = {path.stat().st_ino for path in (source, place, tmp_path / "target")}
    assert len(inodes) == 3


def test_an_edited_output_does_not_reach_the_cache(
    cache: Cache, source: Path, tmp_path: Path
) -> None:
    adopt(cache, source)
    assert fetch(cache, tmp_path / "target")
    (tmp_path / "target").write_bytes(b"edited")
    source.write_bytes(b"edited")
    assert fetch(cache, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == CONTENT


def test_what_is_there_is_not_copied_again(cache: Cache, source: Path) -> None:
    place = adopt(cache, source)
    before = place.stat()
    adopt(cache, source)
    assert place.stat().st_ino == before.st_ino


def test_nothing_is_hashed_on_the_way_in(
    cache: Cache, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "of_stream", None)
    monkeypatch.setattr("epctx.files.copying.blake3", None)
    assert adopt(cache, source).read_bytes() == CONTENT


def test_missing(cache: Cache, notices: list[str], tmp_path: Path) -> None:
    assert not fetch(cache, tmp_path / "target")
    assert not (tmp_path / "target").exists()
    assert not cache.objects.check(DIGEST)
    assert notices == []


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "longer"])
def test_a_corrupt_object_is_found_set_aside_and_made_again(
    cache: Cache, source: Path, notices: list[str], tmp_path: Path, damage: str
) -> None:
    place = adopt(cache, source)
    content = bytearray(CONTENT)
    content[len(content) // 2] ^= 1
    damaged = {"flip": bytes(content), "cut": CONTENT[:-1], "empty": b"", "longer": CONTENT + b"x"}
    place.unlink()
    place.write_bytes(damaged[damage])
    assert not fetch(cache, tmp_path / "target")
    assert not (tmp_path / "target").exists()
    assert notices == [
        f"objects/{DIGEST.hex[:2]}/{DIGEST.hex} is corrupt; set aside, it will be made again"
    ]
    assert not place.exists()
    adopt(cache, source)
    assert fetch(cache, tmp_path / "target")


def test_check_finds_it_too(cache: Cache, source: Path, notices: list[str]) -> None:
    place = adopt(cache, source)
    assert cache.objects.check(DIGEST)
    place.unlink()
    place.write_bytes(b"x" * len(CONTENT))
    assert not cache.objects.check(DIGEST)
    assert len(notices) == 1


def test_in_a_read_only_cache_a_corrupt_object_stays_and_is_not_used(
    cache: Cache, source: Path, notices: list[str], tmp_path: Path
) -> None:
    place = adopt(cache, source)
    place.unlink()
    place.write_bytes(b"x" * len(CONTENT))
    reader = Cache(Location(folder=cache.location.folder, readonly=True), notices.append)
    assert not fetch(reader, tmp_path / "target")
    assert place.exists()
    adopt(reader, source)
    assert place.read_bytes() == b"x" * len(CONTENT)


def test_a_file_of_another_size_is_refused(cache: Cache, source: Path) -> None:
    with pytest.raises(StorageError, match="should have 3 bytes"):
        cache.objects.adopt(source, content=DIGEST, size=3)
    assert list(cache.objects.all()) == []
    cache.close()
    assert not [p for p in cache.location.root.rglob("*") if p.is_file()]


@pytest.mark.needs("POSIX", "Windows has no such modes")
def test_objects_are_read_only_and_copies_are_not(
    cache: Cache, source: Path, tmp_path: Path
) -> None:
    place = adopt(cache, source)
    assert not place.stat().st_mode & 0o222
    assert fetch(cache, tmp_path / "target")
    assert (tmp_path / "target").stat().st_mode & 0o200


def test_an_object_of_another_user_that_cannot_be_read(
    cache: Cache,
    source: Path,
    notices: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, opened = adopt(cache, source), os.open

    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        if path == place:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    assert not fetch(cache, tmp_path / "target")
    assert not cache.objects.check(DIGEST)
    name = f"objects/{DIGEST.hex[:2]}/{DIGEST.hex}"
    assert notices == [f"{name} cannot be read (Permission denied) and is not used"] * 2


def test_a_target_that_cannot_be_written(cache: Cache, source: Path, tmp_path: Path) -> None:
    adopt(cache, source)
    with pytest.raises(StorageError, match="cannot be copied out"):
        fetch(cache, tmp_path / "no folder" / "target")
    assert cache.objects.check(DIGEST)
