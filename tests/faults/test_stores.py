"""Faults of stores: each ends in time with the right bytes, with none, or in words without secrets.

The rows are those below for each kind of store; what is read is compared, as the cache hashes it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from epctx.cache.remote import store as stores
from epctx.cache.remote.open import open_store
from epctx.cache.remote.store import Store
from epctx.files import digest
from epctx.transfer.attempts import StoreError
from tests.kit import store_proxy as proxies
from tests.kit.store_proxy import ALL, WRITES, Answer, Fault, Handler, Proxy, status
from tests.kit.store_servers import KINDS, SECRETS, Servers

RIGHT, ABSENT, ERROR, LASTING, REFUSED = "right", "absent", "error", "lasting", "another digest"
MEMORY: Final = 100 << 20
CONTENT: Final = bytes(range(251)) * 64
NAME: Final = f"v1/objects/{digest.of_bytes(CONTENT).hex}"
RECORD: Final = f"v1/actions/{'a' * 64}"
_AGAIN: Final = ("Retry-After", "1")
_SOON: Final = ("Retry-After", "0")
_LATE: Final = ("Retry-After", "3600")
_ANYWHERE: Final = ("Location", "http://127.0.0.1:9/elsewhere")


def _row(fault: Fault, *ends: str) -> tuple[Fault, frozenset[str]]:
    """A fault, and how what was asked for may end then."""
    return fault, frozenset(ends)


READING: Final = (
    _row(Fault(name="answers 500", before=status(500)), ERROR),
    _row(Fault(name="answers 500 once", before=status(500), times=1), RIGHT),
    _row(Fault(name="answers 503 and asks to wait an hour", before=status(503, _LATE)), ERROR),
    _row(
        Fault(name="answers 503 once and asks to wait", before=status(503, _AGAIN), times=1), RIGHT
    ),
    _row(Fault(name="answers 429", before=status(429, _SOON)), ERROR),
    _row(Fault(name="answers 429 once", before=status(429, _SOON), times=1), RIGHT),
    _row(Fault(name="answers 401", before=status(401)), LASTING),
    _row(Fault(name="answers 403", before=status(403)), LASTING),
    _row(Fault(name="answers 404 after 200", before=status(404)), ABSENT),
    _row(Fault(name="answers 418", before=status(418)), ERROR),
    _row(Fault(name="redirects to elsewhere", before=status(302, _ANYWHERE)), ERROR, LASTING),
    _row(Fault(name="redirects to nowhere", before=status(302)), ERROR, LASTING),
    _row(Fault(name="does not answer", before=proxies.unanswered), ERROR),
    _row(Fault(name="does not answer once", before=proxies.unanswered, times=1), RIGHT),
    _row(Fault(name="answers garbage", before=proxies.garbage), ERROR),
    _row(Fault(name="breaks off", send=proxies.cut_body), ERROR),
    _row(Fault(name="breaks off once", send=proxies.cut_body, times=1), RIGHT),
    _row(Fault(name="sends less", change=proxies.shorter), ERROR),
    _row(Fault(name="sends less once", change=proxies.shorter, times=1), RIGHT, ERROR),
    _row(Fault(name="sends it twice", change=proxies.twice), ERROR, RIGHT),
    _row(Fault(name="says that there is more", change=proxies.told_longer), ERROR),
    _row(Fault(name="says that there is less", change=proxies.told_shorter), ERROR),
    _row(Fault(name="says a length that is no number", change=proxies.no_number), ERROR),
    _row(Fault(name="sends another bit", change=proxies.flipped), REFUSED),
    _row(Fault(name="sends another part", change=proxies.elsewhere), ERROR),
    _row(Fault(name="says that it is compressed", change=proxies.packed), ERROR, RIGHT),
    _row(Fault(name="never ends", send=proxies.endless_body), ERROR),
    _row(Fault(name="never ends, and says so", send=proxies.long_body), ERROR),
)
IN_TIME: Final = (
    _row(Fault(name="is silent", before=proxies.silent), ERROR),
    _row(Fault(name="is silent once", before=proxies.silent, times=1), RIGHT),
    _row(Fault(name="falls silent", send=proxies.stalled_body), ERROR),
    _row(Fault(name="drips", send=proxies.dripping_body), ERROR),
    _row(Fault(name="drips headers", send=proxies.dripping_head), ERROR),
)
"""A second each or more: of one object store and one that speaks HTTP."""
WRITING: Final = (
    _row(Fault(name="answers 500", before=status(500), of=WRITES), ERROR),
    _row(Fault(name="answers 500 once", before=status(500), of=WRITES, times=1), RIGHT),
    _row(Fault(name="answers 403", before=status(403), of=WRITES), LASTING),
    _row(Fault(name="is full", before=status(507), of=WRITES), ERROR),
    _row(Fault(name="takes nothing so large", before=status(413), of=WRITES), ERROR),
    _row(
        Fault(name="redirects to elsewhere", before=status(307, _ANYWHERE), of=WRITES),
        ERROR,
        LASTING,
    ),
    _row(Fault(name="does not answer", before=proxies.unanswered, of=WRITES), ERROR),
    _row(Fault(name="does not answer once", before=proxies.unanswered, of=WRITES, times=1), RIGHT),
    _row(Fault(name="loses its answer once", send=proxies.lost, of=WRITES, times=1), RIGHT),
    _row(Fault(name="answers 500 to all", before=status(500), of=ALL), ERROR),
    _row(
        Fault(
            name="says that there is one, and there is none", before=status(412), of=WRITES, times=1
        ),
        RIGHT,
        ERROR,
    ),
)


@pytest.fixture(scope="module")
def opened(
    store_servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[Proxy, Store]]]:
    """By its kind: a proxy, and a store behind it that has one blob."""
    with contextlib.ExitStack() as stack:
        yield _Opened(store_servers, stack, tmp_path_factory.mktemp("blob") / "blob")


class _Opened(dict[str, tuple[Proxy, Store]]):
    def __init__(self, servers: Servers, stack: contextlib.ExitStack, blob: Path) -> None:
        self._servers, self._stack, self._blob = servers, stack, blob
        blob.write_bytes(CONTENT)

    def __missing__(self, kind: str) -> tuple[Proxy, Store]:
        server = self._servers[kind]
        proxy = self._stack.enter_context(proxies.before(server.port))
        with pytest.MonkeyPatch.context() as patch:
            _settings(patch)
            for name, text in server.environment(proxy.server_port).items():
                patch.setenv(name, text)
            store = open_store(server.url(proxy.server_port))
        store.upload(NAME, self._blob)
        self[kind] = proxy, store
        return self[kind]


def _settings(patch: pytest.MonkeyPatch) -> None:
    """Small waits, parts of a quarter of the blob, a token."""
    from epctx.cache.remote import objects

    for name in ("CONNECT_SECONDS", "STALL_SECONDS", "SECONDS", "WAIT_SECONDS"):
        patch.setenv(f"EPCTX_LIMIT_REMOTE_{name}", "1")
    patch.setenv("EPCTX_LIMIT_REMOTE_ATTEMPTS", "2")
    patch.setenv("EPCTX_REMOTE_CACHE_TOKEN", SECRETS[2])
    patch.setattr(objects, "_PART", 1 << 12)


def _read(store: Store, told: list[str]) -> str:
    try:
        pieces = store.stream(NAME, len(CONTENT))
        content = None if pieces is None else b"".join(pieces)
    except StoreError as error:
        told.append(str(error))
        return LASTING if error.lasting else ERROR
    if content is None:
        return ABSENT
    return RIGHT if content == CONTENT else REFUSED


def _peak() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _check(told: Sequence[str], memory: int) -> None:
    assert _peak() - memory < MEMORY
    for text in told:
        assert not [each for each in SECRETS if each in text], text
        assert "127.0.0.1" not in text and len(text) < 120, text


@pytest.mark.wide(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("fault", "ends"), READING, ids=lambda each: getattr(each, "name", ""))
def test_a_read_ends_well(
    opened: dict[str, tuple[Proxy, Store]],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    fault: Fault,
    ends: frozenset[str],
) -> None:
    _reads(opened[kind], monkeypatch, fault, ends)


@pytest.mark.parametrize("kind", ["s3", "dav"])
@pytest.mark.parametrize(("fault", "ends"), IN_TIME, ids=lambda each: getattr(each, "name", ""))
def test_a_read_ends_in_time(
    opened: dict[str, tuple[Proxy, Store]],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    fault: Fault,
    ends: frozenset[str],
) -> None:
    _reads(opened[kind], monkeypatch, fault, ends)


def _reads(
    opened: tuple[Proxy, Store],
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    ends: frozenset[str],
) -> None:
    proxy, store = opened
    _settings(monkeypatch)
    told: list[str] = []
    memory = _peak()
    proxy.begin(fault)
    ended = _read(store, told)
    _check(told, memory)
    assert fault.of & set(proxy.seen), "the fault did not come about"
    assert ended in ends, told
    proxy.begin(None)
    # What was sent beyond the length that was told may yet arrive, in place of the next answer.
    again = [_read(store, told) for _ in range(1 + (fault.change is proxies.told_shorter))]
    assert again[-1] == RIGHT, "the store is of no use any more"


@pytest.mark.wide(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("fault", "ends"), WRITING, ids=lambda each: getattr(each, "name", ""))
def test_what_is_taken_is_whole(
    opened: dict[str, tuple[Proxy, Store]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: str,
    fault: Fault,
    ends: frozenset[str],
) -> None:
    """What it takes is whole, also where it was begun before."""
    proxy, store = opened[kind]
    _settings(monkeypatch)
    content = os.urandom(3000)
    (tmp_path / "new").write_bytes(content)
    name = f"v1/objects/{digest.of_bytes(content).hex}"
    puts: list[Callable[[], None]] = [
        lambda: store.upload(name, tmp_path / "new"),
        lambda: store.write(RECORD, content),
    ]
    for put in puts:
        told: list[str] = []
        memory, ended = _peak(), RIGHT
        proxy.begin(fault)
        try:
            put()
        except StoreError as error:
            told.append(str(error))
            ended = LASTING if error.lasting else ERROR
        _check(told, memory)
        assert ended in ends, told
        proxy.begin(None)
        put()
    assert store.read(name, 3000) == store.read(RECORD, 3000) == content


@pytest.mark.parametrize("times", [1, 3])
def test_of_a_large_upload_what_failed_is_sent_again(
    opened: dict[str, tuple[Proxy, Store]],
    store_servers: Servers,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    times: int,
) -> None:
    """And not the rest. It has the time and the attempts that it has by default."""
    from epctx.cache.remote import objects

    proxy, _ = opened["s3"]
    for name, text in store_servers["s3"].environment(proxy.server_port).items():
        monkeypatch.setenv(name, text)
    store = open_store(store_servers["s3"].url(proxy.server_port))
    monkeypatch.setattr(objects, "_PART", 5 << 20)
    content = os.urandom(18 << 20)
    (tmp_path / "large").write_bytes(content)
    name = f"v1/objects/{digest.of_bytes(content).hex}"
    proxy.begin(Fault(name="", before=status(500), of=frozenset({"PUT"}), times=times))
    store.upload(name, tmp_path / "large")
    assert proxy.seen.count("PUT") == 4 + times
    proxy.begin(None)
    pieces = store.stream(name, len(content))
    assert pieces is not None and b"".join(pieces) == content


def test_an_upload_that_the_store_dropped_is_told_as_such(
    opened: dict[str, tuple[Proxy, Store]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As one that its owner's rules clean up in the middle: nobody blames the bucket."""
    from epctx.cache.remote import objects

    def dropped(handler: Handler) -> None:
        handler.body()
        text = b"<Error><Code>NoSuchUpload</Code></Error>"  # as S3 says it
        handler.tell(Answer(404, [], text, len(text)))

    proxy, store = opened["s3"]
    monkeypatch.setattr(objects, "_PART", 5 << 20)
    (tmp_path / "large").write_bytes(os.urandom(11 << 20))
    proxy.begin(Fault(name="", before=dropped, of=frozenset({"PUT"})))
    with pytest.raises(StoreError, match="it has lost an upload in progress"):
        store.upload(f"v1/objects/{'b' * 64}", tmp_path / "large")


def test_the_table_is_large_enough() -> None:
    assert len(KINDS) * (len(READING) + len(WRITING)) + 2 * len(IN_TIME) >= 60


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_is_gone(
    store_servers: Servers, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    _settings(monkeypatch)
    for name, text in store_servers[kind].environment(9).items():
        monkeypatch.setenv(name, text)
    store, told = open_store(store_servers[kind].url(9)), list[str]()
    memory = _peak()
    assert _read(store, told) == ERROR
    with pytest.raises(StoreError) as error:
        store.write(RECORD, b"")
    _check([*told, str(error.value)], memory)


def test_a_redirect_gets_no_credentials_of_a_server_that_speaks_http(
    opened: dict[str, tuple[Proxy, Store]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked for elsewhere at all."""
    _settings(monkeypatch)
    proxy, store = opened["dav"]
    with proxies.before(1) as trap:
        proxy.begin(
            Fault(
                name="", before=status(302, ("Location", f"http://127.0.0.1:{trap.server_port}/"))
            )
        )
        assert _read(store, []) == LASTING
        assert trap.seen == []


@pytest.mark.needs("links", "a blob is replaced by a link")
@pytest.mark.parametrize("what", ["a link", "a folder", "a pipe", "a link above", "less", "more"])
def test_a_folder_that_somebody_changed(tmp_path: Path, what: str) -> None:
    """Neither followed nor waited for."""
    store = open_store((tmp_path / "share").as_uri())
    (tmp_path / "blob").write_bytes(CONTENT)
    store.upload(NAME, tmp_path / "blob")
    place = tmp_path / "share" / NAME
    told: list[str] = []
    assert _read(store, told) == RIGHT
    place.chmod(0o600)
    match what:
        case "a link":
            place.unlink()
            place.symlink_to(tmp_path / "blob")
        case "a folder":
            place.unlink()
            place.mkdir()
        case "a pipe" if sys.platform != "win32":
            place.unlink()
            os.mkfifo(place)
        case "a link above":
            (tmp_path / "share" / "v1").rename(tmp_path / "v1")
            (tmp_path / "share" / "v1").symlink_to(tmp_path / "v1")
        case "less":
            place.write_bytes(CONTENT[:-1])
        case _:
            place.write_bytes(CONTENT + b"more")
    assert _read(store, told) in (ERROR, LASTING)
    assert told and not [each for each in told if str(tmp_path) in each]


@pytest.mark.parametrize(
    "name",
    ["../x", "v1/objects/../../x", "v1/objects/" + "A" * 64, "v1/objects/" + "a" * 64 + "\n"],
)
def test_no_other_name_reaches_a_store(tmp_path: Path, name: str) -> None:
    store = open_store((tmp_path / "share").as_uri())
    (tmp_path / "x").write_bytes(b"")
    asked: list[Callable[[], object]] = [
        lambda: store.read(name, 1),
        lambda: store.stream(name, 1),
        lambda: store.size(name),
        lambda: store.write(name, b""),
        lambda: store.upload(name, tmp_path / "x"),
        lambda: store.delete([name]),
    ]
    for ask in asked:
        with pytest.raises(StoreError, match="name of a requested blob"):
            ask()
    assert not stores.is_name(name)
