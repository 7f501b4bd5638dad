"""What of a folder is signed: every regular file in it but the signature, whatever it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from epctx.files import digest, hashing, paths
from epctx.files.digest import Digest
from epctx.files.entries import open_entry
from epctx.files.outputs import SIGNATURE
from epctx.signing.oms import IGNORED


def read(folder: Path) -> dict[str, Digest | str]:
    """The SHA-256 of every file, by its path with `/`; or why it has none: a link has none.

    Raises:
        OSError: a folder cannot be read.
    """
    unsigned = {SIGNATURE, *IGNORED}
    names = [
        name
        for name in paths.entries(folder)
        if not name.endswith("/") and name.split("/", 1)[0] not in unsigned
    ]
    return hashing.of_each(lambda name: _hash(folder, name), names)


def differences(
    signed: Mapping[str, str], found: Mapping[str, Digest | str]
) -> Iterator[tuple[str, str]]:
    """How a folder is not what was signed: each file, and what is wrong with it."""
    for name in sorted({*signed, *found}):
        present = found.get(name)
        if present is None:
            yield name, "is missing, and was signed"
        elif isinstance(present, str):
            yield name, present
        elif name not in signed:
            yield name, "is not signed"
        elif present.hex != signed[name]:
            yield name, "was changed since it was signed"


def _hash(folder: Path, name: str) -> Digest | str:
    if (fault := paths.objection(name)) is not None:
        return f"cannot be signed: {fault}"
    try:
        with open_entry(folder / name) as stream:
            return digest.of_stream(stream, "sha256")
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
