"""Read a QNN context binary with the SDK's system library.

That library can crash on a corrupt binary (real-eps.md section 5, offset 374), so binaries from
outside are read in a process of its own, `binary_reader`. The library detects a truncated,
lengthened or zeroed binary, but no changed weight.
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
        build_id: build id of the SDK that made the context.
        api: core API version.
        blob: version of the HTP blob.
        blob_size: size of the HTP blob, in bytes.
        size: size of the whole context, in bytes.
        soc_model: QNN's number of the chip; None if the format has none.
        graphs: the graphs in the file's order. Types have QNN's names in lower case, without
            QNN_DATATYPE_.
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
        contexts: the one context; for a flexible binary a context per chip, by the context's name.
        shared: bytes of the weights that the contexts of a flexible binary share.
    """

    contexts: tuple[QnnContext, ...]
    shared: int | None

    @property
    def flexible(self) -> bool:
        """True if the binary is for several chips."""
        return self.shared is not None


def read(library: Path, binary: Path) -> QnnBinary:
    """Read `binary` with `library` (libQnnSystem). Memoized in the process.

    The memo survives renaming the file, but not writing to it.

    Raises:
        InvalidGraph: the file is not a QNN context binary, or is broken.
        ProviderUnavailable: the library cannot be loaded.
    """
    return _memoized(library, binary, _read_apart)


def read_here(library: Path, binary: Path) -> QnnBinary:
    """Read `binary` in this process. Only for files that QNN has just written in this process,
    where its libraries are loaded already.
    """
    return _memoized(library, binary, _read_here)


_MEMO: Final[dict[tuple[Path, int, int, int, int], QnnBinary]] = {}


def _memoized(library: Path, binary: Path, ask: Callable[[Path, Path], QnnBinary]) -> QnnBinary:
    try:
        name = (library, *of_content(binary.stat()))
    except OSError as error:
        raise _broken(binary, error.strerror or str(error)) from error
    content = _MEMO.get(name)
    if content is None:
        content = _MEMO[name] = ask(library, binary)
    return content


def _read_here(library: Path, binary: Path) -> QnnBinary:
    try:
        content = binary_reader.contents(str(library), str(binary))
    except binary_reader.Unusable as error:
        raise _unusable(library, str(error)) from error
    except binary_reader.Refused as error:
        raise _broken(binary, str(error)) from error
    return msgspec.convert(content, QnnBinary)


def _read_apart(library: Path, binary: Path) -> QnnBinary:
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
        "is not a QNN context binary, or is broken",
        file=str(binary),
        why=why,
        remedy="copy it again from where it was built, or build it again",
    )
