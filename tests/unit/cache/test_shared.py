import os
import time
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from epctx.cache import maintenance, shared
from epctx.cache.remote.tier import Tier, object_name, record_name
from epctx.cache.store import Cache
from epctx.errors import StorageError
from epctx.files import digest
from epctx.files.digest import Digest
from tests.kit.stores import FaultyStore, failing
from tests.kit.vouching import action, key_pair, machine, stored, voucher

DAY = 86_400


class Chain:
    """A model that was optimized, compiled and verified; `loose` has to do with none of it."""

    def __init__(self, cache: Cache, folder: Path) -> None:
        self.cache = cache
        optimized = digest.of_bytes(b"optimized graph")
        self.optimize = self._put(folder, "optimize", {"of": "m"}, {"digest": str(optimized)}, "o")
        self.compile = self._put(folder, "compile", {"models": [str(optimized)]}, {}, "c")
        self.verify = self._put(folder, "verify", {"compiled": str(self.compile)}, {}, "")
        self.whole = self._put(folder, "verify", {"sessions": [str(self.verify)]}, {}, "")
        self.loose = self._put(folder, "compile", {"models": []}, {}, "l")
        self.all = {self.optimize, self.compile, self.verify, self.whole, self.loose}

    def _put(self, folder: Path, kind: str, record: object, result: object, file: str) -> Digest:
        files = stored(folder, **({file: file.encode() * 1000} if file else {}))
        made = replace(
            action(files, msgspec.json.encode(result)),
            kind=kind,
            record=msgspec.Raw(msgspec.json.encode(record)),
        )
        key = digest.of_json(record)
        self.cache.put(key, made, folder)
        return key


class Between:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[str] = []
        private, line = key_pair(folder, "ci-1")
        self.store = FaultyStore(folder / "store")
        self.writer = machine(folder, self.store, voucher(None, line), self.told)
        self.chain = Chain(self.writer, folder / "made")  # before anybody signs
        self.signer = Cache(self.writer.location, print, voucher=voucher(private, line))
        self.reader = machine(folder, self.store, voucher(None, line), self.told)

    @property
    def tier(self) -> Tier:
        assert self.writer.remote is not None
        return self.writer.remote

    def push(self, names: set[str] | None = None) -> shared.Moved:
        return shared.push(self.signer, self.tier, names)

    def pull(self, names: set[str] | None = None) -> shared.Moved:
        assert self.reader.remote is not None
        return shared.pull(self.reader, self.reader.remote, names)

    def there(self) -> set[Digest]:
        return {key for key in self.chain.all if (self.store.folder / record_name(key)).exists()}

    def aged(self, seconds: float, *names: str) -> None:
        then = time.time() - seconds
        for path in self.store.folder.rglob("*"):
            if path.is_file() and (not names or path.name in names):
                os.utime(path, (then, then))


@pytest.fixture
def between(tmp_path: Path) -> Between:
    return Between(tmp_path)


def test_all_that_is_here_goes_there_and_comes_back(between: Between) -> None:
    moved = between.push()
    assert (moved.actions, moved.objects, moved.size, moved.failed) == (5, 3, 3000, ())
    assert between.there() == between.chain.all
    assert between.push().actions == 5  # which are there
    pulled = between.pull()
    assert (pulled.actions, pulled.objects, pulled.size) == (5, 3, 3000)
    assert set(shared.local(between.reader)) == {key.hex for key in between.chain.all}
    assert maintenance.check(between.reader).elsewhere == 0


def test_what_a_lock_reaches_goes_with_what_belongs_to_it(between: Between) -> None:
    chain = between.chain
    moved = between.push({chain.compile.hex})
    assert moved.actions == 4
    assert between.there() == chain.all - {chain.loose}
    between.push()
    assert between.pull({chain.compile.hex}).actions == 4


def test_what_has_lost_a_file_stays_here(between: Between) -> None:
    (file,) = shared.local(between.writer)[between.chain.loose.hex].files
    between.writer.objects.path(file.digest).unlink()
    moved = between.push()
    assert moved.actions == 4
    assert len(moved.failed) == 1
    assert between.chain.loose.hex in moved.failed[0]


def test_what_came_from_there_is_not_pushed_as_ones_own(between: Between) -> None:
    between.push()
    between.pull()
    private, line = key_pair(between.folder / "o", "other-1")
    again = Cache(between.reader.location, print, voucher=voucher(private, line))
    assert shared.push(again, between.tier, None).actions == 0


def test_what_is_not_to_be_believed_is_not_pulled(between: Between) -> None:
    between.push()
    path = between.store.folder / record_name(between.chain.loose)
    path.write_bytes(path.read_bytes().replace(b"ci-1", b"ci-2"))
    pulled = between.pull()
    assert pulled.actions == 4
    assert len(pulled.failed) == 1
    assert len(between.told) == 1


def test_lists_say_who_signed_what(between: Between) -> None:
    between.push()
    (between.store.folder / record_name(between.chain.loose)).write_bytes(b"x")
    found = {each.key: each for each in shared.ls_remote(between.store)}
    assert found[between.chain.compile.hex].signers == ("ci-1",)
    assert found[between.chain.compile.hex].size == 1000
    assert found[between.chain.loose.hex].kind is None
    assert {each.key for each in shared.ls(between.writer)} == {k.hex for k in between.chain.all}


def test_gc_removes_what_is_old_and_not_kept(between: Between) -> None:
    between.push()
    chain = between.chain
    between.aged(10 * DAY)
    keep = {chain.compile.hex}
    planned = shared.collect(between.store, keep=keep, max_age=5 * DAY, dry_run=True)
    assert (planned.actions, planned.objects, planned.size, planned.kept) == (1, 1, 1000, 2000)
    assert between.there() == chain.all
    done = shared.collect(between.store, keep=keep, max_age=5 * DAY)
    assert replace(done, dry_run=True) == planned
    assert between.there() == chain.all - {chain.loose}
    assert between.pull().actions == 4


def test_gc_keeps_what_a_younger_record_refers_to(between: Between) -> None:
    between.push()
    between.aged(10 * DAY)
    between.aged(0, *(key.hex for key in between.chain.all))
    done = shared.collect(between.store, keep=(), max_age=5 * DAY)
    assert (done.actions, done.objects) == (0, 0)


def test_gc_keeps_an_object_whose_record_may_be_on_its_way(between: Between) -> None:
    between.push()
    for key in between.chain.all:
        (between.store.folder / record_name(key)).unlink()
    assert shared.collect(between.store, keep=(), max_age=0.0).objects == 0
    between.aged(2 * DAY)
    assert shared.collect(between.store, keep=(), max_age=None).objects == 3


def test_gc_without_an_age_removes_what_nobody_can_read(between: Between) -> None:
    between.push()
    path = between.store.folder / record_name(between.chain.loose)
    path.write_bytes(b"x")
    between.aged(2 * DAY)
    done = shared.collect(between.store, keep=(), max_age=None)
    assert (done.actions, done.objects) == (1, 1)
    assert between.there() == between.chain.all - {between.chain.loose}


def test_gc_leaves_what_epctx_did_not_put_there(between: Between) -> None:
    between.push()
    for name in ("v1/actions/readme", f"v1/objects/{'a' * 63}", "v1/objects/../x", "other"):
        path = between.store.folder / name
        path.write_bytes(b"x")
    between.aged(10 * DAY)
    shared.collect(between.store, keep=(), max_age=0.0)
    left = {path.name for path in between.store.folder.rglob("*") if path.is_file()}
    assert left == {"readme", "a" * 63, "x", "other"}


def test_gc_removes_nothing_unless_it_could_read_everything(between: Between) -> None:
    between.push()
    between.aged(10 * DAY)
    between.store.faults["read"] = failing()
    with pytest.raises(StorageError, match="it answers 500"):
        shared.collect(between.store, keep=(), max_age=0.0)
    assert between.there() == between.chain.all


def test_a_hostile_record_breaks_nothing(between: Between) -> None:
    record = {"compiled": 1, "models": {"x": ["blake3:" + "a" * 64]}}
    key = digest.of_json(record)
    made = replace(action(), record=msgspec.Raw(msgspec.json.encode(record)))
    between.writer.put(key, made, between.folder)
    between.push()
    assert shared.collect(between.store, keep={key.hex}, max_age=0.0).actions == 5
    assert between.store.size(record_name(key)) is not None
    assert between.store.size(object_name(digest.of_bytes(b"l" * 1000))) is not None
