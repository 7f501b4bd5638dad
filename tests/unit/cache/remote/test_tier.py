"""Two machines with a store between them, which does what it should, or does not."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from epctx.cache.action import Origin, StoredAction
from epctx.cache.location import Location
from epctx.cache.remote import signing
from epctx.cache.remote.signing import SigningKey, Voucher
from epctx.cache.remote.tier import Tier, object_name, record_name
from epctx.cache.store import Cache
from epctx.errors import StorageError
from epctx.signing import dsse
from epctx.signing.dsse import Signature
from epctx.transfer.attempts import StoreError
from tests.kit.stores import FaultyStore, failing
from tests.kit.vouching import KEY, action, key_pair, keyed, machine, stored, voucher

CONTENTS = {"model": b"model" * 100_000, "binary": b"binary" * 100_000}


@dataclass
class Between:
    """A store, a machine that has built and pushed, and what others may be like."""

    folder: Path
    store: FaultyStore
    private: Path
    line: str
    made: StoredAction[msgspec.Raw]
    told: list[str] = field(default_factory=list)

    @property
    def says(self) -> Voucher:
        """Who trusts and does not sign."""
        return voucher(None, self.line)

    def reader(self, **options: bool) -> Cache:
        """Another machine."""
        return machine(self.folder, self.store, self.says, self.told, **options)

    def writer(self) -> Cache:
        return machine(self.folder, self.store, voucher(self.private, self.line), self.told)

    def change(self, name: str, content: bytes) -> None:
        path = self.store.folder / name
        assert path.exists()
        path.write_bytes(content)

    def resign(self, changed: StoredAction[msgspec.Raw], key: SigningKey) -> None:
        """Put a record there that says something else, signed by somebody."""
        signed = replace(changed, signatures=(key.sign(KEY, changed),))
        self.change(record_name(KEY), signing.seal(KEY, signed))


@pytest.fixture
def between(tmp_path: Path) -> Between:
    private, line = key_pair(tmp_path, "ci-1")
    store = FaultyStore(tmp_path / "store")
    files = stored(tmp_path / "made", **CONTENTS)
    found = Between(tmp_path, store, private, line, action(files))
    writer = found.writer()
    writer.put(KEY, found.made, tmp_path / "made")
    writer.finish(lambda: None)
    assert found.told == []
    store.calls.clear()
    return found


def taken(cache: Cache, folder: Path) -> bool:
    """Whether the action is found, and comes right."""
    found = cache.find(KEY, msgspec.Raw)
    if found is None or not cache.fetch(found, folder):
        assert not folder.exists() or not any(folder.iterdir())
        return False
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENTS
    return True


def test_what_one_machine_made_another_takes(between: Between, tmp_path: Path) -> None:
    reader = between.reader()
    assert taken(reader, tmp_path / "out")
    assert reader.origin(KEY) == Origin(remote=between.store.url, signer="ci-1")
    assert reader.remote is not None
    report = reader.remote.report
    assert report is not None
    size = sum(map(len, CONTENTS.values()))
    assert (report.records, report.objects, report.fetched, report.refused) == (1, 2, size, {})
    assert between.told == []


def test_files_come_when_they_are_needed(between: Between) -> None:
    reader = between.reader()
    found = reader.find(KEY, msgspec.Raw)
    assert found is not None
    assert not any(map(reader.holds, found.files))
    assert between.store.calls == [("read", record_name(KEY))]


def test_what_came_is_asked_for_no_more(between: Between, tmp_path: Path) -> None:
    reader = between.reader()
    assert taken(reader, tmp_path / "out")
    between.store.calls.clear()
    assert taken(reader, tmp_path / "again")
    again = Cache(reader.location, between.told.append, voucher=between.says)
    assert taken(again, tmp_path / "third")
    assert again.origin(KEY) == Origin(signer="ci-1")
    assert between.store.calls == []


def again_at(between: Between, cache: Cache) -> Cache:
    """The same machine later, with the shared cache."""
    tier = Tier("test://", between.says, between.told.append, lambda url: between.store)
    return Cache(cache.location, between.told.append, voucher=between.says, remote=tier)


def test_what_was_here_is_not_said_to_come_from_the_shared_cache(
    between: Between, tmp_path: Path
) -> None:
    first = between.reader()
    assert taken(first, tmp_path / "out")
    later = again_at(between, first)
    between.store.calls.clear()
    assert taken(later, tmp_path / "again")
    assert later.origin(KEY) == Origin(signer="ci-1")
    assert between.store.calls == []


def test_a_file_that_is_lost_here_comes_again_and_that_is_said(
    between: Between, tmp_path: Path
) -> None:
    first = between.reader()
    assert taken(first, tmp_path / "out")
    later = again_at(between, first)
    later.objects.path(between.made.files[0].digest).unlink()
    assert taken(later, tmp_path / "again")
    assert later.origin(KEY) == Origin(remote=between.store.url, signer="ci-1")


def test_a_file_that_is_corrupt_here_comes_again(between: Between, tmp_path: Path) -> None:
    first = between.reader()
    assert taken(first, tmp_path / "out")
    later = again_at(between, first)
    damaged = later.objects.path(between.made.files[0].digest)
    damaged.chmod(0o644)
    damaged.write_bytes(flipped(damaged.read_bytes()))
    between.store.calls.clear()
    assert taken(later, tmp_path / "again"), "its bytes are those of the shared cache"
    assert between.store.calls == [("stream", object_name(between.made.files[0].digest))]


def test_other_bytes_for_what_is_there_are_told_and_what_was_first_stays(
    between: Between, tmp_path: Path
) -> None:
    """Two machines looked for it, found nothing, and both compiled it."""
    record = between.store.folder / record_name(KEY)
    first = record.read_bytes()
    record.unlink()
    same, other = between.writer(), between.writer()
    for cache in (same, other):
        assert cache.find(KEY, msgspec.Raw) is None
    record.write_bytes(first)
    same.put(KEY, between.made, tmp_path / "made")
    same.finish(lambda: None)
    assert between.told == []
    files = stored(tmp_path / "other", **CONTENTS | {"binary": b"other"})
    other.put(KEY, action(files), tmp_path / "other")
    other.finish(lambda: None)
    (line,) = between.told
    assert "does not write the same bytes each time: ci-1" in line
    assert record.read_bytes() == first
    assert other.remote is not None and other.remote.report is not None
    assert other.remote.report.not_pushed == 1


def test_without_a_key_nothing_is_pushed(between: Between) -> None:
    reader, (key, record) = between.reader(), keyed(2)
    reader.put(key, replace(action(), record=record), between.folder)
    reader.finish(lambda: None)
    assert between.store.calls == []


def test_without_trust_nothing_is_used_and_that_is_said_once(
    between: Between, tmp_path: Path
) -> None:
    reader = machine(tmp_path, between.store, voucher(None), between.told)
    assert not taken(reader, tmp_path / "out")
    assert not taken(reader, tmp_path / "out")
    assert between.store.calls == []
    assert len(between.told) == 1
    assert "EPCTX_CACHE_TRUST" in between.told[0]


def test_what_came_is_used_under_the_trust_of_the_day(between: Between, tmp_path: Path) -> None:
    reader = between.reader()
    assert taken(reader, tmp_path / "out")
    for said in (None, voucher(None), voucher(None, key_pair(tmp_path / "o", "ci-2")[1])):
        later = Cache(reader.location, between.told.append, voucher=said)
        assert later.find(KEY, msgspec.Raw) is None
    assert between.told == [between.told[0]] * 3
    assert taken(Cache(reader.location, print, voucher=between.says), tmp_path / "again")


def test_a_release_takes_only_what_is_signed(between: Between, tmp_path: Path) -> None:
    reader = between.reader(signed=True)
    plain = Cache(reader.location, print)
    plain.put(KEY, action(result=b'"made here"'), tmp_path)
    found = reader.find(KEY, msgspec.Raw)
    assert found is not None
    assert found.result == between.made.result  # not what lies in the local cache
    assert reader.signers == {KEY: "ci-1"}
    key, record = keyed(3)
    plain.put(key, replace(action(), record=record), tmp_path)
    assert reader.find(key, msgspec.Raw) is None
    reader.put(key, replace(action(), record=record), tmp_path)
    assert reader.find(key, msgspec.Raw) is not None  # it has made it itself
    assert key not in reader.signers


def test_a_release_takes_what_was_signed_here(between: Between, tmp_path: Path) -> None:
    writer = between.writer()
    key, record = keyed(4)
    writer.put(key, replace(action(), record=record), tmp_path)
    later = Cache(writer.location, print, voucher=between.says, signed=True)
    assert later.find(key, msgspec.Raw) is not None
    assert later.signers == {key: "ci-1"}


def test_a_read_only_cache_takes_and_gives(between: Between, tmp_path: Path) -> None:
    place = Location(folder=tmp_path / "none", readonly=True)
    said = voucher(between.private, between.line)
    tier = Tier("test://", said, between.told.append, lambda url: between.store)
    cache = Cache(place, between.told.append, voucher=said, remote=tier)
    assert taken(cache, tmp_path / "out")
    key, record = keyed(5)
    files = stored(tmp_path / "more", other=b"other")
    cache.put(key, replace(action(files), record=record), tmp_path / "more")
    assert (between.store.folder / object_name(files[0].digest)).read_bytes() == b"other"
    assert (between.store.folder / record_name(key)).exists()
    assert not place.folder.exists()


def flipped(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:]


def spoilt(change: Callable[[bytes], bytes]) -> Callable[[Between], None]:
    def spoil(between: Between) -> None:
        between.change(object_name(between.made.files[0].digest), change(CONTENTS["model"]))

    return spoil


def other_key(between: Between) -> SigningKey:
    private, _ = key_pair(between.folder / "other", "other-1")
    return SigningKey.parse(private.read_bytes(), "test")


def own_key(between: Between) -> SigningKey:
    return SigningKey.parse(between.private.read_bytes(), "test")


def unsigned(between: Between) -> None:
    sealed = signing.seal(KEY, between.made)
    between.change(record_name(KEY), sealed)


def replayed(between: Between) -> None:
    """A record of another key, signed, in this one's place."""
    key, record = keyed(9)
    other = replace(between.made, record=record)
    signed = replace(other, signatures=(own_key(between).sign(key, other),))
    between.change(record_name(KEY), signing.seal(key, signed))


def resealed(between: Between) -> None:
    """The signature of one result on another."""
    signature = own_key(between).sign(KEY, between.made)
    forged = replace(action(between.made.files, b'"forged"'), signatures=(signature,))
    between.change(record_name(KEY), signing.seal(KEY, forged))


def second_bad(between: Between) -> None:
    good = own_key(between).sign(KEY, between.made)
    bad = Signature(keyid="ci-1", sig="A" * 86 + "==")
    sealed = signing.seal(KEY, replace(between.made, signatures=(good, bad)))
    between.change(record_name(KEY), sealed)


def named(*names: str) -> Callable[[Between], None]:
    """Names that a trusted signer would never write."""

    def spoil(between: Between) -> None:
        files = [replace(between.made.files[0], name=name) for name in names]
        between.resign(action(tuple(files)), own_key(between))

    return spoil


def record(content: bytes) -> Callable[[Between], None]:
    return lambda between: between.change(record_name(KEY), content)


def version(between: Between) -> None:
    path = between.store.folder / record_name(KEY)
    sealed = msgspec.json.decode(path.read_bytes())
    content = dsse.decoded(sealed["payload"]).replace(b'"version":1', b'"version":0')
    import base64

    sealed["payload"] = base64.b64encode(content).decode()
    path.write_bytes(msgspec.json.encode(sealed))


ATTACKS: dict[str, Callable[[Between], None]] = {
    "an object with a flipped byte": spoilt(flipped),
    "an object that is short": spoilt(lambda content: content[:-1]),
    "an object that is long": spoilt(lambda content: content + b"x"),
    "an object that is empty": spoilt(lambda content: b""),
    "no object": lambda b: (b.store.folder / object_name(b.made.files[1].digest)).unlink(),
    "a record that is empty": record(b""),
    "a record that is something else": record(b"x" * 10_000),
    "a record that is deep": record(b"[" * 100_000),
    "a record that is unsigned": unsigned,
    "a record of somebody who is not trusted": lambda b: b.resign(b.made, other_key(b)),
    "a record of another key": replayed,
    "a signature over other bytes": resealed,
    "two signatures, one bad": second_bad,
    "an older version of the form": version,
    "a file outside": named("../../outside"),
    "an absolute file": named("/tmp/outside"),
    "a file on a drive": named("C:outside"),
    "a file with a backslash": named("..\\outside"),
    "two files of one name": named("a", "A"),
    "a million files": named(*map(str, range(100_000))),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_what_cannot_be_believed_is_missing_and_said_in_a_line(
    attack: Callable[[Between], None], between: Between, tmp_path: Path
) -> None:
    attack(between)
    reader = between.reader()
    assert not taken(reader, tmp_path / "out")
    assert not taken(reader, tmp_path / "out")
    assert len(between.told) == (attack is not ATTACKS["no object"])
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_whoever_signs_mends_it(
    attack: Callable[[Between], None], between: Between, tmp_path: Path
) -> None:
    attack(between)
    writer = between.writer()
    assert not taken(writer, tmp_path / "out")
    writer.put(KEY, between.made, tmp_path / "made")
    writer.finish(lambda: None)
    assert taken(between.reader(), tmp_path / "right")


def test_a_store_that_fails_is_told_once_and_left_alone(between: Between, tmp_path: Path) -> None:
    between.store.faults["read"] = failing()
    reader = between.reader()
    for number in range(10):
        assert reader.find(keyed(number)[0], msgspec.Raw) is None
    assert len(between.told) == 1
    assert "it answers 500" in between.told[0]
    between.store.faults.clear()
    assert reader.find(KEY, msgspec.Raw) is None  # for the rest of this command


def test_a_store_that_fails_for_good_is_asked_once(between: Between) -> None:
    asked: list[str] = []

    def forbid(name: str) -> None:
        asked.append(name)
        raise StoreError("it forbids it", lasting=True)

    between.store.faults["read"] = forbid
    reader = between.reader()
    for number in range(10):
        assert reader.find(keyed(number)[0], msgspec.Raw) is None
    assert len(asked) == 1
    assert len(between.told) == 1


def test_a_store_that_never_answers_is_not_waited_for(
    between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_REMOTE_ANSWER_SECONDS", "1")
    gate = threading.Event()
    between.store.faults["read"] = lambda name: gate.wait(60)
    reader = between.reader()
    for number in range(3):
        assert reader.find(keyed(number)[0], msgspec.Raw) is None
    assert len(between.told) == 1
    gate.set()


def test_a_store_whose_every_answer_is_slow_is_left_alone(
    between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epctx.cache.remote.tier._PATIENCE", 0.1)
    monkeypatch.setattr("epctx.cache.remote.tier._DELAY", 0.02)
    between.store.faults["read"] = lambda name: time.sleep(0.05)
    reader = between.reader()
    for number in range(10):
        assert reader.find(keyed(number)[0], msgspec.Raw) is None
    assert len(between.store.calls) <= 4
    assert len(between.told) == 1


def test_an_endless_body_is_cut_off(
    between: Between, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = 0

    def endless(name: str, size: int) -> Iterator[bytes]:
        nonlocal sent
        while True:
            sent += 1 << 16
            yield b"x" * (1 << 16)

    monkeypatch.setattr(between.store, "stream", endless)
    assert not taken(between.reader(), tmp_path / "out")
    assert sent <= 2 * (max(map(len, CONTENTS.values())) + (2 << 16))


def test_a_wait_for_files_ends_with_the_build(between: Between, tmp_path: Path) -> None:
    gate = threading.Event()
    between.store.faults["stream"] = lambda name: gate.wait(60)
    reader = between.reader()
    found = reader.find(KEY, msgspec.Raw)
    assert found is not None

    def stop() -> None:
        raise StorageError("stopped", remedy="none")

    with pytest.raises(StorageError, match="stopped"):
        reader.fetch(found, tmp_path / "out", stop)
    gate.set()


def test_what_could_not_be_pushed_is_told(between: Between, tmp_path: Path) -> None:
    between.store.faults["write"] = failing("it is full")
    writer = between.writer()
    for number in range(5):
        key, of = keyed(number)
        writer.put(key, replace(action(), record=of), tmp_path)
    writer.finish(lambda: None)
    assert writer.remote is not None
    report = writer.remote.report
    assert report is not None
    assert (report.pushed, report.not_pushed) == (0, 5)
    assert len(between.told) == 1
    assert "it is full" in between.told[0]


def test_a_push_is_not_waited_for_longer_than_is_said(
    between: Between, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_PUSH_SECONDS", "1")
    gate = threading.Event()
    between.store.faults["write"] = lambda name: gate.wait(60)
    writer = between.writer()
    writer.put(KEY, between.made, tmp_path / "made")
    writer.finish(lambda: None)
    assert writer.remote is not None
    report = writer.remote.report
    assert report is not None
    assert report.not_pushed == 1
    assert len(between.told) == 1
    gate.set()


def test_nothing_is_opened_before_it_is_needed(tmp_path: Path) -> None:
    def opened(url: str) -> FaultyStore:
        raise AssertionError(url)

    said = Voucher(None, {"EPCTX_CACHE_SIGNING_KEY": "/no/such/key", "EPCTX_CACHE_TRUST": "/no"})
    tier = Tier("s3://user:secret@bucket", said, print, opened)
    cache = Cache(Location(folder=tmp_path / "cache"), print, voucher=said, remote=tier)
    assert tier.report is None
    assert cache.signs
    with pytest.raises(AssertionError):
        _ = tier.store
