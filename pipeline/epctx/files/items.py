"""A file by its content: where it is copied from, or the text that it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from epctx.errors import ModelError
from epctx.files import digest, listing
from epctx.files.digest import Digest


class Item(Struct, frozen=True, kw_only=True):
    """A file of a package.

    Attributes:
        sha256: of what it must be; `size` in bytes.
        blake3: likewise; None: it is not known.
        source: where it is copied from; None: it is `content`.
    """

    size: int
    sha256: Digest
    blake3: Digest | None = None
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


def below(path: Path) -> dict[str, Item]:
    """A file, or every file of a folder, by path from it, with `/`.

    Raises:
        ModelError: one cannot be read.
    """
    if path.is_file():
        return {path.name: found(path)}
    inside = sorted(p for p in listing.below(path) if p.is_file())
    return {each.relative_to(path).as_posix(): found(each) for each in inside}


def digest_of(files: Mapping[str, Item]) -> Digest:
    """The digest of a folder with these files (`files.digest.of_folder`)."""
    return digest.of_folder({name: item.sha256 for name, item in files.items()})
