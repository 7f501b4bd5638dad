"""Content by its BLAKE3: copied in, copied out and checked on the way."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from msgspec import Struct

from epctx.cache.location import Location, refusing
from epctx.cache.quarantine import Quarantine
from epctx.cache.temporary import Temporary, settle
from epctx.error_codes import Code
from epctx.errors import StorageError
from epctx.files import copying, digest
from epctx.files.digest import Digest
from epctx.files.entries import entries

_READ_ONLY = 0o444


class Objects(Struct, frozen=True, kw_only=True):
    """The objects of a cache. Thread- and process-safe."""

    location: Location
    temporary: Temporary
    quarantine: Quarantine

    def path(self, content: Digest) -> Path:
        """Return the place of the object with this content."""
        return self.location.root / "objects" / content.hex[:2] / content.hex

    def adopt(self, source: Path, *, content: Digest, size: int) -> None:
        """Take in a file whose BLAKE3 is known, as it was hashed when it was written.

        It is not hashed again: if it is not what it was, that is found when the object is read.
        Nothing happens in a read-only cache, or where an object of this size is already.

        Raises:
            StorageError: the cache cannot be written, or the file is not `size` bytes long.
        """
        if self.location.readonly or self.holds(content, size):
            return
        temporary = self.temporary.path()
        with refusing(temporary):
            copying.copy(source, temporary)
            if temporary.stat().st_size != size:
                temporary.unlink()
                raise StorageError(
                    f"should have {size} bytes and does not: something else writes there",
                    file=str(source),
                    remedy="run the command again when nothing else uses the folder",
                    code=Code.CACHE_CORRUPT,
                )
        self.settle(temporary, content)

    def settle(self, temporary: Path, content: Digest) -> None:
        """Put a whole file in its place, which is known to have this content.

        Raises:
            StorageError: the cache cannot be written.
        """
        if sys.platform != "win32":  # on Windows a read-only file cannot be removed by gc
            with refusing(temporary):
                temporary.chmod(temporary.stat().st_mode & _READ_ONLY)
        settle(temporary, self.path(content))

    def fetch(self, content: Digest, *, size: int, target: Path) -> bool:
        """Copy an object to the new file `target`, checking it on the way.

        False: there is none, or it was corrupt and is set aside; then `target` does not exist.

        Raises:
            StorageError: `target` cannot be written.
        """
        place = self.path(content)

        def copy(file: FileIO) -> bool:
            right = os.fstat(file.fileno()).st_size == size
            with StorageError.if_refused(
                "cannot be copied out of the cache",
                file=str(target),
                remedy="free some space or choose another folder with --out",
            ):
                return right and copying.copy_hashed(file, target) == content

        read = self.quarantine.read(place, copy)
        if read is None:
            return False
        found, whole = read
        if not whole:
            target.unlink(missing_ok=True)
            self.quarantine.take(place, found, "is corrupt")
        return whole

    def check(self, content: Digest) -> bool:
        """Return whether an object is there and whole; a corrupt one is set aside."""
        place = self.path(content)
        read = self.quarantine.read(place, digest.of_stream)
        if read is None:
            return False
        found, got = read
        if got != content:
            self.quarantine.take(place, found, "is corrupt")
        return got == content

    def all(self) -> Iterator[tuple[Digest, os.stat_result]]:
        """Every object by its name, with its size and times."""
        folder = self.location.root / "objects"
        if not folder.is_dir():
            return
        for entry in entries(folder):
            with contextlib.suppress(FileNotFoundError):
                yield Digest("blake3", entry.name), entry.lstat()

    def holds(self, content: Digest, size: int) -> bool:
        """Return whether an object of this size is there."""
        try:
            status = self.path(content).lstat()
            return stat.S_ISREG(status.st_mode) and status.st_size == size
        except OSError:
            return False
