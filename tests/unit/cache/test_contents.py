"""Objects, records, temporary files and the quarantine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctx.cache.contents import Temporary, move_into_place
from epctx.cache.location import Location
from epctx.cache.store import Cache
from epctx.errors import StorageError
from epctx.files import digest

KILLED = """
import os, sys
from pathlib import Path
from epctx.cache.location import Location
from epctx.cache.contents import Temporary

temporary = Temporary(Location(folder=Path(sys.argv[1])))
path = temporary.path()
path.write_bytes(b"half")
print(path, flush=True)
os.kill(os.getpid(), 9) if os.name != "nt" else os._exit(9)
"""


def entries(location: Location) -> list[str]:
    return sorted(p.name for p in (location.root / "temporary").rglob("*"))


def test_what_a_killed_process_left_is_swept_and_a_living_ones_is_not(location: Location) -> None:
    living = Temporary(location)
    mine = living.path()
    mine.write_bytes(b"mine")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(location.folder)], capture_output=True, text=True
    )
    left = Path(killed.stdout.strip())
    assert left.read_bytes() == b"half"
    third = Temporary(location)
    third.path()
    assert not left.parent.exists()
    assert mine.read_bytes() == b"mine"
    third.close()
    living.close()
    assert entries(location) == []


ENDED = """
import sys
from pathlib import Path
from epctx.cache.location import Location
from epctx.cache.contents import Temporary

kept = Temporary(Location(folder=Path(sys.argv[1])))
kept.path().write_bytes(b"half")
"""


def test_a_process_that_ends_and_an_object_that_is_gone_leave_nothing(location: Location) -> None:
    subprocess.run([sys.executable, "-c", ENDED, str(location.folder)], check=True)
    assert entries(location) == []
    gone = Temporary(location)
    gone.path().write_bytes(b"half")
    del gone
    assert entries(location) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(b"one")
    (tmp_path / "ab").write_text("a file")
    with pytest.raises(StorageError, match="cannot be written"):
        move_into_place(tmp_path / "new", tmp_path / "ab" / "abc")


def test_a_folder_that_cannot_be_made(location: Location) -> None:
    location.make()
    (location.root / "temporary").write_text("a file")
    with pytest.raises(StorageError, match="cannot be written"):
        Temporary(location).path()


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
    with pytest.raises(StorageError, match="does not have 3 bytes"):
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


NAME = "ab" + "0" * 62
OTHER = "cd" + "0" * 62


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
