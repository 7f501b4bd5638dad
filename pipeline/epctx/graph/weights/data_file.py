"""A file of weights, or a model, as bytes: opened once, mapped, hashed, compared.

This module knows nothing of tensors. Bytes are read only when a caller needs them. Digests of the
file and of its parts are computed once, in one pass over the bytes (design section 9).
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import blake3

from epctx.errors import ModelError
from epctx.files.digest import CHUNK, Digest, of_chunks
from epctx.files.hashing import SMALL
from epctx.files.identity import of_content
from epctx.files.regular import open_regular, patiently, require_bounded

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


READ: Final = 1 << 16
"""Maximum bytes of a file that is read when it is opened. Mapping a small file takes longer and
keeps a file descriptor.
"""


class DataFile:
    """A file of weights, opened once: checked on the open descriptor, then mapped, or read if it is
    small.

    The map lives as long as the object or a view of it does. The file must not shrink meanwhile
    (the operating system then ends the process); `changed` detects any other edit.

    Raises:
        ModelError: the file is larger than allowed, or cannot be mapped.

    Attributes:
        path: the real path, links followed; for messages and reports, never for reading.
        location: the model's name for the file, with `/`; the file's own name for a model.
        folder: the folder that `location` is relative to.
        size: bytes when it was opened.
    """

    def __init__(self, folder: Path, location: str, *, path: Path, descriptor: int) -> None:
        """Take over an open `descriptor` of a regular file, and close it."""
        self.folder = folder
        self.location = location
        self.path = path
        try:
            status = os.fstat(descriptor)
            require_bounded(status.st_size, where=str(path))
            self._identity = of_content(status)
            self._map = _map(descriptor, path) if status.st_size > READ else None
            self._view = memoryview(_read(descriptor, path) if self._map is None else self._map)
        finally:
            os.close(descriptor)
        self.size = len(self._view)
        self._whole: Digest | None = None
        self._sha1: str | None = None
        self._parts: dict[tuple[int, int], Digest] = {}

    def __repr__(self) -> str:
        return f"DataFile({str(self.path)!r}, size={self.size})"

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        whole: Digest | None = None,
        parts: Mapping[tuple[int, int], Digest] = MappingProxyType({}),
    ) -> DataFile:
        """Open a file that the user named: links are followed wherever they lead.

        Args:
            whole: digest of the file, if it is known; None otherwise.
            parts: known digests of ranges (offset, length).

        Raises:
            ModelError: the file is missing, not regular, or cannot be read.
        """
        real, descriptor = open_regular(path, where=str(path))
        file = cls(path.parent, path.name, path=real, descriptor=descriptor)
        file._whole = whole
        file._parts.update(parts)
        return file

    def view(self, offset: int = 0, length: int | None = None) -> memoryview:
        """Return bytes [offset, offset + length) as a read-only view of the map; no copy.

        Raises:
            ValueError: the range is not inside the file (a bug: ranges are checked at load).
        """
        stop = self.size if length is None else offset + length
        if not 0 <= offset <= stop <= self.size:
            raise ValueError(f"[{offset}, {stop}) is outside {self.path}, {self.size} bytes")
        return self._view[offset:stop]

    def chunks(self, offset: int = 0, length: int | None = None) -> Iterator[memoryview]:
        """Yield a range in pieces of at most `digest.CHUNK` bytes.

        Pages are released once the caller has moved on, so a pass over many gigabytes does not grow
        the resident set.
        """
        view = self.view(offset, length)
        for start in range(0, len(view), CHUNK):
            piece = view[start : start + CHUNK]
            yield piece
            self._release(offset + start, len(piece))

    def copy(self, stream: FileIO, offset: int, length: int) -> None:
        """Append a range to an unbuffered file. If possible the system copies it, three times as
        fast.

        Raises:
            OSError: the bytes cannot be written.
        """
        done = self._copied(stream.fileno(), offset, length)
        for chunk in self.chunks(offset + done, length - done):
            rest = chunk
            while rest:
                rest = rest[stream.write(rest) :]

    def _copied(self, target: int, offset: int, length: int) -> int:
        """Let the system copy a range to `target`; return the number of bytes copied."""
        done = 0
        # A Python that was built for an old C library does not have the call.
        if sys.platform != "linux" or not hasattr(os, "copy_file_range"):
            return done
        with contextlib.suppress(OSError, ModelError):
            _, source = open_regular(self.path, where=str(self.path))
            try:
                # Copy the mapped file only, not another one that has its path by now.
                while done < length and of_content(os.fstat(source)) == self._identity:
                    count = os.copy_file_range(source, target, length - done, offset + done)
                    if not count:
                        break
                    done += count
            finally:
                os.close(source)
        return done

    def digest(self) -> Digest:
        """Return BLAKE3 of the whole file; computed once."""
        if self._whole is None:
            self.hash_parts(())
        assert self._whole is not None
        return self._whole

    def part_digest(self, offset: int, length: int) -> Digest:
        """Return BLAKE3 of one range; computed once."""
        if (offset, length) not in self._parts:
            self._parts[offset, length] = of_chunks(self.chunks(offset, length))
        return self._parts[offset, length]

    def hash_parts(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Digest the whole file and each (offset, length) of `ranges` in one pass over it."""
        pending = sorted(set(ranges) - self._parts.keys(), reverse=True)
        whole = blake3.blake3()
        active: list[tuple[int, int, blake3.blake3]] = []
        position = 0
        with ThreadPoolExecutor(max_workers=1) as thread:
            for chunk in self.chunks():
                end = position + len(chunk)
                while pending and pending[-1][0] < end:
                    active.append((*pending.pop(), blake3.blake3()))
                # Use another core if one is idle. A small file is hashed before a thread starts.
                both = thread.submit(whole.update, chunk) if self.size > SMALL else None
                unfinished = []
                for offset, length, hasher in active:
                    stop = offset + length
                    hasher.update(chunk[max(offset - position, 0) : stop - position])
                    if stop <= end:
                        self._parts[offset, length] = Digest("blake3", hasher.hexdigest())
                    else:
                        unfinished.append((offset, length, hasher))
                active = unfinished
                position = end
                if both is None:
                    whole.update(chunk)
                else:
                    both.result()
        for offset, length in pending:  # empty ranges at the end of the file
            self._parts[offset, length] = of_chunks(self.chunks(offset, length))
        self._whole = Digest("blake3", whole.hexdigest())

    def sha1(self) -> str:
        """Return SHA-1 of the whole file in hex, for the key `checksum`; computed once."""
        if self._sha1 is None:
            hasher = hashlib.sha1(usedforsecurity=False)
            for chunk in self.chunks():
                hasher.update(chunk)
            self._sha1 = hasher.hexdigest()
        return self._sha1

    def changed(self) -> bool:
        """Tell whether the file at `path` was replaced or written to since it was opened."""
        try:
            return of_content(self.path.stat()) != self._identity
        except OSError:
            return True

    def _release(self, offset: int, length: int) -> None:
        """Drop whole pages of a range from the resident set; the page cache keeps them."""
        if self._map is None or sys.platform == "win32":
            return  # Windows trims a working set by itself
        first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        count = (offset + length) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if count > 0:
            self._map.madvise(mmap.MADV_DONTNEED, first, count)


def _read(descriptor: int, path: Path) -> bytes:
    refused = ModelError.if_refused("cannot be read", file=str(path), remedy="check the disk")
    with refused, FileIO(descriptor, closefd=False) as stream:
        return stream.read(READ) or b""


def _map(descriptor: int, path: Path) -> mmap.mmap:
    try:
        return patiently(lambda: mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise ModelError(
            "cannot be mapped into memory",
            file=str(path),
            why=(error.strerror if isinstance(error, OSError) else None) or str(error),
            remedy="copy it to a disk whose files can be mapped",
        ) from error


_COMPARED = 1 << 20


def first_difference(old: memoryview, new: memoryview) -> int | None:
    """Return the offset of the first byte that differs; None if there is none. The result is the
    shorter length if one side begins with the other.
    """
    for start, differs in _differing(old, new):
        return start + int(differs.argmax())
    return None if len(old) == len(new) else min(len(old), len(new))


def count_differences(old: memoryview, new: memoryview) -> int:
    """Return the number of bytes that differ, extra bytes of the longer side included."""
    return abs(len(old) - len(new)) + sum(int(each.sum()) for _, each in _differing(old, new))


def difference(old: memoryview, new: memoryview) -> str | None:
    """Describe the first difference in words; None if there is none."""
    offset = first_difference(old, new)
    if offset is None:
        return None
    if len(old) == len(new):
        many = count_differences(old, new)
        return f"byte {offset:,} of {len(old):,} is the first of {many:,} that differ"
    return f"{len(old):,} bytes are now {len(new):,}, the first difference is at byte {offset:,}"


def _differing(old: memoryview, new: memoryview) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    """Yield unequal chunks of the common length: start, and which bytes differ."""
    import numpy as np

    for start in range(0, min(len(old), len(new)), _COMPARED):
        stop = min(start + _COMPARED, len(old), len(new))
        if old[start:stop] != new[start:stop]:
            one, other = (np.frombuffer(side[start:stop], np.uint8) for side in (old, new))
            yield start, one != other
