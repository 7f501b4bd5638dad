"""The digests of source models, which nobody has loaded yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from epctx.cache.digests import FileDigests, FreshDigests
from epctx.error_codes import Code
from epctx.errors import ModelError
from epctx.files import identity, paths
from epctx.files.digest import Digest
from epctx.files.identity import Identity
from epctx.files.regular import absent, changed, require_bounded
from epctx.graph.serde import locations
from epctx.manifest import ModelSource

_MODEL = "check the path in the manifest"


@dataclass(frozen=True, kw_only=True)
class SourceDigests:
    """A source model's content: of the model file, then of its data files by location.

    Attributes:
        locations: of the data files, as the model refers to them, with `/`, sorted.
        seen: what the files were before they were hashed, the model first; it tells whether they
            have changed since. Not compared.
    """

    model: Digest
    locations: tuple[str, ...]
    data: tuple[Digest, ...]
    seen: tuple[Identity, ...] = field(default=(), compare=False)

    def files(self, source: ModelSource) -> dict[Path, Digest]:
        """The files that a source with this content is made of, the model first."""
        folder = data_folder(source)
        data = zip(self.locations, self.data, strict=True)
        return {source.path: self.model, **{folder / place: content for place, content in data}}


class Sources:
    """Finds what source models are made of. Thread-safe.

    Args:
        digests: how files are digested.
    """

    def __init__(self, digests: FileDigests) -> None:
        self._digests = digests
        self._locations: dict[Digest, tuple[str, ...]] = {}

    def model(self, source: ModelSource) -> Digest:
        """Return the digest of the model file. Raises ModelError: it is missing, or unreadable."""
        return _digest(self._digests, source.path, _MODEL)

    def find(self, source: ModelSource) -> SourceDigests:
        """Return what a source is made of; of weights nothing is read but to digest them.

        Raises:
            ModelError: a file is missing, cannot be read or is no model; one that it refers to
                lies outside.
        """
        seen = [_identity(source.path, _MODEL)]
        model = self.model(source)
        if model not in self._locations:
            self._locations[model] = _plain(locations.of(source.path), source)
        places = self._locations[model]
        folder, needed = data_folder(source), _needed(source)
        seen += [_identity(folder / place, needed) for place in places]
        data = tuple(_digest(self._digests, folder / place, needed) for place in places)
        return SourceDigests(model=model, locations=places, data=data, seen=tuple(seen))


def _plain(found: Iterable[str], source: ModelSource) -> tuple[str, ...]:
    """One spelling for each location, sorted."""
    for location in found:
        fault = paths.fault(location)
        if fault is not None:
            raise ModelError(
                f"refers to external data {location!r}",
                file=str(source.path),
                why=fault,
                remedy="keep external data beside the model, or set `external_data_dir`",
            )
    return tuple(sorted({paths.normalize(location) for location in found}))


def data_folder(source: ModelSource) -> Path:
    """Where the locations of external data are resolved."""
    return source.external_data_dir or source.path.parent


def refuse_changed(source: ModelSource, found: SourceDigests) -> None:
    """Make sure that a source is what it was when it was hashed.

    Raises:
        ModelError: one of its files was written to since.
    """
    for (path, content), seen in zip(found.files(source).items(), found.seen, strict=True):
        now = _identity(path, _MODEL)
        silent = not identity.tells(path, now.text)  # then only its bytes tell
        if now != seen or (silent and _digest(FreshDigests(), path, _MODEL) != content):
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
        code=Code.NOT_REGULAR if isinstance(error, IsADirectoryError) else None,
    )
