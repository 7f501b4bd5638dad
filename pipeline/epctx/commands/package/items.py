"""One thing that goes into a package: a file of somebody's, or a text that is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from epctx.errors import ModelError
from epctx.files import digest
from epctx.files.digest import Digest


@dataclass(frozen=True, kw_only=True)
class Item:
    """A file of a package.

    Attributes:
        sha256, blake3: of what it must be; `size` in bytes.
        source: where it is copied from; None: it is `content`.
    """

    size: int
    sha256: Digest
    blake3: Digest
    source: Path | None = None
    content: bytes = b""


def made(content: bytes) -> Item:
    """A file that is not copied."""
    return Item(
        size=len(content),
        sha256=digest.of_bytes(content, "sha256"),
        blake3=digest.of_bytes(content),
        content=content,
    )


def found(path: Path) -> Item:
    """A file of the user's.

    Raises:
        ModelError: it cannot be read.
    """
    with ModelError.if_refused(
        "cannot be packaged",
        file=path.as_posix(),
        remedy="check the path in `package`, and your rights to it",
    ):
        return Item(
            size=path.stat().st_size,
            sha256=digest.of_file(path, "sha256"),
            blake3=digest.of_file(path),
            source=path,
        )
