"""Place of the cache, and whether it may be written."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import platformdirs

from epctx.error_codes import Code
from epctx.errors import StorageError, UsageError
from epctx.files import listing

FOLDER_VARIABLE = "EPCTX_CACHE_DIR"
READONLY_VARIABLE = "EPCTX_CACHE_READONLY"
SHARED_VARIABLE = "EPCTX_CACHE_SHARED"
FORMAT = "v2"
"""Version of the storage format; the folders of other versions are left alone."""
BEFORE = "v1"

_TAG = """\
Signature: 8a477f597d28d172789f06886806bc55
# This file is a cache directory tag created by epctx.
# For information about cache directory tags see https://bford.info/cachedir/
"""
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, kw_only=True)
class Location:
    """Location of a cache. `folder` is absolute; nothing in it is changed if `readonly`."""

    folder: Path
    readonly: bool = False

    @cached_property
    def root(self) -> Path:
        """Folder of this version of the storage format."""
        return self.folder / FORMAT

    @property
    def record_mode(self) -> int:
        """Mode of a new record: accessible only to the user and to those who may write to the
        folder.

        Raises:
            OSError: the folder does not exist.
        """
        mode = self.root.stat().st_mode
        return 0o600 | (mode & 0o022) << 1

    def make(self) -> None:
        """Make the folder if it is missing, and mark it as a cache.

        Raises:
            StorageError: the folder cannot be made.
        """
        with refusing(self.folder):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self.root.mkdir(mode=0o700, exist_ok=True)
            with (
                contextlib.suppress(FileExistsError),
                (self.folder / "CACHEDIR.TAG").open("x", encoding="utf-8") as tag,
            ):
                tag.write(_TAG)


def locate(environment: Mapping[str, str] = os.environ) -> Location:
    """Return the cache of this user: `$EPCTX_CACHE_DIR`, else the platform's folder for caches.

    Raises:
        UsageError: `$EPCTX_CACHE_READONLY` or `$EPCTX_CACHE_SHARED` is neither true nor false.
        StorageError: other users can write to the cache, and `$EPCTX_CACHE_SHARED` does not allow
            it.
    """
    named = environment.get(FOLDER_VARIABLE, "")
    location = Location(
        folder=Path(named).absolute()
        if named
        else platformdirs.user_cache_path("epctx", appauthor=False),
        readonly=_truth(READONLY_VARIABLE, environment),
    )
    if not _truth(SHARED_VARIABLE, environment):
        _require_own(location)
    return location


def _require_own(location: Location) -> None:
    """Refuse a cache that other users can write to, since its contents cannot be trusted.

    A digest shows that a file is unchanged, not who wrote it. On Windows the access control of the
    folder is not checked.

    Raises:
        StorageError: the folder belongs to another user, or others can write to it.
    """
    for folder in (location.folder, location.root):
        try:
            reason = _of_others(folder.stat())
        except OSError:
            return  # the folder is made, or refused, at its first use
        if reason is not None:
            raise StorageError(
                "the cache is not used",
                file=str(folder),
                why=f"{reason}, so its contents cannot be trusted",
                remedy=f"name a folder of your own in {FOLDER_VARIABLE}, build with --no-cache, "
                f"or, if whoever can write there is trusted, set {SHARED_VARIABLE}=1",
                code=Code.CACHE_REFUSED,
            )


def _of_others(status: os.stat_result) -> str | None:
    """Return why others can write to a folder; None if only this user can."""
    owner = listing.other_owner(status)
    if owner is not None:
        return f"it belongs to another user, {owner}"
    if sys.platform != "win32" and status.st_mode & 0o002:
        return f"everybody can write to it (mode {status.st_mode & 0o777:o})"
    return None


@contextlib.contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into StorageError: the cache cannot be written.

    Raises:
        StorageError: the block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise refused(path, error) from error


def refused(path: Path, error: Exception) -> StorageError:
    """Return the error for a cache that cannot be written or locked."""
    return StorageError(
        "the cache cannot be written",
        file=str(path),
        why=getattr(error, "strerror", None) or str(error),
        remedy=f"free some space, name another folder in {FOLDER_VARIABLE}, "
        f"set {READONLY_VARIABLE}=1, or build with --no-cache",
    )


def _truth(variable: str, environment: Mapping[str, str]) -> bool:
    value = environment.get(variable, "")
    folded = value.strip().lower()
    if folded in _TRUE:
        return True
    if folded in _FALSE:
        return False
    raise UsageError(
        f"{variable} is {value!r}",
        remedy=f"set it to 1 or 0, or unset it: `unset {variable}`",
        code=Code.ENVIRONMENT,
    )
