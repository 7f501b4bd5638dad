"""A file by its digests: a source to copy, or the content itself."""

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
        size: size in bytes.
        sha256: digest that the file must have.
        blake3: digest that the file must have; None if unknown.
        source: file to copy; None if the file has `content`.
    """

    size: int
    sha256: Digest
    blake3: Digest | None = None
    source: Path | None = None
    content: bytes = b""


def made(content: bytes) -> Item:
    """Make a file of a package from its content."""
    return Item(
        size=len(content),
        sha256=digest.of_bytes(content, "sha256"),
        blake3=digest.of_bytes(content),
        content=content,
    )


def found(path: Path) -> Item:
    """Describe a file of the user, and hash it.

    Raises:
        ModelError: the file cannot be read.
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
    """Describe a file, or every file of a folder, by relative path, with `/`.

    Raises:
        ModelError: a file cannot be read.
    """
    if path.is_file():
        return {path.name: found(path)}
    inside = sorted(p for p in listing.below(path) if p.is_file())
    return {each.relative_to(path).as_posix(): found(each) for each in inside}


def digest_of(files: Mapping[str, Item]) -> Digest:
    """Return the digest of a folder with these files (`files.digest.of_folder`)."""
    return digest.of_folder({name: item.sha256 for name, item in files.items()})
