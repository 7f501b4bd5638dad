"""`dist/<name>/model.sig`, while builds go on: it goes when it is of something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from epctx import limits
from epctx.engine.output.place import OutputPaths
from epctx.files.entries import discard, open_entry
from epctx.files.outputs import OutputFile, writing
from epctx.signing import oms
from epctx.signing.keys import Refused


def withdraw(place: OutputPaths, made: Mapping[str, Sequence[OutputFile]], *, whole: bool) -> bool:
    """Remove the signature of what is published, unless it is of what is about to be, too.

    Args:
        made: every file but SHA256SUMS of each folder that is about to be.
        whole: there will be no other folder.

    Returns:
        Whether it was removed.

    Raises:
        StorageError: the system refuses.
    """
    try:
        with open_entry(place.signature) as stream:
            signed = oms.unverified_files(stream.read(limits.SIGNATURE_BYTES.value))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, Refused):
        signed = {}
    new = {f"{folder}/{file.name}": file.sha256.hex for folder, fs in made.items() for file in fs}
    folders = {"/".join(name.split("/")[:2]) for name in signed}
    if new.items() <= signed.items() and (not whole or folders == made.keys()):
        return False
    with writing(place.signature):
        discard(place.signature)
    return True
