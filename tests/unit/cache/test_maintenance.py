import os
import time
from pathlib import Path

import msgspec
import pytest

from epctx.cache import maintenance
from epctx.cache.action import StoredAction, StoredFile
from epctx.cache.maintenance import Limits, check, info
from epctx.cache.store import Cache
from epctx.files import digest, identity
from epctx.files.digest import Digest

DAY = 86_400


def put(cache: Cache, name: str, *contents: bytes, age: float = 0.0) -> Digest:
    """An action that made these contents, used last `age` days ago."""
    folder = cache.location.folder.parent / "made"
    folder.mkdir(exist_ok=True)
    files = []
    for content in contents:
        content_digest = digest.of_bytes(content)
        (folder / content_digest.hex).write_bytes(content)
        files.append(StoredFile(name=content_digest.hex, size=len(content), digest=content_digest))
    key, record = digest.of_json([name]), msgspec.Raw(msgspec.json.encode([name]))
    action = StoredAction(kind="compile", record=record, result=name, files=tuple(files))
    cache.put(key, action, folder)
    used = time.time() - age * DAY
    os.utime(cache.records.path("actions", key.hex), (used, used))
    return key


def alive(cache: Cache, *keys: Digest) -> list[bool]:
    """Whether each action is still there with all its files."""
    found = [cache.find(key, str) for key in keys]
    return [a is not None and all(cache.objects.check(f.digest) for f in a.files) for a in found]


def test_without_limits_all_that_is_referred_to_stays(cache: Cache, tmp_path: Path) -> None:
    key = put(cache, "a", b"1" * 100, age=1000)
    orphan = tmp_path / "orphan"
    orphan.write_bytes(b"orphan")
    cache.objects.adopt(orphan, content=digest.of_bytes(b"orphan"), size=6)
    done = maintenance.collect(cache, keep=(), limits=Limits())
    assert (done.actions, done.objects, done.size, done.kept) == (0, 1, 6, 100)
    assert alive(cache, key) == [True]
    assert not cache.objects.check(digest.of_bytes(b"orphan"))


def test_what_lock_files_reach_stays_whatever_the_limits(cache: Cache) -> None:
    kept, gone = put(cache, "kept", b"1" * 100, age=400), put(cache, "gone", b"2", age=1)
    limits = Limits(max_age=0.0, max_size=0)
    done = maintenance.collect(cache, keep={kept.hex}, limits=limits)
    assert alive(cache, kept, gone) == [True, False]
    assert done.kept == 100


def test_beyond_a_size_what_was_used_longest_ago_goes(cache: Cache) -> None:
    keys = [put(cache, str(n), bytes([n]) * 100, age=n) for n in range(4)]
    maintenance.collect(cache, keep=(), limits=Limits(max_size=250))
    assert alive(cache, *keys) == [True, True, False, False]


def test_a_shared_object_counts_once_and_stays_for_who_needs_it(cache: Cache) -> None:
    weights = b"w" * 1000
    keys = [put(cache, str(n), weights, bytes([n]) * 10, age=n) for n in range(4)]
    done = maintenance.collect(cache, keep=(), limits=Limits(max_size=1020))
    assert alive(cache, *keys) == [True, True, False, False]
    assert (done.objects, done.kept) == (2, 1020)


def test_what_is_kept_counts_towards_the_size(cache: Cache) -> None:
    kept, other = put(cache, "kept", b"1" * 100, age=9), put(cache, "other", b"2" * 100)
    maintenance.collect(cache, keep={kept.hex}, limits=Limits(max_size=150))
    assert alive(cache, kept, other) == [True, False]


def test_a_dry_run_tells_the_same_and_removes_nothing(cache: Cache) -> None:
    keys = [put(cache, str(n), bytes([n]) * 100, age=n) for n in range(4)]
    limits = Limits(max_size=250)
    told = maintenance.collect(cache, keep=(), limits=limits, dry_run=True)
    assert alive(cache, *keys) == [True] * 4
    done = maintenance.collect(cache, keep=(), limits=limits)
    assert (told.actions, told.objects, told.size, told.kept) == (2, 2, 200, 200)
    assert (done.actions, done.objects, done.size, done.kept) == (2, 2, 200, 200)


def test_stale_memories_go(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 5)
    monkeypatch.setattr(identity, "tells", lambda path, text: True)  # /tmp may be a tmpfs
    stays, changes, goes, beside = (tmp_path / name / "f/x" for name in ("a", "b", "c", "a/f"))
    for path in (stays, changes, goes, beside):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"content")
        cache.digests.of(path)
    cache.digests.of_tree(stays.parent, [stays])
    cache.digests.flush()
    changes.write_bytes(b"other content")
    for path in (goes, beside):
        path.unlink()
    assert maintenance.collect(cache, keep=(), limits=Limits()).records == 3
    assert len(list(cache.records.names("digests"))) == 2, "of the file and of the tree"
    assert cache.digests.known(stays, identity.of_path(stays)) == digest.of_bytes(b"content")


def test_old_facts_go_with_old_actions(cache: Cache) -> None:
    for kind, age in (("pace", 40), ("groups", 40), ("groups", 10)):
        name = digest.of_bytes(f"{kind}{age}".encode()).hex
        cache.records.write(kind, name, "fact")  # type: ignore[arg-type]
        used = time.time() - age * DAY
        os.utime(cache.records.path(kind, name), (used, used))  # type: ignore[arg-type]
    assert maintenance.collect(cache, keep=(), limits=Limits()).records == 0
    assert maintenance.collect(cache, keep=(), limits=Limits(max_age=30 * DAY)).records == 2


def test_quarantine_and_locks_go(cache: Cache) -> None:
    key = put(cache, "a", b"1")
    with cache.alone_on(key, lambda: None):
        pass
    cache.records.path("actions", key.hex).write_bytes(b"garbage")
    assert cache.find(key, str) is None
    done = maintenance.collect(cache, keep=(), limits=Limits())
    assert done.leftovers >= 2
    assert not (cache.location.root / "quarantine").exists()
    assert not (cache.location.root / "locks").exists()
    assert done.objects == 1


def test_check_reads_everything(cache: Cache, tmp_path: Path, notices: list[str]) -> None:
    one, two = put(cache, "a", b"1" * 10, b"2" * 5), put(cache, "b", b"3")
    cache.records.write("groups", one.hex, "fact")
    found = check(cache)
    assert (found.objects, found.size, found.records, found.corrupt) == (3, 16, 3, ())
    for path in (
        cache.objects.path(digest.of_bytes(b"2" * 5)),
        cache.records.path("actions", two.hex),
        cache.records.path("groups", one.hex),
    ):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.unlink()
        path.write_bytes(content)
    found = check(cache)
    assert found.corrupt == (
        f"objects/{digest.of_bytes(b'2' * 5).hex}",
        f"actions/{two.hex}",
        f"groups/{one.hex}",
    )
    assert found.incomplete == 1
    assert len(notices) == 3
    again = check(cache)
    assert (again.corrupt, again.incomplete) == ((), 1)
    assert info(cache).quarantined == 3
