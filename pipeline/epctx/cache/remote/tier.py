"""The shared cache behind the local one: reads, checks and pushes of one command.

The store cannot change the result of a command. An entry that is absent, not signed by a trusted
key, or has another digest counts as missing. Each kind of refusal is reported once. After a few
failures the store is not used again.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import blake3
import msgspec
from msgspec import Struct

from epctx import codec, limits
from epctx.cache.action import RemoteReport, StoredAction, StoredFile
from epctx.cache.location import refusing
from epctx.cache.remote import signing
from epctx.cache.remote.open import open_store
from epctx.cache.remote.signing import TRUST_VARIABLE, Damaged, Untrusted, Voucher
from epctx.cache.remote.store import Store
from epctx.cache.remote.threads import Threads, wait
from epctx.files.digest import Digest
from epctx.transfer.attempts import StoreError

R = TypeVar("R")
_DOWN: Final = 8
_UP: Final = 4
_FAILURES: Final = 3
"""Number of failures after which a store is not used again."""
_RATE: Final = 1 << 18
"""Least transfer rate of a store, in bytes per second."""
_DELAY: Final = 1.0
_PATIENCE: Final = 20.0
"""After this many seconds of waiting for small answers, a store that takes over a second for each
is not used again.
"""
_WAITING: Final = 10_000
"""Greatest number of actions in the push queue; further actions are not pushed."""


def record_name(key: Digest) -> str:
    """Return the name of an action in a store."""
    return f"v1/actions/{key.hex}"


def object_name(content: Digest) -> str:
    """Return the name of an object in a store."""
    return f"v1/objects/{content.hex}"


class _Compiled(Struct, frozen=True):
    """The EPs in the key record of a compile."""

    class Provider(Struct, frozen=True):
        """An EP."""

        provider: str

    providers: tuple[Provider, ...] = ()


class Tier:
    """A store, with the trusted keys. Thread-safe.

    Args:
        url: URL of the store as the user wrote it. It is not shown, since it may have credentials.
        notice: receives one message for each kind of refusal or failure.
        opened: opens the store of a URL; called at first use.
        silent: do not report that no key is trusted.
    """

    def __init__(
        self,
        url: str,
        voucher: Voucher,
        notice: Callable[[str], None],
        opened: Callable[[str], Store] | None = None,
        *,
        silent: bool = False,
    ) -> None:
        self._url = url
        self._voucher = voucher
        self._notice = notice
        self._make = opened or open_store
        self._silent = silent
        self._store: Store | None = None
        self._lock = threading.Lock()
        self._down = Threads(_DOWN, "epctx-fetch")
        self._up = Threads(_UP, "epctx-push")
        self._counts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._failures = 0
        self._off = False
        self._asked, self._waited = 0, 0.0
        self._missing: set[Digest] = set()
        self._corrupt: set[str] = set()
        self._uploaded: set[str] = set()

    @property
    def store(self) -> Store:
        """Store behind the local cache; opened at first use.

        Raises:
            UsageError: the URL names no store.
        """
        with self._lock:
            if self._store is None:
                self._store = self._make(self._url)
            return self._store

    @property
    def reads(self) -> bool:
        """Return whether entries may be used: a key is trusted, and the store is still in use.
        Report a lack of trusted keys.
        """
        trusted = bool(self._voucher.trust)
        if not (trusted or self._off or self._silent):
            self._say(
                f"no key is trusted, so it is not used: name public keys in "
                f"{TRUST_VARIABLE} or with --trust FILE"
            )
        return trusted and not self._off

    def find(self, key: Digest) -> StoredAction[msgspec.Raw] | None:
        """Return the stored result of an action if a trusted key signed it; else None."""
        if not self.reads or key in self._missing:
            return None
        name = record_name(key)
        store = self.store
        content = self._ask(lambda: store.read(name, limits.REMOTE_RECORD_BYTES.value), size=0)
        action = None if content is None else self._verified(key, content)
        if action is None:
            self._missing.add(key)
            return None
        self._count("records")
        return action

    def _verified(self, key: Digest, content: bytes) -> StoredAction[msgspec.Raw] | None:
        try:
            action = signing.unseal(key, content)
            self._voucher.trust.signer(key, action)
        except (Damaged, Untrusted) as error:
            self._say(f"a record is taken as missing: {error}", str(error).partition(" (")[0])
            return None
        return action

    def fetch(self, file: StoredFile, target: Path, proceed: Callable[[], None]) -> bool:
        """Download a file to the new file `target`; return False if it is missing or corrupt.

        Raises:
            StorageError: `target` cannot be written.
        """
        if not self.reads:
            return False
        name, store = object_name(file.digest), self.store

        def stream() -> bool | None:
            pieces = store.stream(name, file.size)
            return (
                None
                if pieces is None
                else written(pieces, file.digest, file.size, target, lambda: self._off)
            )

        whole = self._ask(stream, size=file.size, proceed=proceed)
        if whole:
            self._count("objects")
            self._count("fetched", file.size)
            return True
        target.unlink(missing_ok=True)
        if whole is not None:
            self._corrupt.add(name)
            self._say("a file is taken as missing: its content does not match its digest")
        return False

    def push(
        self, key: Digest, action: StoredAction[msgspec.Raw], sources: Mapping[Digest, Path]
    ) -> None:
        """Queue an action to be pushed in the background; `sources` are its files."""
        if self._off or self._counts["waiting"] >= _WAITING:
            self._count("not_pushed")
            return
        self._count("waiting")
        store = self.store
        self._up.submit(partial(self._pushed, store, key, action, sources))

    def _pushed(
        self,
        store: Store,
        key: Digest,
        action: StoredAction[msgspec.Raw],
        sources: Mapping[Digest, Path],
    ) -> None:
        done = False
        try:
            if not self._off and not self._differs(store, key, action):
                self.put(store, key, action, sources)
                done = True
        except StoreError as error:
            self._failed(error)
        except OSError as error:
            self._say(f"a file was not pushed: {error.strerror}")
        finally:
            self._count("pushed" if done else "not_pushed")
            self._count("waiting", -1)

    def put(
        self,
        store: Store,
        key: Digest,
        action: StoredAction[msgspec.Raw],
        sources: Mapping[Digest, Path],
    ) -> None:
        """Push an action now: its files, then its record. Files found corrupt are replaced.

        Raises:
            StoreError: the store fails a request.
            OSError: a file cannot be read.
        """
        sizes = {file.digest: file.size for file in action.files}
        for content, path in sources.items():
            name = object_name(content)
            if name in self._uploaded:
                continue
            size = store.size(name)
            if size is not None and (name in self._corrupt or size != sizes[content]):
                store.delete([name])
                size = None
            if size is None:
                store.upload(name, path)
            self._uploaded.add(name)
        store.write(record_name(key), signing.seal(key, action))

    def _differs(self, store: Store, key: Digest, action: StoredAction[msgspec.Raw]) -> bool:
        """Return whether a trusted signer has meanwhile pushed other files for the same compile,
        and report it.

        Raises:
            StoreError: the store does not answer.
        """
        if action.kind != "compile" or key not in self._missing:
            return False
        content = store.read(record_name(key), limits.REMOTE_RECORD_BYTES.value)
        try:
            if content is None:
                return False
            first = signing.unseal(key, content)
            signer = self._voucher.trust.signer(key, first)
        except (Damaged, Untrusted):
            return False
        if first.files == action.files:
            return False
        eps = codec.decode(bytes(action.record), _Compiled).providers
        who = " and ".join(each.provider for each in eps) or "an EP"
        self._say(
            f"{who} does not write the same bytes each time: {signer} has meanwhile pushed other "
            "bytes for the same compile, which stay there; `epctx reproduce` shows the difference",
            kind=f"{who} does not write the same bytes each time",
        )
        return True

    def finish(self, proceed: Callable[[], None]) -> None:
        """Wait, for a bounded time, until all queued actions are pushed."""
        until = time.monotonic() + limits.PUSH_SECONDS.value
        while self._counts["waiting"] and time.monotonic() < until:
            proceed()
            time.sleep(0.02)
        waiting = self._counts["waiting"]
        if waiting:
            self._off = True
            self._say(f"results that were not pushed in time are left out ({limits.PUSH_SECONDS})")

    @property
    def report(self) -> RemoteReport | None:
        """Report on the use of the shared cache; None if it was not used and had no refusals."""
        if not (self._asked or self._counts or self._refused):
            return None
        with self._lock:
            counts = dict(self._counts)
            waiting = counts.pop("waiting", 0)
            counts["not_pushed"] = counts.get("not_pushed", 0) + waiting
            url = "" if self._store is None else self._store.url
            return RemoteReport(url=url, refused=dict(self._refused), **counts)

    def _ask(
        self,
        call: Callable[[], R | None],
        *,
        size: int,
        proceed: Callable[[], None] = lambda: None,
    ) -> R | None:
        """Return a store's answer; None if the store has no such entry, or fails."""
        begun = time.monotonic()
        until = begun + limits.REMOTE_ANSWER_SECONDS.value + size / _RATE
        try:
            return wait(self._down.submit(call), until=until, proceed=proceed)
        except StoreError as error:
            self._failed(error)
        except TimeoutError:
            self._failed(StoreError("it takes too long", lasting=True))
        finally:
            if not size:
                self._note_delay(time.monotonic() - begun)
        return None

    def _note_delay(self, seconds: float) -> None:
        """Stop using a store whose small answers are slow: thousands of them would take hours."""
        with self._lock:
            self._asked += 1
            self._waited += seconds
            slow = self._waited > _PATIENCE and self._waited > _DELAY * self._asked
        if slow and not self._off:
            self._failed(StoreError(f"an answer takes more than {_DELAY:.0f} s", lasting=True))

    def _failed(self, error: StoreError) -> None:
        with self._lock:
            self._failures += 1
            self._off |= error.lasting or self._failures >= _FAILURES
        self._say(f"{error}; missing results are computed here", kind="it failed")

    def _say(self, words: str, kind: str | None = None) -> None:
        """Report the first refusal or failure of each kind, and count all of them."""
        with self._lock:
            kind = kind or words
            self._refused[kind] += 1
            first = self._refused[kind] == 1
        if first:
            self._notice(f"the shared cache: {words}")

    def _count(self, what: str, more: int = 1) -> None:
        with self._lock:
            self._counts[what] += more


def written(
    pieces: Iterator[bytes],
    content: Digest,
    size: int,
    target: Path,
    ended: Callable[[], bool] = lambda: False,
) -> bool:
    """Write pieces to the new file `target`; return whether they have the digest and size.

    Raises:
        StorageError: `target` cannot be written.
    """
    hasher, remaining = blake3.blake3(), size
    with refusing(target), target.open("xb", buffering=0) as stream:
        for piece in pieces:
            remaining -= len(piece)
            if remaining < 0 or ended():
                return False
            hasher.update(piece)
            rest = memoryview(piece)
            while rest:
                rest = rest[stream.write(rest) :]
    return remaining == 0 and hasher.hexdigest() == content.hex
