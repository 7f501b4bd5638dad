"""The cache of a build: results of actions, digests of files, and the optional shared cache."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from epctx import codec
from epctx.cache import locks
from epctx.cache.action import Origin, StoredAction, StoredFile, key_of
from epctx.cache.contents import Notice, Objects, Quarantine, Records, Temporary, sweep
from epctx.cache.digests import RememberedDigests
from epctx.cache.location import Location, locate
from epctx.cache.locks import Waiting
from epctx.cache.remote.signing import Untrusted, Voucher, require
from epctx.cache.remote.tier import Tier
from epctx.files import paths
from epctx.files.digest import Digest

T = TypeVar("T")
_BESIDE = 8
"""Number of files of an action that are fetched at a time."""


class Cache:
    """An open cache. Thread-safe; many processes may use it at once.

    Args:
        location: location of the cache; it is created when the first entry is stored.
        notice: receives a message about each corrupt file.
        voucher: signs new results, and has the trusted keys. With None, nothing is signed, and no
            result from a shared cache counts.
        remote: the shared cache behind it; None if no shared cache is used.
        signed: only use entries signed by a trusted key or written by this object.
    """

    def __init__(
        self,
        location: Location,
        notice: Notice,
        *,
        voucher: Voucher | None = None,
        remote: Tier | None = None,
        signed: bool = False,
    ) -> None:
        self.location = location
        self.remote = remote
        self.signed = signed
        self._notice = notice
        self._voucher = voucher
        quarantine = Quarantine(location=location, notice=notice)
        self._temporary = Temporary(location)
        self.records = Records(location=location, temporary=self._temporary, quarantine=quarantine)
        self.objects = Objects(location=location, temporary=self._temporary, quarantine=quarantine)
        self.digests = RememberedDigests(self.records)
        self._own: set[Digest] = set()
        self._signers: dict[Digest, str] = {}
        self._downloaded: set[Digest] = set()
        self._warned = False
        self._guard = threading.Lock()
        self._coming: dict[Digest, threading.Lock] = {}

    @contextmanager
    def shared(self, waiting: Waiting) -> Iterator[None]:
        """Keep gc from running in the block. Readers need no lock: a miss is never an error."""
        if self.location.readonly:
            yield
            return
        with locks.shared(self.location, waiting):
            try:
                yield
            finally:
                self._temporary.close()

    @contextmanager
    def alone_on(self, key: Digest, waiting: Waiting) -> Iterator[None]:
        """Keep others from carrying out the action `key`; the caller then calls `find` again.

        A read-only cache is not locked, since no process could see the result of another.
        """
        if self.location.readonly:
            yield
            return
        with locks.of_action(self.location, key.hex, waiting):
            yield

    def find(self, key: Digest, form: type[T], *, here: bool = False) -> StoredAction[T] | None:
        """Return the stored result of the action `key` as a `form`; None if there is none.

        If only the shared cache has the action, its record is stored here; `fetch` downloads its
        files.

        Args:
            here: do not ask the shared cache.
        """
        stored = self._local(key) or (None if here else self._shared_record(key))
        if stored is None:
            return None
        try:
            result = codec.decode(bytes(stored.result), form)
        except msgspec.MsgspecError:
            return None
        return StoredAction(
            kind=stored.kind,
            record=stored.record,
            result=result,
            files=stored.files,
            signatures=stored.signatures,
            fetched=stored.fetched,
        )

    def _local(self, key: Digest) -> StoredAction[msgspec.Raw] | None:
        stored = self.records.read("actions", key.hex, StoredAction[msgspec.Raw], used=True)
        if stored is None:
            return None
        if key_of(stored.record) != key:
            self.records.refuse("actions", key.hex, "has the record of another action")
            return None
        needed = stored.fetched or (self.signed and key not in self._own)
        if needed and self._signer(key, stored) is None:
            if not self._warned:
                self._warned = True
                self._notice(
                    "results without a trusted signature are not used: they are computed again, or "
                    "come from the shared cache"
                )
            return None
        return stored

    def _shared_record(self, key: Digest) -> StoredAction[msgspec.Raw] | None:
        action = None if self.remote is None else self.remote.find(key)
        if action is not None:
            self._downloaded.add(key)
            self._signer(key, action)
            self.records.write("actions", key.hex, action)
        return action

    def _signer(self, key: Digest, action: StoredAction[msgspec.Raw]) -> str | None:
        """Return the name of the trusted key that signed an action; None if none did."""
        if self._voucher is None or not action.signatures or not self._voucher.trust:
            return None

        require()
        try:
            signer = self._voucher.trust.signer(key, action)
        except Untrusted:
            return None
        self._signers[key] = signer
        return signer

    @property
    def trusts(self) -> tuple[str, ...]:
        """Names of the trusted keys.

        Raises:
            UsageError: the trusted keys cannot be read.
        """
        return () if self._voucher is None else self._voucher.trust.names

    @property
    def signs(self) -> bool:
        """Return whether a signing key is named; it is not read yet."""
        return self._voucher is not None and self._voucher.signs

    @property
    def signers(self) -> dict[Digest, str]:
        """Verified signers of the results that came from a cache, by key of the action."""
        return dict(self._signers)

    def origin(self, key: Digest) -> Origin:
        """Return the origin of a result that came from a cache."""
        from_remote = key in self._downloaded and self.remote is not None
        return Origin(
            remote=self.remote.store.url if from_remote and self.remote is not None else None,
            signer=self._signers.get(key),
        )

    def refuse(self, key: Digest, why: str) -> None:
        """Set aside a well-formed action with impossible content."""
        self.records.refuse("actions", key.hex, why)

    def put(self, key: Digest, action: StoredAction[T], folder: Path) -> None:
        """Store the result of an action whose files are in `folder`. They are copied, never linked.

        If there is a signing key, the action is signed, and queued for the shared cache.
        """
        for file in action.files:
            self.objects.adopt(folder / file.name, content=file.digest, size=file.size)
        signed = self.vouched(key, action)
        self.records.write("actions", key.hex, action if signed is None else signed)
        self._own.add(key)
        self._signers.pop(key, None)
        self._downloaded.discard(key)
        if signed is not None and self.remote is not None:
            self.remote.push(key, signed, self._sources(action, folder))
            if self.location.readonly:  # only their folder has the files, which may be removed
                self.remote.finish(lambda: None)

    def vouched(self, key: Digest, action: StoredAction[T]) -> StoredAction[msgspec.Raw] | None:
        """Return the action with its signature; None if there is no signing key.

        Raises:
            UsageError: the signing key cannot be used.
        """
        signing = None if self._voucher is None else self._voucher.key
        if signing is None:
            return None
        plain = StoredAction(
            kind=action.kind,
            record=action.record,
            result=msgspec.Raw(codec.encode(action.result)),
            files=action.files,
        )
        return replace(plain, signatures=(signing.sign(key, plain),))

    def _sources(self, action: StoredAction[T], folder: Path) -> dict[Digest, Path]:
        if self.location.readonly:
            return {file.digest: folder / file.name for file in action.files}
        return {file.digest: self.objects.path(file.digest) for file in action.files}

    def fetch(
        self, action: StoredAction[T], folder: Path, proceed: Callable[[], None] = lambda: None
    ) -> bool:
        """Copy an action's files into `folder`, and check the digest of each.

        Files that only the shared cache has are downloaded, several at a time. `proceed` is called
        meanwhile; an exception that it raises ends the download.

        Return False if a file was missing or corrupt. No file is left in `folder` then, and the
        action has to be carried out again.

        Raises:
            StorageError: the folder cannot be written.
        """
        names = [file.name.casefold() for file in action.files]
        if len(set(names)) < len(names) or not all(map(paths.is_plain, names)):
            return False
        downloads = self.remote is not None and not all(map(self.holds, action.files))
        if downloads and not self.gather(action, proceed):
            return False
        copied: list[Path] = []
        for file in action.files:
            target = folder / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not self._copied(file, target, proceed):
                for path in copied:
                    path.unlink(missing_ok=True)
                return False
            copied.append(target)
        if downloads:
            self._note_download(action)
        return True

    def gather(self, action: StoredAction[T], proceed: Callable[[], None] = lambda: None) -> bool:
        """Download the files of an action that the local cache lacks.

        Return False if a file cannot be downloaded. With a read-only cache, only `fetch` downloads.

        Raises:
            StorageError: the cache cannot be written.
        """
        missing = {file.digest: file for file in action.files if not self.holds(file)}
        return not missing or self._download(list(missing.values()), proceed)

    def holds(self, file: StoredFile) -> bool:
        """Return whether the local cache has a file; `fetch` checks its content."""
        return self.objects.holds(file.digest, file.size)

    def _copied(self, file: StoredFile, target: Path, proceed: Callable[[], None]) -> bool:
        if self.objects.fetch(file.digest, size=file.size, target=target):
            return True
        if self.remote is None:
            return False
        if self.location.readonly:
            return self.remote.fetch(file, target, proceed)
        return self._download([file], proceed) and self.objects.fetch(
            file.digest, size=file.size, target=target
        )

    def _download(self, files: list[StoredFile], proceed: Callable[[], None]) -> bool:
        """Download files from the shared cache; return whether all of them were downloaded."""
        remote = self.remote
        if remote is None or not remote.reads:
            return False
        if self.location.readonly:
            return True  # `_copied` downloads each file

        def download(file: StoredFile) -> bool:
            with self._guard:
                alone = self._coming.setdefault(file.digest, threading.Lock())
            with alone:
                if self.holds(file):  # another action needed the same file
                    return True
                temporary = self._temporary.path()
                if not remote.fetch(file, temporary, proceed):
                    return False
                self.objects.put_in_place(temporary, file.digest)
                return True

        if len(files) == 1:
            return download(files[0])
        with ThreadPoolExecutor(_BESIDE) as threads:
            return all(list(threads.map(download, files)))

    def _note_download(self, action: StoredAction[T]) -> None:
        key = key_of(action.record)
        if key is not None:
            self._downloaded.add(key)

    def finish(self, proceed: Callable[[], None]) -> None:
        """Wait, for a bounded time, until all queued actions are pushed to the shared cache."""
        if self.remote is not None:
            self.remote.finish(proceed)

    def ready(self) -> None:
        """Check keys and the URL of the shared cache before an action is carried out.

        Raises:
            UsageError: a key cannot be read, or the URL is not valid.
        """
        if self._voucher is not None:
            _ = self._voucher.trust, self._voucher.key
        if self.remote is not None:
            _ = self.remote.store

    def sweep(self) -> None:
        """Remove the temporary folders of processes that were killed."""
        if not self.location.readonly:
            sweep(self.location.root / "temporary")

    def close(self) -> None:
        """Remove this process's temporary folder."""
        with contextlib.suppress(OSError):
            self._temporary.close()


REMOTE_VARIABLE: Final = "EPCTX_REMOTE_CACHE"
_KEYS: Final = ("EPCTX_CACHE_SIGNING_KEY", "EPCTX_CACHE_TRUST")


class Shared(Struct, frozen=True, kw_only=True):
    """Shared cache that a command line names; None in a field if the environment decides.

    Attributes:
        url: URL of the store; empty if no shared cache is used.
        trust: file of the trusted public keys.
        jobs: the environment may name the shared cache only for jobs of other machines. Then a lack
            of trusted keys is not a mistake, and is not reported.
    """

    url: str | None = None
    trust: Path | None = None
    jobs: bool = False


def open_cache(
    notice: Notice,
    shared: Shared | None = None,
    *,
    signed: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> Cache:
    """Open the user's cache. The shared cache is imported and used only when it is needed.

    Args:
        notice: receives a message about corrupt files, and results without a trusted signature.
        signed: only use entries signed by a trusted key or written by this process.

    Raises:
        UsageError: an environment variable that names the cache has an invalid value.
        StorageError: other users can write to the cache.
    """
    shared, location = shared or Shared(), locate(environment)
    url = shared.url if shared.url is not None else environment.get(REMOTE_VARIABLE, "").strip()
    if not (url or shared.trust or any(environment.get(name) for name in _KEYS)):
        return Cache(location, notice, signed=signed)

    voucher = Voucher(shared.trust, environment)
    silent = shared.jobs and shared.url is None
    remote = Tier(url, voucher, notice, silent=silent) if url else None
    return Cache(location, notice, voucher=voucher, remote=remote, signed=signed)
