"""Digests of source models, before they are loaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from epctx.cache.digests import FileDigests, FreshDigests
from epctx.error_codes import Code
from epctx.errors import ModelError
from epctx.files import identity, paths
from epctx.files.digest import Digest
from epctx.files.entries import Irregular
from epctx.files.identity import Identity
from epctx.files.regular import absent, changed, require_bounded
from epctx.graph.serde import locations
from epctx.graph.weights.data_file import DataFile
from epctx.manifest import ModelSource

_MODEL = "check the path in the manifest"
_LIBRARY = "check `custom_ops` in the manifest"
_LIBRARY_LOCATION = "./custom_ops"
"""No data file's location, since those are normalized."""


@dataclass(frozen=True, kw_only=True)
class SourceDigests:
    """Digests of a source model: of the model file, and of its data files in order of location.

    Attributes:
        locations: locations of the data files in the model, with `/`, sorted; then
            `./custom_ops` if the source has such a library, which counts as one more data file.
        seen: identities of the files before they were hashed, the model first, to detect later
            changes. Not compared.
    """

    model: Digest
    locations: tuple[str, ...]
    data: tuple[Digest, ...]
    seen: tuple[Identity, ...] = field(default=(), compare=False)

    def files(self, source: ModelSource) -> dict[Path, Digest]:
        """Return the digests of a source's files by path, the model first."""
        folder = data_folder(source)
        places = [folder / place for place in self.locations]
        if source.custom_ops is not None:
            places[-1] = source.custom_ops
        return {source.path: self.model, **dict(zip(places, self.data, strict=True))}


class Sources:
    """Digests source models. Thread-safe.

    Args:
        digests: digests files.
    """

    def __init__(self, digests: FileDigests) -> None:
        self._digests = digests
        self._locations: dict[Digest, tuple[str, ...]] = {}

    def model(self, source: ModelSource) -> Digest:
        """Return the digest of the model file. Raises ModelError: it is missing, or unreadable."""
        return _digest(self._digests, source.path, _MODEL)

    def find(self, source: ModelSource) -> SourceDigests:
        """Return the digests of a source; weights are read only to digest them.

        Raises:
            ModelError: a file is missing, cannot be read or is no model; a data file lies outside
                the model's folder.
        """
        identities = [_identity(source.path, _MODEL)]
        model = self.model(source)
        if model not in self._locations:
            self._locations[model] = _plain(locations.of(source.path), source)
        places = self._locations[model]
        folder, needed = data_folder(source), _needed(source)
        identities += [_identity(folder / place, needed) for place in places]
        data = tuple(_digest(self._digests, folder / place, needed) for place in places)
        if not all((folder / each).resolve().is_relative_to(folder.resolve()) for each in places):
            # A cached result does not excuse a link that ONNX Runtime refuses.
            from epctx.graph.weights.external_data import DataFolder  # needs onnx

            file = DataFile.open(source.path)
            opened = DataFolder.of_model(source.path, file, source.external_data_dir)
            for place in places:
                opened.open(place, where=str(source.path))
        if source.custom_ops is not None:
            identities.append(_identity(source.custom_ops, _LIBRARY))
            data += (_digest(self._digests, source.custom_ops, _LIBRARY),)
            places += (_LIBRARY_LOCATION,)
        return SourceDigests(model=model, locations=places, data=data, seen=tuple(identities))


def _plain(locations: Iterable[str], source: ModelSource) -> tuple[str, ...]:
    """Return normalized locations, sorted."""
    for location in locations:
        fault = paths.fault(location)
        if fault is not None:
            raise ModelError(
                f"refers to external data {location!r}",
                file=str(source.path),
                why=fault,
                remedy="keep external data beside the model, or set `external_data_dir`",
            )
    return tuple(sorted({paths.normalize(location) for location in locations}))


def data_folder(source: ModelSource) -> Path:
    """Return the folder of a source's external data."""
    return source.external_data_dir or source.path.parent


def refuse_changed(source: ModelSource, digests: SourceDigests) -> None:
    """Refuse a source that changed since it was hashed.

    Raises:
        ModelError: one of its files changed.
    """
    for (path, content), before in zip(digests.files(source).items(), digests.seen, strict=True):
        now = _identity(path, _MODEL)
        silent = not identity.tells(path, now.text)  # only its bytes show a change
        if now != before or (silent and _digest(FreshDigests(), path, _MODEL) != content):
            raise changed(path)


def _needed(source: ModelSource) -> str:
    return f"{source.path.name} needs it: copy it there, or set `external_data_dir`"


def _identity(path: Path, remedy: str) -> Identity:
    try:
        return identity.of_path(path)
    except OSError as error:
        raise _unreadable(path, error, remedy) from error


def _digest(digests: FileDigests, path: Path, remedy: str) -> Digest:
    try:
        require_bounded(path.stat().st_size, where=str(path))
        return digests.of(path)
    except OSError as error:
        raise _unreadable(path, error, remedy) from error


def _unreadable(path: Path, error: OSError, remedy: str) -> ModelError:
    if remedy == _MODEL and isinstance(error, FileNotFoundError):
        return absent(path)
    if isinstance(error, FileNotFoundError):
        return ModelError(
            "does not exist",
            file=str(path),
            remedy=remedy,
            code=Code.DATA_MISSING,
        )
    return ModelError(
        "cannot be read",
        file=str(path),
        why=error.strerror,
        remedy=remedy,
        code=Code.NOT_REGULAR if isinstance(error, Irregular) else None,
    )
