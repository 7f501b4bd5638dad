"""What is pushed of a folder: what its SHA256SUMS list, and what is said of it beside."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from epctx import codec, limits
from epctx.commands.package import finding
from epctx.commands.package.form import MANIFEST
from epctx.engine.output.place import PACKAGE
from epctx.error_codes import Code
from epctx.errors import UsageError, VerificationError
from epctx.files import digest, hashing, outputs, paths
from epctx.files.digest import Digest
from epctx.files.regular import open_regular
from epctx.oci.artifact import ATTESTATION, ATTESTATION_FILES, SIGNATURE, Blob
from epctx.verification import integrity


class Attached(Struct, frozen=True, kw_only=True):
    """A file that is about a package: its media type, its name, what it says."""

    kind: str
    name: str
    content: bytes


class _Named(Struct, frozen=True):
    package_name: str | None = None


def files(folder: Path) -> dict[str, Blob]:
    """Every file of a package, or of the groups in a folder, by its path, with `/`.

    Raises:
        UsageError: it is neither.
        ModelError: a file cannot be read.
        VerificationError: a file is not what SHA256SUMS says, or is in none.
    """
    names = [name for name in paths.entries(folder) if name != outputs.SIGNATURE]
    expected = _expected(folder, names)
    found = hashing.of_each(lambda name: _blob(folder / name), _regular(folder, names))
    for name in sorted({*found, *expected}):
        if name not in found:
            raise _wrong(folder / name, f"is missing, and {outputs.SUMS} lists it")
        if name not in expected and name.rpartition("/")[2] != outputs.SUMS:
            raise _wrong(folder / name, f"is in no {outputs.SUMS}")
        if name in expected and found[name].digest != expected[name]:
            raise _wrong(folder / name, f"was changed: it is not what {outputs.SUMS} says")
    return found


def name(folder: Path) -> str | None:
    """What a package calls itself; None: it does not, or it is none."""
    if not finding.is_package(folder):
        return None
    return codec.decode(_read(folder / MANIFEST), _Named).package_name


def attached(folder: Path, content: Digest) -> Iterator[Attached]:
    """The signature in a folder, and the attestations beside it.

    Raises:
        VerificationError: an attestation is about something else than the artifact of this digest.
    """
    signature = folder / outputs.SIGNATURE
    if signature.is_file():
        yield Attached(kind=SIGNATURE, name=outputs.SIGNATURE, content=_read(signature))
    stem = folder.name.removesuffix(PACKAGE)
    for place in (folder.with_name(f"{stem}{ending}") for ending in ATTESTATION_FILES):
        if place.is_file():
            told = _read(place)
            if place.suffix == ".json" and not names(told, content):
                raise VerificationError(
                    "is of another package, or of none",
                    file=place.as_posix(),
                    why=f"none of its subjects is {content}",
                    remedy="make it anew: `epctx package --attest`; or move it away",
                    code=Code.INTEGRITY,
                )
            yield Attached(kind=ATTESTATION, name=place.name, content=told)


def names(attestation: bytes, content: Digest) -> bool:
    """Whether an in-toto statement has the artifact of this digest among its subjects."""
    try:
        document: Any = json.loads(attestation)
        return any(each["digest"]["sha256"] == content.hex for each in document["subject"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _expected(folder: Path, names: Sequence[str]) -> Mapping[str, Digest]:
    """The digest of each file that a SHA256SUMS lists."""
    nested = finding.is_package(folder)
    sums = [
        each
        for each in names
        if each.rpartition("/")[2] == outputs.SUMS and not (nested and "/" in each)
    ]
    if not sums:
        raise UsageError(
            f"is no package, and has no group that was built: there is no {outputs.SUMS}",
            file=folder.as_posix(),
            remedy="name dist/<name>.ortpackage, which `epctx package` writes, or dist/<name>",
            code=Code.NO_SUCH_PATH,
        )
    expected: dict[str, Digest] = {}
    for each in sums:
        inner = each.removesuffix(outputs.SUMS)
        listed, faults = integrity.read_sums(folder / inner, nested=nested)
        if faults:
            raise _wrong(folder / each, faults[0])
        expected |= {f"{inner}{file.name}": file.digest for file in listed}
    return expected


def _regular(folder: Path, names: Sequence[str]) -> Sequence[str]:
    for each in names:
        if (reason := paths.missing(folder, each)) is not None:
            raise _wrong(folder / each, f"is no file of a package: {reason}")
        if not paths.is_plain(each):
            raise _wrong(folder / each, "has a name that is none on every system")
    return names


def _blob(path: Path) -> Blob:
    _, descriptor = open_regular(path, where=path.as_posix())
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        size = os.fstat(descriptor).st_size
        return Blob(digest=digest.of_stream(stream, "sha256"), size=size)


def _read(path: Path) -> bytes:
    _, descriptor = open_regular(path, where=path.as_posix())
    with os.fdopen(descriptor, "rb") as stream:
        content = stream.read(limits.REGISTRY_ATTACHED_BYTES.value + 1)
    if len(content) > limits.REGISTRY_ATTACHED_BYTES.value:
        raise _wrong(path, f"is larger than {limits.REGISTRY_ATTACHED_BYTES}")
    return content


def _wrong(path: Path, what: str) -> VerificationError:
    return VerificationError(
        what,
        file=path.as_posix(),
        remedy="push nothing that was changed: build it again; `epctx verify` says more",
        code=Code.INTEGRITY,
    )
