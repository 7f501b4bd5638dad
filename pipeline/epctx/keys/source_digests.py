"""The digests of source models, without reading weights or parsing models."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from epctx.cache.digests import FileDigests, FreshDigests
from epctx.cache.records import Records
from epctx.error_codes import Code
from epctx.errors import ModelError
from epctx.files import identity
from epctx.files.digest import Digest
from epctx.files.identity import Identity
from epctx.files.paths import fault as location_fault
from epctx.files.regular import absent, require_bounded
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


class Sources(Struct, frozen=True, kw_only=True):
    """Finds the digests of sources by what the cache knows of their models.

    Which data files a model refers to is a function of its bytes, so it is remembered by their
    digest when the model is loaded, and the model need not be parsed again.

    Attributes:
        digests: how files are digested.
        records: the cache's; None: it is not asked.
        reads: a model of which it knows nothing is looked into, since what was built of it may be
            found elsewhere; else it is loaded first.

    Every method that looks at a file raises ModelError where it is missing or cannot be read.
    """

    digests: FileDigests
    records: Records | None
    reads: bool = False

    def find(self, source: ModelSource) -> SourceDigests | None:
        """What the source is made of; None: no model with these bytes was loaded before."""
        if self.records is None:
            return self._read(source)
        seen = [_identity(source.path, _MODEL)]
        model = self.model(source)
        locations = self.records.read("references", model.hex, tuple[str, ...], used=True)
        if locations is None:
            return self._read(source)
        fault = next(filter(None, map(location_fault, locations)), None)
        if fault is not None:  # no model with such a location was ever loaded
            self.records.refuse("references", model.hex, f"refers to data outside: {fault}")
            return self._read(source)
        return self._of(source, model, locations, seen)

    def _read(self, source: ModelSource) -> SourceDigests | None:
        """By a look into the model, without its weights; None: whoever loads it will say why."""
        if not self.reads:
            return None
        with contextlib.suppress(ModelError):
            return self.of(source, locations_in(source.path))
        return None

    def of(self, source: ModelSource, locations: tuple[str, ...]) -> SourceDigests:
        """What the source is made of, by the locations that were read in it; remembered.

        Raises:
            ModelError: a location leads out of its folder.
        """
        fault = next(filter(None, map(location_fault, locations)), None)
        if fault is not None:
            raise ModelError(
                "refers to data outside",
                file=str(source.path),
                why=fault,
                remedy="keep external data beside the model, or set `external_data_dir`",
            )
        seen = [_identity(source.path, _MODEL)]
        found = self._of(source, self.model(source), locations, seen)
        self.remember(found)
        return found

    def _of(
        self,
        source: ModelSource,
        model: Digest,
        locations: tuple[str, ...],
        seen: list[Identity],
    ) -> SourceDigests:
        folder = data_folder(source)
        seen += [_identity(folder / location, _needed(source)) for location in locations]
        data = (self.data(source, folder / location) for location in locations)
        return SourceDigests(model=model, locations=locations, data=tuple(data), seen=tuple(seen))

    def model(self, source: ModelSource) -> Digest:
        """Digest of the model file."""
        return _digest(self.digests, source.path, _MODEL)

    def data(self, source: ModelSource, path: Path) -> Digest:
        """Digest of a data file of a source."""
        return _digest(self.digests, path, _needed(source))

    def remember(self, found: SourceDigests) -> None:
        """Note which data files a model refers to."""
        if self.records is not None:
            self.records.write("references", found.model.hex, found.locations)


def locations_in(model: Path) -> tuple[str, ...]:
    """The data files that a model refers to, sorted; no weight is read.

    Raises:
        ModelError: it is missing, or no model.
    """
    from epctx.graph.serde import skeleton

    tensors = skeleton.external_tensors(skeleton.read(model))
    return tuple(sorted({skeleton.location(tensor) for tensor in tensors}))


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
            raise ModelError(
                "was changed while it was built",
                file=str(path),
                remedy="build again when nothing writes to it",
            )


def identities(source: ModelSource, found: SourceDigests) -> tuple[Identity, ...]:
    """What a source's files are now, the model first.

    Raises:
        ModelError: one is missing.
    """
    return tuple(_identity(path, _MODEL) for path in found.files(source))


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
    if isinstance(error, FileNotFoundError) and remedy == _MODEL:
        return absent(path)
    if isinstance(error, FileNotFoundError):
        return ModelError(
            "does not exist",
            file=str(path),
            remedy=remedy,
            code=Code.MODEL_MISSING if remedy == _MODEL else Code.DATA_MISSING,
        )
    return ModelError(
        "cannot be read",
        file=str(path),
        why=error.strerror,
        remedy=remedy,
        code=Code.NOT_REGULAR if isinstance(error, IsADirectoryError) else None,
    )
