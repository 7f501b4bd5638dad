"""`<manifest stem>.ranges.json`: calibrated ranges of quantized models, beside the lock.

Calibration runs a model, and its last digits depend on the kind of CPU. So the file is checked in:
a build whose calibration is in the file runs nothing, and makes the same bytes on every host.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from epctx import limits
from epctx.error_codes import Code
from epctx.errors import ManifestError
from epctx.files import atomic
from epctx.files.digest import Digest, of_bytes
from epctx.files.entries import open_entry
from epctx.lockfile.types import LockedFile
from epctx.manifest import Manifest
from epctx.quantization.ranges import parse, text

VERSION = 1
_LARGEST: Final = 3.4028234663852886e38


class _Calibration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ranges of one model: the lowest and the highest value of each tensor."""

    model: str
    ranges: dict[str, tuple[float, float]]


class _Document(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema_version: int = VERSION
    calibrations: Mapping[str, _Calibration] = field(default_factory=dict)


def place(manifest: Path) -> Path:
    """Return the path of a manifest's ranges."""
    return manifest.with_name(f"{manifest.stem}.ranges.json")


def of(manifest: Manifest, *, anew: bool = False) -> Ranges:
    """Read the ranges of a manifest; empty if nothing is quantized.

    Raises:
        ManifestError: the file is invalid.
    """
    groups = (group for target in manifest.targets for group in target.groups)
    quantizes = any(group.quantize is not None for group in groups)
    return Ranges(place(manifest.path) if quantizes else None, anew=anew)


class Ranges:
    """Ranges of a manifest's models: those of the file, and those that a build uses.

    Args:
        path: the file, which need not exist; None without quantized models.
        anew: whether to ignore the ranges of the file.

    Raises:
        ManifestError: the file is invalid.
    """

    def __init__(self, path: Path | None, *, anew: bool = False) -> None:
        self.anew = anew
        self.path = path
        self._lock = threading.Lock()
        self._content = None if path is None else _content(path)
        document = _Document()
        if path is not None and self._content is not None:
            document = _parse(path, self._content)
        self._known = {} if anew else dict(document.calibrations)
        self._used: dict[str, _Calibration] = {}

    def find(self, calibration: Digest) -> str | None:
        """Return the ranges of a calibration, as text; None if they are unknown."""
        with self._lock:
            calibrated = self._known.get(str(calibration))
        return None if calibrated is None else text(calibrated.ranges)

    def use(self, calibration: Digest, model: str, ranges: str) -> None:
        """Note the ranges of a quantized model of this build."""
        calibrated = _Calibration(model=model, ranges=parse(ranges))
        with self._lock:
            self._known[str(calibration)] = self._used[str(calibration)] = calibrated

    def content(self, *, whole: bool) -> bytes | None:
        """Return the new content of the file; None if there are no ranges.

        Args:
            whole: whether the whole manifest was built; otherwise older ranges stay.
        """
        calibrations = self._used if whole else self._known
        if not calibrations:
            return None
        document = _Document(calibrations=dict(sorted(calibrations.items())))
        fields = msgspec.to_builtins(document)
        return (json.dumps(fields, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()

    def locked(self, *, whole: bool) -> LockedFile | None:
        """Return the lock's entry of the new content."""
        content = self.content(whole=whole)
        return None if content is None else _locked(content)

    @property
    def present(self) -> LockedFile | None:
        """The lock's entry of the present file; None if there is none."""
        return None if self._content is None else _locked(self._content)

    def write(self, *, whole: bool) -> None:
        """Write the file if its content changes.

        Raises:
            StorageError: the disk refuses.
        """
        content = self.content(whole=whole)
        if self.path is not None and content is not None and content != self._content:
            atomic.replace(self.path, content)


def _locked(content: bytes) -> LockedFile:
    return LockedFile(sha256=of_bytes(content, "sha256").hex, size=len(content))


def _content(path: Path) -> bytes | None:
    try:
        with open_entry(path) as stream:
            content = stream.read(limits.LOCK_BYTES.value + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    if len(content) > limits.LOCK_BYTES.value:
        raise _unreadable(path, f"it is larger than {limits.LOCK_BYTES}")
    return content


def _parse(path: Path, content: bytes) -> _Document:
    try:
        document = msgspec.json.decode(content, type=_Document)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _unreadable(path, str(error)) from error
    if document.schema_version != VERSION:
        raise _unreadable(path, f"schema_version {document.schema_version}, this epctx reads 1")
    for each in document.calibrations.values():
        for name, (low, high) in each.ranges.items():
            if not -_LARGEST <= low <= high <= _LARGEST:
                raise _unreadable(path, f"[{low}, {high}] of {name!r} is not a float32 range")
    return document


def _unreadable(path: Path, why: str) -> ManifestError:
    return ManifestError(
        "is not a file of calibrated ranges",
        file=str(path),
        why=why,
        remedy="restore it; or remove it, and `epctx build` calibrates again",
        code=Code.CALIBRATION,
    )
