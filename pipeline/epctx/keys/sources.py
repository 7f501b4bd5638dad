"""The digests of source models, without reading weights or parsing models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from epctx.cache.digests import FileDigests
from epctx.cache.records import Records
from epctx.digest import Digest
from epctx.errors import ModelError
from epctx.manifest import ModelSource


@dataclass(frozen=True, kw_only=True)
class SourceDigests:
    """A source model's content: of the model file, then of its data files by location.

    Attributes:
        locations: of the data files, as the model refers to them, with `/`, sorted.
    """

    model: Digest
    locations: tuple[str, ...]
    data: tuple[Digest, ...]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Finds the digests of sources by what the cache knows of their models.

    Which data files a model refers to is a function of its bytes, so it is remembered by their
    digest when the model is loaded, and the model need not be parsed again.

    Attributes:
        digests: how files are digested.
        records: the cache's; None: without a cache every model is loaded.
    """

    digests: FileDigests
    records: Records | None

    def find(self, source: ModelSource) -> SourceDigests | None:
        """What the source is made of; None: no model with these bytes was loaded before.

        Raises:
            ModelError: a file is missing or cannot be read.
        """
        if self.records is None:
            return None
        model = _digest(self.digests, source.path, "check the path in the manifest")
        locations = self.records.read("references", model.hex, tuple[str, ...])
        if locations is None:
            return None
        self.records.used("references", model.hex)
        remedy = f"{source.path.name} needs it: copy it there, or set `external_data_dir`"
        data = (
            _digest(self.digests, data_folder(source) / location, remedy) for location in locations
        )
        return SourceDigests(model=model, locations=locations, data=tuple(data))

    def remember(self, found: SourceDigests) -> None:
        """Note which data files a model refers to.

        Raises:
            StorageError: the cache cannot be written.
        """
        if self.records is not None:
            self.records.write("references", found.model.hex, found.locations)


def data_folder(source: ModelSource) -> Path:
    """Where the locations of external data are resolved."""
    return source.external_data_dir or source.path.parent


def _digest(digests: FileDigests, path: Path, remedy: str) -> Digest:
    try:
        return digests.of(path)
    except FileNotFoundError as error:
        raise ModelError("does not exist", where=str(path), remedy=remedy) from error
    except OSError as error:
        raise ModelError(
            "cannot be read", where=str(path), why=error.strerror, remedy=remedy
        ) from error
