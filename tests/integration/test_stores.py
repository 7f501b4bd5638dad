"""Real servers of shared caches keep what they are given, each in its own way."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from epctx.cache.remote.open import open_store
from epctx.cache.remote.store import Store
from epctx.files import digest
from epctx.transfer.attempts import StoreError
from tests.kit.store_servers import KINDS, TOKEN, Servers

RECORD = f"v1/actions/{'b' * 64}"
LISTING = frozenset({"s3", "s3rver", "az", "dav", "file"})
DELETING = LISTING | {"nginx"}


@pytest.fixture(params=[*KINDS, "file"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def store(
    kind: str, store_servers: Servers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Store:
    """Of this test alone."""
    if kind == "file":
        return open_store((tmp_path / "share").as_uri())
    server = store_servers[kind]
    for name, text in server.environment().items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("EPCTX_REMOTE_CACHE_TOKEN", TOKEN)
    return open_store(f"{server.url()}/{hashlib.sha256(bytes(tmp_path)).hexdigest()}")


def _blob(folder: Path, size: int) -> tuple[str, Path, bytes]:
    content = os.urandom(size)
    (folder / "blob").write_bytes(content)
    return f"v1/objects/{digest.of_bytes(content).hex}", folder / "blob", content


def _streamed(store: Store, name: str, size: int) -> bytes | None:
    pieces = store.stream(name, size)
    return None if pieces is None else b"".join(pieces)


def test_what_is_not_there_is_none(store: Store) -> None:
    assert [store.read(RECORD, 1), store.size(RECORD), store.stream(RECORD, 1)] == [None] * 3


@pytest.mark.parametrize("size", [0, 1, 5 << 20, 18_000_001])
def test_a_file_comes_back(store: Store, tmp_path: Path, size: int) -> None:
    """The largest goes and comes in parts."""
    name, path, content = _blob(tmp_path, size)
    store.upload(name, path)
    store.upload(name, path)
    assert (store.size(name) or 0) == size
    assert _streamed(store, name, size) == content
    for wrong in (size + 1, *([size - 1] if size else [])):
        with pytest.raises(StoreError):
            _streamed(store, name, wrong)


def test_a_torn_file_is_replaced(store: Store, tmp_path: Path) -> None:
    """A server that writes in place has one when an upload is cut."""
    name, path, content = _blob(tmp_path, 1000)
    (tmp_path / "torn").write_bytes(content[:400])
    store.upload(name, tmp_path / "torn")
    store.upload(name, path)
    assert _streamed(store, name, 1000) == content


def test_a_record_is_put_once_and_replaced_by_another(store: Store) -> None:
    store.write(RECORD, b"one")
    store.write(RECORD, b"one")
    assert store.read(RECORD, 3) == b"one"
    store.write(RECORD, b"two")
    assert store.read(RECORD, 3) == b"two"
    with pytest.raises(StoreError):
        store.read(RECORD, 2)


def test_many_put_the_same_at_once(store: Store, tmp_path: Path) -> None:
    """Whether or not the store knows a condition, what is there is whole."""
    name, path, content = _blob(tmp_path, 100_000)
    failed: list[Exception] = []

    def put() -> None:
        try:
            store.upload(name, path)
            store.write(RECORD, content[:100])
        except StoreError as error:
            failed.append(error)

    threads = [threading.Thread(target=put) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == []
    assert _streamed(store, name, 100_000) == content
    assert store.read(RECORD, 100) == content[:100]


def test_what_is_there_is_listed_and_removed(store: Store, kind: str) -> None:
    names = [f"v1/{folder}/{n:064x}" for folder in ("actions", "objects") for n in range(3)]
    for name in names:
        store.write(name, b"12345")
    if kind in LISTING:
        found = sorted(store.list("v1/"), key=lambda each: each.name)
        assert [(each.name, each.size) for each in found] == [(name, 5) for name in names]
        assert all(each.modified > 1_600_000_000 for each in found)
        assert [each.name for each in store.list("v1/objects/")] != []
        assert {each.name[:10] for each in store.list("v1/objects/")} == {"v1/objects"}
    else:
        with pytest.raises(StoreError, match="cannot list"):
            list(store.list("v1/"))
    if kind in DELETING:
        store.delete([*names[:2], f"v1/actions/{'f' * 64}"])
        assert [store.size(each) for each in names] == [None, None, 5, 5, 5, 5]
    else:
        with pytest.raises(StoreError, match="405"):
            store.delete(names)


def test_a_file_that_is_gone_is_told(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        store.upload(f"v1/objects/{'a' * 64}", tmp_path / "missing")


def test_what_is_not_there_is_not_listed(store: Store, kind: str) -> None:
    if kind in LISTING:
        assert list(store.list("v1/objects/")) == []
