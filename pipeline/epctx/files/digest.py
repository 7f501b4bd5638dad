"""Digests as a type; bytes are hashed in the pass that moves them.

BLAKE3 identifies content inside epctx (it runs at the speed of memory), SHA-256 identifies released
files (`SHA256SUMS`, lock). Source: design section 9.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Final, Literal, Protocol

import blake3
from msgspec import Struct

from epctx.files.entries import opened

Buffer = bytes | bytearray | memoryview
Algorithm = Literal["blake3", "sha256"]
CHUNK = 1 << 22
"""Bytes moved at a time: 4 MiB."""
_BUFFERS: Final = (1 << 14, 1 << 20)
_HEX = re.compile(r"[0-9a-f]{64}")


class Digest(Struct, frozen=True, order=True):
    """A content digest, printed as `algorithm:hex`."""

    algorithm: Algorithm
    hex: str

    def __post_init__(self) -> None:
        """Refuse invalid digests, since digests from records, reports and locks become file names.

        Raises:
            ValueError: `hex` is not 64 hex digits in lower case. msgspec calls this, too.
        """
        if not _HEX.fullmatch(self.hex):
            raise ValueError(f"{self.hex[:100]!r} is not a digest of 64 hex digits")

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.hex}"


def parsed(text: str, algorithm: Algorithm) -> Digest:
    """Parse a digest printed as `algorithm:hex`. Raises ValueError if the text is not one."""
    prefix, _, digits = text.partition(":")
    if prefix != algorithm:
        raise ValueError(f"{text[:100]!r} is not a digest `{algorithm}:` and 64 hex digits")
    return Digest(algorithm, digits)


class HashingWriter:
    """Writes to a binary stream and takes both digests of the bytes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._blake3 = blake3.blake3()
        self._sha256 = hashlib.sha256()
        self.size = 0

    def write(self, data: Buffer) -> int:
        """Write all of `data`; return its length in bytes."""
        rest = memoryview(data)
        while rest:  # an unbuffered stream may take less: on Linux at most 2 GiB minus a page
            rest = rest[self._stream.write(rest) :]
        self._blake3.update(data)
        self._sha256.update(data)
        self.size += len(data)
        return len(data)

    @property
    def blake3(self) -> Digest:
        """BLAKE3 of everything written so far."""
        return Digest("blake3", self._blake3.hexdigest())

    @property
    def sha256(self) -> Digest:
        """SHA-256 of everything written so far."""
        return Digest("sha256", self._sha256.hexdigest())


def of_chunks(chunks: Iterable[Buffer], algorithm: Algorithm = "blake3") -> Digest:
    """Digest a stream of byte chunks."""
    hasher = blake3.blake3() if algorithm == "blake3" else hashlib.sha256()
    for chunk in chunks:
        hasher.update(chunk)
    return Digest(algorithm, hasher.hexdigest())


def of_bytes(data: Buffer, algorithm: Algorithm = "blake3") -> Digest:
    """Digest a buffer."""
    return of_chunks((data,), algorithm)


class Stream(Protocol):
    """Binary file, open for reading, to be digested."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill `buffer` from its start; return the bytes read, 0 at the end."""
        ...


def of_stream(stream: Stream, algorithm: Algorithm = "blake3") -> Digest:
    """Digest an open binary stream from its position to its end.

    A small buffer takes the first piece, and one large buffer all others. A new buffer for each
    piece would take a third longer, since its pages are cleared. A large buffer costs more than
    hashing a small file.
    """
    return of_chunks((piece for size in _BUFFERS for piece in _pieces(stream, size)), algorithm)


def _pieces(stream: Stream, size: int) -> Iterator[memoryview]:
    """Yield the bytes of a stream; stop after one full buffer if larger buffers follow."""
    buffer = memoryview(bytearray(size))
    while count := stream.readinto(buffer) or 0:
        yield buffer[:count]
        if count == size < _BUFFERS[-1]:
            return


def of_file(path: Path, algorithm: Algorithm = "blake3") -> Digest:
    """Digest a file's content in pieces."""
    with FileIO(opened(path)) as stream:
        return of_stream(stream, algorithm)


def of_folder(files: Mapping[str, Digest]) -> Digest:
    """Return the SHA-256 of the lines that `sha256sum` prints for a folder's files, sorted by path.

    It equals the digest of a complete SHA256SUMS, ONNX Runtime's hash of a shared asset, and
    `dirHash` of in-toto (Go's Hash1).

    Args:
        files: the SHA-256 of each file, by its path in the folder, with `/`.
    """
    lines = (f"{files[path].hex}  {path}\n" for path in sorted(files, key=str.encode))
    return of_chunks((line.encode() for line in lines), "sha256")


def canonical_json(value: object) -> bytes:
    """Encode a JSON value, always as the same bytes: sorted keys, no spaces, UTF-8, no NaN.

    Raises:
        ValueError: a number is not finite.
        TypeError: a value is not JSON.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def of_json(value: object) -> Digest:
    """Return the BLAKE3 of the canonical JSON of `value`."""
    return of_bytes(canonical_json(value))
