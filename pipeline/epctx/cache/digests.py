"""Digests of files: taken anew, or remembered while the file is unchanged (design section 9)."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from epctx.cache.records import Records
from epctx.files import digest, identity, open_flags
from epctx.files.digest import Digest
from epctx.files.identity import Identity

_TRIES = 3


class FileDigests(Protocol):
    """Tells the BLAKE3 of files. Thread-safe."""

    def of(self, path: Path) -> Digest:
        """BLAKE3 of the file at the absolute `path`, links followed.

        Raises:
            OSError: it is missing, not a regular file, or cannot be read.
        """
        ...

    def of_tree(self, root: Path, files: Iterable[Path]) -> Digest:
        """Digest of files below `root`: of their names in it, with `/`, and their contents.

        Raises:
            OSError: as `of`.
        """
        ...


class FreshDigests:
    """Reads each file, once: what `--locked`, `verify` and `reproduce` use."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: dict[Path, tuple[Identity, Digest]] = {}

    def of(self, path: Path) -> Digest:
        """As the Protocol says."""
        with self._guard:
            known = self._known.get(path)
        if known is not None and known[0] == identity.of_path(path):
            return known[1]
        found, content = _hash(path)
        if identity.tells(path, found.text):
            with self._guard:
                self._known[path] = (found, content)
        return content

    def of_tree(self, root: Path, files: Iterable[Path]) -> Digest:
        """As the Protocol says."""
        names = {file.relative_to(root).as_posix(): file for file in files}
        return digest.of_json({name: str(self.of(file)) for name, file in names.items()})


@dataclass(frozen=True, kw_only=True)
class _Remembered:
    """What the cache remembers of one path, or of a tree.

    Attributes:
        state: the text of its identity, or of all in the tree the digest.
    """

    path: str
    state: str
    digest: Digest


class RememberedDigests:
    """Reads a file only if the cache does not remember it as it is now."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._fresh = FreshDigests()

    def of(self, path: Path) -> Digest:
        """As the Protocol says."""
        now = identity.of_path(path)
        content = self.known(path, now)
        if content is None:
            content = self._fresh.of(path)
            self.remember(path, now, content)
        return content

    def of_tree(self, root: Path, files: Iterable[Path]) -> Digest:
        """As the Protocol says. One record for all of them: what did not change is one look-up."""
        found = {file: identity.of_path(file) for file in sorted(files)}
        names = [file.relative_to(root).as_posix() for file in found]
        name = digest.of_json([root.as_posix(), names]).hex
        now = digest.of_json([each.text for each in found.values()]).hex
        record = self._records.read("digests", name, _Remembered)
        if record is not None and record.state == now and record.path == root.as_posix():
            return record.digest
        content = self._fresh.of_tree(root, found)
        if all(
            each.settled and identity.tells(file, each.text) and _now(file) == each
            for file, each in found.items()
        ):
            record = _Remembered(path=root.as_posix(), state=now, digest=content)
            self._records.write("digests", name, record)
        return content

    def known(self, path: Path, now: Identity) -> Digest | None:
        """What is remembered of `path`, if it is `now` as it was then; nothing is read of it."""
        record = self._records.read("digests", _name(path), _Remembered)
        # The path is compared as well: nobody is to find a way to make two paths one name.
        if record is None or record.state != now.text or record.path != path.as_posix():
            return None
        return record.digest

    def remember(self, path: Path, before: Identity, content: Digest) -> None:
        """Remember a file that was hashed elsewhere, by its identity from before that.

        Whoever hashed it called `identity.show_writes` first. It is not, if it is not the same any
        more, or had changed within the two seconds before its identity was taken, since a write
        after the hashing might not show in its times.
        """
        if before.settled and _now(path) == before:
            self._write(path, before, content)

    def remember_read(self, path: Path, since: float, content: Digest) -> None:
        """Remember a file that was hashed after the moment `since`, and unchanged even then; its
        writes showed (`identity.show_writes`) since it was opened for that.
        """
        now = _now(path)
        if now is not None and now.settled_at(since):
            self._write(path, now, content)

    def _write(self, path: Path, found: Identity, content: Digest) -> None:
        if not identity.tells(path, found.text):
            return
        record = _Remembered(path=path.as_posix(), state=found.text, digest=content)
        self._records.write("digests", _name(path), record)


def remembered_path(records: Records, name: str) -> tuple[Path, str] | None:
    """The path that a record remembers a digest of, and the text of its identity then."""
    record = records.read("digests", name, _Remembered)
    return None if record is None else (Path(record.path), record.state)


def _name(path: Path) -> str:
    return digest.of_bytes(path.as_posix().encode("utf-8", "surrogatepass")).hex


def _now(path: Path) -> Identity | None:
    try:
        return identity.of_path(path)
    except OSError:
        return None


def _hash(path: Path) -> tuple[Identity, Digest]:
    """BLAKE3 of a file and its identity, which did not change meanwhile."""
    # `Path.open` takes no flags, and a pipe must not be waited for.
    with open(os.open(path, open_flags.READ), "rb", buffering=0) as stream:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        identity.show_writes(stream.fileno())
        for _ in range(_TRIES):
            before = identity.of_descriptor(stream.fileno())
            content = digest.of_stream(stream)
            if identity.of_descriptor(stream.fileno()) == before:
                return before, content
            stream.seek(0)
    raise OSError(errno.EBUSY, "something keeps writing to it", str(path))
