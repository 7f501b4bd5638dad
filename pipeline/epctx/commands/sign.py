"""`epctx sign`: sign the files of a folder, with the signature in the same folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from epctx.engine.output.place import undisturbed
from epctx.error_codes import Code
from epctx.errors import UsageError, VerificationError
from epctx.files import atomic
from epctx.files.digest import Digest
from epctx.files.outputs import SIGNATURE, SUMS
from epctx.signing import oms
from epctx.signing.keys import Signer
from epctx.text import Brief
from epctx.verification import integrity

_REMEDY: Final = "build it again, or copy it again from where it was built; then sign"


class SignReport(Brief, frozen=True, kw_only=True):
    """Report of a signature.

    Attributes:
        path: path of the signature.
        signer: subject of the certificate, or name of the key.
        files: number of signed files.
    """

    path: str
    signer: str
    files: int


def run(folder: Path, signer: Signer, waiting: Callable[[], None]) -> SignReport:
    """Sign every file of a folder, and write the signature into the folder.

    Args:
        waiting: called once if a build holds the folder.

    Raises:
        UsageError: the path is not a folder, the folder has no files, or an entry such as a link
            cannot be signed.
        VerificationError: a file does not match a `SHA256SUMS` in the folder.
        StorageError: the signature cannot be written.
    """
    place, shown = folder.resolve(), folder.as_posix()
    with undisturbed([folder], waiting):
        with UsageError.if_refused("cannot be read", file=shown, remedy="name a folder"):
            digests = oms.folder_digests(place)
        files = {name: each.hex for name, each in digests.items() if isinstance(each, Digest)}
        for name, each in digests.items():
            if isinstance(each, str):
                raise _refused(f"{shown}/{name}", each, "remove it: a signature only covers files")
        if not files:
            raise _refused(shown, "has no file to sign", "name what `epctx build` wrote")
        _refuse_changed(place, shown, files)
        atomic.replace(place / SIGNATURE, oms.sign(signer, place.name, files))
    path = (folder / SIGNATURE).as_posix()
    return SignReport(path=path, signer=signer.name, files=len(files))


def _refuse_changed(place: Path, shown: str, files: Mapping[str, str]) -> None:
    """Refuse files that do not match a SHA256SUMS among them."""
    for sums in (name for name in files if name.rpartition("/")[2] == SUMS):
        base = sums.removesuffix(SUMS)
        listed, faults = integrity.read_sums(place / base, nested=True)
        for fault in faults:
            raise _changed(f"{shown}/{sums}", fault)
        for each in listed:
            if files.get(base + each.name) != each.digest.hex:
                raise _changed(f"{shown}/{base}{each.name}", f"does not match {SUMS}")


def _changed(file: str, what: str) -> VerificationError:
    return VerificationError(what, file=file, remedy=_REMEDY, code=Code.INTEGRITY)


def _refused(file: str, what: str, remedy: str) -> UsageError:
    return UsageError(what, file=file, remedy=remedy, code=Code.INPUT_MISFIT)
