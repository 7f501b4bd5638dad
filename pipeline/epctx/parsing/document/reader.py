"""Reads a manifest's file into a tree that knows its lines and columns (see `tree`)."""

from __future__ import annotations

import codecs
from pathlib import Path

from msgspec import Struct

from epctx import limits
from epctx.error_codes import Code
from epctx.errors import InvalidManifest, ManifestError, Violation
from epctx.files import digest
from epctx.parsing.document import build, other_files
from epctx.parsing.document.tree import Node


class Document(Struct, frozen=True, kw_only=True):
    """A file that could be read as YAML.

    Attributes:
        file: as the user named it, with `/`.
        path: absolute.
        sha256: of its bytes, in hex.
        violations: what JSON has no form for: duplicate keys, tags, infinite numbers.
        broken: the nodes that these are about; what they should be is not known.
    """

    file: str
    path: Path
    sha256: str
    root: Node
    violations: tuple[Violation, ...] = ()
    broken: frozenset[Node] = frozenset()


def read(path: Path) -> Document:
    """Read a manifest's file.

    Raises:
        ManifestError: it cannot be read, or is a model.
        InvalidManifest: it is too large, not UTF-8, or not one YAML document.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(limits.MANIFEST_BYTES.value + 1)
    except FileNotFoundError:
        raise ManifestError(
            "there is no such file",
            file=path.as_posix(),
            remedy="check the path, or write a starter manifest with `epctx init`",
            code=Code.MANIFEST_UNREADABLE,
        ) from None
    except (OSError, ValueError) as error:
        if path.is_dir():
            what, remedy = other_files.of_folder(path)
            raise ManifestError(
                what, file=path.as_posix(), remedy=remedy, code=Code.MANIFEST_UNREADABLE
            ) from None
        raise ManifestError(
            "the manifest cannot be read",
            file=path.as_posix(),
            why=error.strerror if isinstance(error, OSError) else str(error),
            remedy="name a YAML file that you may read",
            code=Code.MANIFEST_UNREADABLE,
        ) from None
    if path.suffix.lower() == ".onnx":
        what, remedy = other_files.of_model(path)
        raise ManifestError(
            what, file=path.as_posix(), remedy=remedy, code=Code.MANIFEST_UNREADABLE
        )
    return parse(data, file=path.as_posix(), path=path.absolute())


def parse(data: bytes, *, file: str, path: Path) -> Document:
    """Parse a manifest's bytes, `file` in messages. Raises InvalidManifest as `read` does."""
    limit = limits.MANIFEST_BYTES
    if len(data) > limit.value:
        remedy = f"split the manifest; {limit.remedy}"
        raise _refusal(file, 0, 0, f"is larger than {limit}", remedy)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise _refusal(file, 0, 0, "is not UTF-8, but UTF-16", "save it as UTF-8") from None
        if b"\0" in data:
            raise _refusal(file, 0, 0, "is no text", "name a YAML file") from None
        raise _refusal(file, line, column, "is not UTF-8", "save the file as UTF-8") from None
    tree = build.build(text, file=file)
    return Document(
        file=file,
        path=path,
        sha256=digest.of_bytes(data, "sha256").hex,
        root=tree.root,
        violations=tree.violations,
        broken=tree.broken,
    )


def _refusal(file: str, line: int, column: int, what: str, remedy: str) -> InvalidManifest:
    return InvalidManifest(
        [
            Violation(
                file=file,
                line=line,
                column=column,
                path="",
                what=what,
                remedy=remedy,
                code=Code.MANIFEST_UNREADABLE,
            )
        ]
    )
