"""Every file that a lock stands for, by path: what an archive holds and an attestation names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from epctx.files import digest
from epctx.files.outputs import GOLDEN, SUMS
from epctx.lockfile.types import Lock, LockedFile


def files(lock: Lock, golden: Collection[str]) -> dict[str, LockedFile]:
    """Every published file, by its path from `dist/<name>`, with `/`.

    Args:
        golden: the folders, `<target>/<group or composition>`, whose golden files are there, too.
    """
    found: dict[str, LockedFile] = {}
    for folder, outputs in lock.folders.items():
        found |= dict(_folder(folder, outputs))
    for folder in golden:
        found |= dict(_folder(f"{folder}/{GOLDEN}", lock.golden[folder]))
    return found


def sums(outputs: Mapping[str, LockedFile]) -> LockedFile:
    """The SHA256SUMS of a folder with these files."""
    text = "".join(f"{outputs[name].sha256}  {name}\n" for name in sorted(outputs)).encode()
    return LockedFile(sha256=digest.of_bytes(text, "sha256").hex, size=len(text))


def _folder(folder: str, outputs: Mapping[str, LockedFile]) -> Iterator[tuple[str, LockedFile]]:
    for name, file in {**outputs, SUMS: sums(outputs)}.items():
        yield f"{folder}/{name}", file
