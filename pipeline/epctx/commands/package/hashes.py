"""Integrity of a package or a kit: files are what SHA256SUMS says, assets what their names say.

ONNX Runtime checks neither when it opens a package (1.31.1).
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from epctx.commands.package import assets
from epctx.commands.package.form import ASSETS
from epctx.errors import ModelError
from epctx.files import digest, hashing
from epctx.files.digest import Digest
from epctx.files.outputs import SUMS
from epctx.files.regular import open_regular
from epctx.verification import integrity
from epctx.verification.findings import Finding

_finding: Final = partial(Finding, "integrity")
_CHANGED: Final = "do not ship it: make it again, or restore the file from where it was released"
_EXTRA: Final = "remove it, or make the folder again: nothing else belongs into it"


def read(root: Path, entries: Sequence[str]) -> dict[str, Digest | str]:
    """The SHA-256 of every file of a package, each read once; or why it cannot be read.

    Args:
        root: the package.
        entries: everything in it, with `/`; an empty folder ends with one.
    """
    files = [entry for entry in entries if not entry.endswith("/")]
    return hashing.of_each(lambda name: _hash(root / name), files)


def check(
    root: Path, entries: Sequence[str], found: Mapping[str, Digest | str]
) -> Iterator[Finding]:
    """Hold every file to what names it; `entries` and `found` are those of `read`."""
    for name, result in found.items():
        if isinstance(result, str):
            yield _finding("files", name, "fail", f"cannot be read: {result}", _CHANGED)
    read = {name: result for name, result in found.items() if isinstance(result, Digest)}
    yield from _sums(root, read)
    yield from _assets(read, entries)


def _sums(root: Path, found: Mapping[str, Digest]) -> Iterator[Finding]:
    if SUMS not in found:
        message = f"there is no {SUMS}: epctx did not make it, or the file was left behind"
        remedy = "ship the file with the folder; it tells every file's SHA-256"
        yield _finding("sums", SUMS, "not checkable", message, remedy)
        return
    listed, faults = integrity.read_sums(root, nested=True)
    yield from (_finding("sums", SUMS, "fail", fault, _CHANGED) for fault in faults)
    wanted = {each.name: each.digest for each in listed}
    for name in sorted(wanted.keys() - found.keys()):
        yield _finding("sums", name, "fail", f"is missing, {SUMS} lists it", _CHANGED)
    for name in sorted(found.keys() - wanted.keys() - {SUMS}):
        yield _finding("sums", name, "fail", f"is not in {SUMS}", _EXTRA)
    for name in sorted(found.keys() & wanted.keys()):
        if found[name] == wanted[name]:
            yield _finding("sums", name, "pass", f"its SHA-256 is that of {SUMS}")
        else:
            message = (
                f"was changed: its SHA-256 is {found[name].hex[:16]}…, "
                f"not {wanted[name].hex[:16]}… as in {SUMS}"
            )
            yield _finding("sums", name, "fail", message, _CHANGED)


def _assets(found: Mapping[str, Digest], entries: Sequence[str]) -> Iterator[Finding]:
    held: dict[str, dict[str, Digest]] = {}
    for entry in entries:
        top, _, rest = entry.partition("/")
        if top == ASSETS and rest:
            folder, _, inner = rest.partition("/")
            files = held.setdefault(folder, {})
            if entry in found:
                files[inner] = found[entry]
    for folder, files in sorted(held.items()):
        yield _asset(f"{ASSETS}/{folder}", files)


def _asset(place: str, files: Mapping[str, Digest]) -> Finding:
    named = assets.FOLDER.fullmatch(place.rpartition("/")[2])
    if named is None or "" in files:
        message = "is no asset: ONNX Runtime knows folders named sha256-<64 lowercase hex digits>"
        return _finding("assets", place, "fail", message, _EXTRA)
    foreign = [name for name in files if not unicodedata.is_normalized("NFC", name)]
    if foreign:
        message = f"holds {foreign[0]!r}, which is not in Unicode's form NFC"
        return _finding("assets", place, "fail", message, _CHANGED)
    own = digest.of_folder(files)
    if own.hex != named[1]:
        message = f"holds what is {own.hex[:16]}…, not what its name says"
        return _finding("assets", place, "fail", message, _CHANGED)
    return _finding("assets", place, "pass", "holds what its name says")


def _hash(path: Path) -> Digest | str:
    try:
        _, descriptor = open_regular(path, where=path.name)
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            return digest.of_stream(stream, "sha256")
    except (OSError, ModelError) as error:
        return str(getattr(error, "what", error))
