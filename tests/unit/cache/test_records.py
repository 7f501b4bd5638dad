import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctx.cache.location import Location
from epctx.cache.store import Cache
from epctx.errors import StorageError

NAME = "ab" + "0" * 62
OTHER = "cd" + "0" * 62


def test_a_record_is_read_as_it_was_written(cache: Cache) -> None:
    cache.records.write("groups", NAME, {"a": ["1", "ü"]})
    assert cache.records.read("groups", NAME, dict[str, list[str]]) == {"a": ["1", "ü"]}
    assert list(cache.records.names("groups")) == [NAME]


def test_what_is_not_there_is_none(cache: Cache, notices: list[str]) -> None:
    assert cache.records.read("groups", NAME, dict[str, int]) is None
    assert list(cache.records.names("groups")) == []
    assert notices == []


def test_a_later_record_replaces_it(cache: Cache) -> None:
    cache.records.write("groups", NAME, {"a": 1})
    cache.records.write("groups", NAME, {"a": 2})
    assert cache.records.read("groups", NAME, dict[str, int]) == {"a": 2}


@pytest.mark.needs("POSIX", "modes are POSIX's")
@pytest.mark.parametrize(
    ("folder", "record"), [(0o700, 0o600), (0o755, 0o600), (0o2770, 0o640), (0o777, 0o644)]
)
def test_a_record_is_of_those_who_may_write_to_the_folder(
    cache: Cache, folder: int, record: int
) -> None:
    before = os.umask(0o022)
    try:
        cache.location.make()
        cache.location.root.chmod(folder)
        cache.records.write("groups", NAME, {"a": 1})
        assert cache.records.path("groups", NAME).stat().st_mode & 0o777 == record
    finally:
        os.umask(before)


@settings(deadline=None, max_examples=60)
@given(position=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found_and_told(
    position: int, bit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    notices: list[str] = []
    cache = Cache(Location(folder=tmp_path_factory.mktemp("c")), notices.append)
    cache.records.write("actions", NAME, {"files": ["a", "b"], "n": 17})
    path = cache.records.path("actions", NAME)
    content = bytearray(path.read_bytes())
    position %= len(content)
    content[position] ^= 1 << bit
    path.write_bytes(content)
    if position == 64:  # the line break after the digest, which says nothing
        return
    assert cache.records.read("actions", NAME, msgspec.Raw) is None
    assert notices == [f"actions/ab/{NAME} is corrupt; set aside, it will be made again"]
    assert not path.exists()
    assert len(list((cache.location.root / "quarantine").iterdir())) == 1


@pytest.mark.parametrize("length", [0, 1, 64, 65, 70])
def test_a_torn_record_is_found(cache: Cache, notices: list[str], length: int) -> None:
    cache.records.write("actions", NAME, {"n": 17})
    path = cache.records.path("actions", NAME)
    path.write_bytes(path.read_bytes()[:length])
    assert cache.records.read("actions", NAME, dict[str, int]) is None
    assert len(notices) == 1


def test_a_record_under_another_name_or_kind_is_not_believed(
    cache: Cache, notices: list[str]
) -> None:
    cache.records.write("actions", NAME, {"n": 1})
    content = cache.records.path("actions", NAME).read_bytes()
    for place in (cache.records.path("actions", OTHER), cache.records.path("groups", NAME)):
        place.parent.mkdir(parents=True)
        place.write_bytes(content)
    assert cache.records.read("actions", OTHER, dict[str, int]) is None
    assert cache.records.read("groups", NAME, dict[str, int]) is None
    assert len(notices) == 2


def test_a_record_of_another_form_is_none_and_no_damage(cache: Cache, notices: list[str]) -> None:
    cache.records.write("groups", NAME, {"a": "text"})
    assert cache.records.read("groups", NAME, dict[str, int]) is None
    assert notices == []
    assert cache.records.path("groups", NAME).exists()


def test_a_read_only_cache_is_not_written(cache: Cache, notices: list[str]) -> None:
    cache.records.write("groups", NAME, {"a": 1})
    cache.close()
    before = sorted(p for p in cache.location.folder.rglob("*"))
    path = cache.records.path("groups", NAME)
    path.write_bytes(b"x" + path.read_bytes()[1:])
    reader = Cache(Location(folder=cache.location.folder, readonly=True), notices.append)
    reader.records.write("groups", OTHER, {"a": 1})
    assert reader.records.read("groups", NAME, dict[str, int]) is None
    assert "read-only" in notices[0]
    assert sorted(p for p in cache.location.folder.rglob("*")) == before


def test_a_full_disk_is_a_storage_error(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, flags: int, mode: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(StorageError, match="No space left") as caught:
        cache.records.write("groups", NAME, {})
    assert "--no-cache" in caught.value.remedy
