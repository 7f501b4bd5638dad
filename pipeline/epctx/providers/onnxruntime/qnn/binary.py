"""A QNN context binary, as the SDK's system library describes it.

That library can crash on a corrupt binary (real-eps.md section 5, offset 374), so what comes from
elsewhere is read in a process of its own, `binary_reader`. It finds a binary cut short, lengthened
or overwritten with zeros, and no changed weight.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from epctx import limits
from epctx.errors import InvalidGraph, ProviderUnavailable
from epctx.files.identity import of_content
from epctx.providers.base import BinaryGraph
from epctx.providers.onnxruntime import native_process
from epctx.providers.onnxruntime.qnn import binary_reader


class QnnContext(Struct, frozen=True, kw_only=True):
    """A context for one chip.

    Attributes:
        build_id: of the SDK that made it.
        api: core API version.
        blob: version of the HTP's part.
        blob_size: of the HTP's part, in bytes.
        size: of all of it, in bytes.
        soc_model: QNN's number of the chip it is for; None if the format has none.
        graphs: in the file's order; types have QNN's names without QNN_DATATYPE_, in lower case.
    """

    build_id: str
    api: str
    blob: str
    blob_size: int
    size: int
    soc_model: int | None
    graphs: tuple[BinaryGraph, ...]


class QnnBinary(Struct, frozen=True, kw_only=True):
    """A context binary.

    Attributes:
        contexts: one; of a flexible binary one for each chip, by its name.
        shared: of a flexible binary, the bytes of the weights that its contexts share.
    """

    contexts: tuple[QnnContext, ...]
    shared: int | None

    @property
    def flexible(self) -> bool:
        """The binary is for several chips."""
        return self.shared is not None


def read(library: Path, binary: Path) -> QnnBinary:
    """Read `binary` by `library` (libQnnSystem), once in a process.

    A file that was renamed since is known still, one that was written to is not.

    Raises:
        InvalidGraph: it is no such binary, or it is broken.
        ProviderUnavailable: the library cannot be loaded.
    """
    return _known(library, binary, _asked)


def read_here(library: Path, binary: Path) -> QnnBinary:
    """Read `binary` in this process. Only for what QNN itself has just written: its libraries are
    loaded.
    """
    return _known(library, binary, _read_here)


_KNOWN: Final[dict[tuple[Path, int, int, int, int], QnnBinary]] = {}


def _known(library: Path, binary: Path, ask: Callable[[Path, Path], QnnBinary]) -> QnnBinary:
    try:
        name = (library, *of_content(binary.stat()))
    except OSError as error:
        raise _broken(binary, error.strerror or str(error)) from error
    known = _KNOWN.get(name)
    if known is None:
        known = _KNOWN[name] = ask(library, binary)
    return known


def _read_here(library: Path, binary: Path) -> QnnBinary:
    try:
        found = binary_reader.contents(str(library), str(binary))
    except binary_reader.Unusable as error:
        raise _unusable(library, str(error)) from error
    except binary_reader.Refused as error:
        raise _broken(binary, str(error)) from error
    return msgspec.convert(found, QnnBinary)


def _asked(library: Path, binary: Path) -> QnnBinary:
    seconds = limits.READ_BINARY_SECONDS.value
    command = [sys.executable, "-P", "-m", binary_reader.__name__, str(library)]
    path = os.fsencode(binary.absolute())
    try:
        process = subprocess.run(command, input=path, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise _broken(binary, f"the QNN system library did not return within {seconds} s") from None
    if process.returncode == 0:
        return msgspec.json.decode(process.stdout, type=QnnBinary)
    words = process.stderr.decode(errors="replace").strip()
    if process.returncode == binary_reader.MISSING:
        raise _unusable(library, words)
    if process.returncode == binary_reader.REFUSED:
        raise _broken(binary, words)
    ended = native_process.describe_end(process.returncode)
    raise _broken(binary, f"the QNN system library was {ended}" if ended else words)


def _unusable(library: Path, why: str) -> ProviderUnavailable:
    return ProviderUnavailable(
        "the QNN system library cannot be used",
        file=str(library),
        why=why,
        remedy='run `pip install --force-reinstall "epctx[qnn]"`',
    )


def _broken(binary: Path, why: str) -> InvalidGraph:
    return InvalidGraph(
        "is no QNN context binary, or a broken one",
        file=str(binary),
        why=why,
        remedy="copy it again from where it was built, or build it again",
    )
