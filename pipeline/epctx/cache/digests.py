"""Digests of files: computed, or read from the cache if the file is unchanged (section 9)."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from epctx.cache.contents import Records
from epctx.files import digest, identity
from epctx.files.digest import Digest
from epctx.files.entries import opened
from epctx.files.identity import Identity

_TRIES = 3
_OFTEN = 1.0
"""Least number of seconds between two writes of new digests."""


class FileDigests(Protocol):
    """Source of the BLAKE3 of files. Thread-safe."""

    def of(self, path: Path) -> Digest:
        """Return the BLAKE3 of the file at the absolute `path`, links followed.

        Raises:
            OSError: the file is missing, not a regular file, or cannot be read.
        """
        ...

    def of_tree(self, root: Path, files: Iterable[Path]) -> Digest:
        """Return the digest of the paths (relative, with `/`) and contents of files below `root`.

        Raises:
            OSError: as `of`.
        """
        ...


class FreshDigests:
    """Reads each file in this process, and again only if it may have changed since. Never uses the
    cache: for `--locked`, `verify`, `reproduce`.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: dict[Path, tuple[Identity, Digest]] = {}

    def of(self, path: Path) -> Digest:
        """See `FileDigests`."""
        with self._guard:
            remembered = self._known.get(path)
        if remembered is not None and remembered[0] == identity.of_path(path):
            return remembered[1]
        now, content = _hash(path)
        if identity.tells(path, now.text):
            with self._guard:
                self._known[path] = (now, content)
        return content

    def of_tree(self, root: Path, files: Iterable[Path]) -> Digest:
        """See `FileDigests`."""
        names = {file.relative_to(root).as_posix(): file for file in files}
        return digest.of_json({name: str(self.of(file)) for name, file in names.items()})


_Known = dict[str, tuple[str, Digest]]
"""Text of a file's identity, and its digest, by the file's path in a folder."""


class _Remembered(Struct, frozen=True, kw_only=True):
    """Remembered digests of the files below a folder. The digest of a whole tree has the name "";
    its identity is the digest of the identities of all files.
    """

    path: str
    files: _Known


class RememberedDigests:
    """Reads a file only if the cache has no digest for its current identity.

    A new digest is written at once if the last write was more than a second ago; else with a later
    digest, or by `flush`. The reason: files come by the hundred, and one record holds the digests
    of sibling folders.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._fresh = FreshDigests()
        self._guard = threading.RLock()
        self._folders: dict[str, _Known] = {}
        self._changed: set[str] = set()
        self._written = 0.0

    def of(self, path: Path) -> Digest:
        """See `FileDigests`."""
        now = identity.of_path(path)
        content = self.known(path, now)
        if content is None:
            content = self._fresh.of(path)
            self.remember(path, now, content)
        return content

    def of_tree(self, root: Path, files: Iterable[Path]) -> Digest:
        """See `FileDigests`. One record holds the digest of the tree, so one look-up is enough."""
        identities = {file: identity.of_path(file) for file in sorted(files)}
        names = [file.relative_to(root).as_posix() for file in identities]
        name = digest.of_json([root.as_posix(), names]).hex
        now = digest.of_json([each.text for each in identities.values()]).hex
        state, content = self._read(name, root.as_posix()).get("", ("", None))
        if content is not None and state == now:
            return content
        content = self._fresh.of_tree(root, identities)
        if all(
            each.settled and identity.tells(file, each.text) and _now(file) == each
            for file, each in identities.items()
        ):
            record = _Remembered(path=root.as_posix(), files={"": (now, content)})
            self._records.write("digests", name, record)
        return content

    def known(self, path: Path, now: Identity) -> Digest | None:
        """Return the remembered digest of `path` for the identity `now`; None if there is none. The
        file is not read.
        """
        folder, name = _place(path)
        with self._guard:
            state, content = self._folder(folder).get(name, ("", None))
        return content if state == now.text else None

    def remember(self, path: Path, before: Identity, content: Digest) -> None:
        """Remember the digest of a file that the caller hashed.

        The caller has called `identity.show_writes`, taken the identity `before`, and then hashed
        the file. The digest is not remembered if the file has changed since, or in the two seconds
        before its identity was taken: then a write after the hashing might not show in its times.
        """
        if before.settled and _now(path) == before:
            self._write(path, before, content)

    def _write(self, path: Path, before: Identity, content: Digest) -> None:
        if not identity.tells(path, before.text):
            return
        folder, name = _place(path)
        with self._guard:
            self._folder(folder)[name] = (before.text, content)
            self._changed.add(folder)
            if time.monotonic() > self._written + _OFTEN:
                self.flush()

    def flush(self) -> None:
        """Write the new digests.

        Raises:
            StorageError: the cache cannot be written.
        """
        with self._guard:
            for folder in sorted(self._changed):
                record = _Remembered(path=folder, files=self._folders[folder])
                self._records.write("digests", _name(folder), record)
            self._changed.clear()
            self._written = time.monotonic()

    def _folder(self, folder: str) -> _Known:
        if folder not in self._folders:
            self._folders[folder] = self._read(_name(folder), folder)
        return self._folders[folder]

    def _read(self, name: str, path: str) -> _Known:
        record = self._records.read("digests", name, _Remembered)
        # The path is compared, too, so that two paths with the same name are not confused.
        return record.files if record is not None and record.path == path else {}


def remembered_files(records: Records, name: str) -> dict[Path, str]:
    """Return the files of a record of digests, with the text of their identities at that time."""
    record = records.read("digests", name, _Remembered)
    if record is None:
        return {}
    return {Path(record.path) / file: state for file, (state, _) in record.files.items()}


def _place(path: Path) -> tuple[str, str]:
    """Return the folder whose record holds a file's digest, and the file's path from there. It is
    the parent of the file's folder.
    """
    return path.parent.parent.as_posix(), f"{path.parent.name}/{path.name}"


def _name(folder: str) -> str:
    return digest.of_bytes(folder.encode("utf-8", "surrogatepass")).hex


def _now(path: Path) -> Identity | None:
    try:
        return identity.of_path(path)
    except OSError:
        return None


def _hash(path: Path) -> tuple[Identity, Digest]:
    """Return identity and BLAKE3 of a file; the identity was the same before and after hashing."""
    with FileIO(opened(path)) as stream:
        identity.show_writes(stream.fileno())
        for _ in range(_TRIES):
            before = identity.of_descriptor(stream.fileno())
            content = digest.of_stream(stream)
            if identity.of_descriptor(stream.fileno()) == before:
                return before, content
            stream.seek(0)
    raise OSError(errno.EBUSY, "something keeps writing to it", str(path))
