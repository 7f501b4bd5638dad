import json
import os
import time
from pathlib import Path

import pytest

from epctx.cache.digests import FreshDigests, RememberedDigests
from epctx.cache.location import Location
from epctx.cache.store import Cache
from epctx.files import digest, identity
from tests.kit.mapping import written_map

LATER = 5.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    return path


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all that the test does were some seconds ago, and not on a tmpfs, as /tmp may be."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + LATER)
    monkeypatch.setattr(identity, "tells", lambda path, text: True)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The streams that were hashed."""
    hashed: list[object] = []
    of_stream = digest.of_stream

    def noted(stream: digest.Stream) -> digest.Digest:
        hashed.append(stream)
        return of_stream(stream)

    monkeypatch.setattr(digest, "of_stream", noted)
    return hashed


def again(cache: Cache) -> RememberedDigests:
    """As another process would ask."""
    return Cache(cache.location, lambda text: None).digests


@pytest.mark.usefixtures("later")
def test_an_unchanged_file_is_read_once(cache: Cache, file: Path, read: list[object]) -> None:
    assert cache.digests.of(file) == digest.of_bytes(b"one")
    assert again(cache).of(file) == digest.of_bytes(b"one")
    assert again(cache).of(file) == digest.of_bytes(b"one")
    assert len(read) == 1


def test_a_file_that_changed_just_now_is_not_remembered(
    cache: Cache, file: Path, read: list[object]
) -> None:
    assert cache.digests.of(file) == digest.of_bytes(b"one")
    assert again(cache).of(file) == digest.of_bytes(b"one")
    assert len(read) == 2


def test_a_file_from_the_future_is_not_remembered(
    cache: Cache, file: Path, read: list[object]
) -> None:
    os.utime(file, (time.time() + 3600, time.time() + 3600))
    cache.digests.of(file)
    again(cache).of(file)
    assert len(read) == 2


@pytest.mark.usefixtures("later")
def test_an_edit_of_the_same_size_with_its_time_restored_is_noticed(
    cache: Cache, file: Path
) -> None:
    before = file.stat()
    cache.digests.of(file)
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert again(cache).of(file) == digest.of_bytes(b"two")


@pytest.mark.usefixtures("later")
def test_files_beside_each_other_are_one_record_which_flush_completes(
    cache: Cache, tmp_path: Path, read: list[object]
) -> None:
    files = [tmp_path / f"folder{number}/file" for number in range(3)]
    for file in files:
        file.parent.mkdir()
        file.write_bytes(b"one")
        cache.digests.of(file)
    cache.digests.flush()
    assert len(list(cache.records.names("digests"))) == 1
    assert [again(cache).of(file) for file in files] == [digest.of_bytes(b"one")] * 3
    assert len(read) == 3


@pytest.mark.usefixtures("later")
def test_another_file_in_its_place_is_noticed(cache: Cache, file: Path) -> None:
    cache.digests.of(file)
    other = file.with_name("other")
    other.write_bytes(b"two")
    before = file.stat()
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(file)
    assert again(cache).of(file) == digest.of_bytes(b"two")


@pytest.mark.needs("links")
@pytest.mark.usefixtures("later")
def test_a_link_is_followed(cache: Cache, file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(file)
    assert cache.digests.of(link) == digest.of_bytes(b"one")
    other = file.with_name("other")
    other.write_bytes(b"two")
    link.unlink()
    link.symlink_to(other)
    assert again(cache).of(link) == digest.of_bytes(b"two")


@pytest.mark.usefixtures("later")
def test_a_flipped_bit_in_the_memory_is_found(
    cache: Cache, file: Path, notices: list[str], read: list[object]
) -> None:
    cache.digests.of(file)
    (name,) = cache.records.names("digests")
    path = cache.records.path("digests", name)
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)
    asked = Cache(cache.location, notices.append)
    assert asked.digests.of(file) == digest.of_bytes(b"one")
    assert len(notices) == 1
    assert len(read) == 2


def test_a_digest_from_elsewhere_is_remembered_if_the_file_had_settled(
    cache: Cache, file: Path, read: list[object], later: None
) -> None:
    before = identity.of_path(file)
    assert before.settled
    cache.digests.remember(file, before, digest.of_bytes(b"one"))
    assert again(cache).of(file) == digest.of_bytes(b"one")
    assert read == []


def test_a_digest_from_elsewhere_is_not_remembered_if_the_file_changed_meanwhile(
    cache: Cache, file: Path, later: None
) -> None:
    before = identity.of_path(file)
    file.write_bytes(b"two")
    cache.digests.remember(file, before, digest.of_bytes(b"one"))
    assert list(cache.records.names("digests")) == []
    assert cache.digests.of(file) == digest.of_bytes(b"two")


def test_nor_if_it_had_changed_just_before(cache: Cache, file: Path) -> None:
    before = identity.of_path(file)
    cache.digests.remember(file, before, digest.of_bytes(b"one"))
    assert list(cache.records.names("digests")) == []


@pytest.mark.usefixtures("later")
def test_a_file_that_is_gone_is_not_remembered(cache: Cache, file: Path) -> None:
    before = identity.of_path(file)
    file.unlink()
    cache.digests.remember(file, before, digest.of_bytes(b"one"))
    assert list(cache.records.names("digests")) == []
    with pytest.raises(FileNotFoundError):
        cache.digests.of(file)


@pytest.mark.usefixtures("later")
def test_a_read_only_cache_uses_what_it_remembers(
    cache: Cache, file: Path, read: list[object], tmp_path: Path
) -> None:
    cache.digests.of(file)
    reader = Cache(Location(folder=cache.location.folder, readonly=True), lambda text: None)
    assert reader.digests.of(file) == digest.of_bytes(b"one")
    other = tmp_path / "other"
    other.write_bytes(b"two")
    assert reader.digests.of(other) == digest.of_bytes(b"two")
    assert len(list(cache.records.names("digests"))) == 1


@pytest.mark.usefixtures("later")
def test_fresh_digests_believe_no_memory(cache: Cache, file: Path, read: list[object]) -> None:
    cache.digests.remember(file, identity.of_path(file), digest.of_bytes(b"a lie"))
    fresh = FreshDigests()
    assert fresh.of(file) == digest.of_bytes(b"one")
    assert fresh.of(file) == digest.of_bytes(b"one")
    assert len(read) == 1
    file.write_bytes(b"other size")
    assert fresh.of(file) == digest.of_bytes(b"other size")


@pytest.mark.parametrize(
    "kind", ["folder", pytest.param("fifo", marks=pytest.mark.needs("POSIX", "has no FIFOs"))]
)
def test_only_regular_files(cache: Cache, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "special"
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(OSError, match=r"is not a regular file|is a folder"):
        cache.digests.of(path)


def test_a_file_that_is_being_written_has_no_digest(
    cache: Cache, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_stream = digest.of_stream

    def written_meanwhile(stream: digest.Stream) -> digest.Digest:
        with file.open("ab") as other:
            other.write(b"more")
        return of_stream(stream)

    monkeypatch.setattr(digest, "of_stream", written_meanwhile)
    with pytest.raises(OSError, match="keeps writing"):
        cache.digests.of(file)


@pytest.mark.usefixtures("later")
@pytest.mark.needs("file systems that tell of each write")
def test_a_write_through_a_map_that_was_there_is_noticed(cache: Cache, file: Path) -> None:
    with written_map(file) as mapped:
        assert cache.digests.of(file) == digest.of_bytes(b"one")
        tree = cache.digests.of_tree(file.parent, [file])
        mapped[:] = b"two"
        assert again(cache).of(file) == digest.of_bytes(b"two")
        assert again(cache).of_tree(file.parent, [file]) != tree


@pytest.mark.usefixtures("later")
def test_where_writes_do_not_show_each_file_is_read_anew(
    cache: Cache, file: Path, read: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "tells", lambda path, text: False)
    fresh = FreshDigests()
    for digests in (cache.digests, again(cache), fresh, fresh):
        digests.of(file)
        digests.of_tree(file.parent, [file])
    cache.digests.remember(file, identity.of_path(file), digest.of_bytes(b"one"))
    assert len(read) == 8
    assert list(cache.records.names("digests")) == []


@pytest.mark.usefixtures("later")
def test_what_a_version_remembered_that_did_not_ask_for_such_writes_is_not_believed(
    cache: Cache, file: Path, read: list[object]
) -> None:
    cache.digests.of(file)
    (name,) = cache.records.names("digests")
    path = cache.records.path("digests", name)
    record = json.loads(path.read_bytes()[65:])
    record["state"], record["digest"] = next(iter(record.pop("files").values()))
    cache.records.write("digests", name, record)
    again(cache).of(file)
    assert len(read) == 2


def test_a_tree_is_its_names_and_contents(tmp_path: Path) -> None:
    def tree(**contents: str) -> digest.Digest:
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        root.mkdir()
        for name, content in contents.items():
            (root / name).write_text(content)
        return FreshDigests().of_tree(root, list(root.iterdir()))

    assert tree(a="1", b="2") == tree(b="2", a="1")
    assert len({tree(a="1", b="2"), tree(a="2", b="1"), tree(a="1"), tree(a="1", c="2")}) == 4


@pytest.mark.usefixtures("later")
def test_an_unchanged_tree_is_read_once(cache: Cache, tmp_path: Path, read: list[object]) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    files = [root / name for name in "abc"]
    for file in files:
        file.write_text(file.name)
    before = cache.digests.of_tree(root, files)
    assert before == FreshDigests().of_tree(root, files)
    read.clear()
    assert again(cache).of_tree(root, reversed(files)) == before
    assert read == []
    assert again(cache).of_tree(root, files[:2]) != before
    files[1].write_text("x")
    assert again(cache).of_tree(root, files) == FreshDigests().of_tree(root, files) != before


def test_a_tree_that_changed_just_now_is_not_remembered(
    cache: Cache, tmp_path: Path, read: list[object]
) -> None:
    (tmp_path / "a").write_text("a")
    cache.digests.of_tree(tmp_path, [tmp_path / "a"])
    again(cache).of_tree(tmp_path, [tmp_path / "a"])
    assert len(read) == 2
