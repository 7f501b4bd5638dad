"""Where the cache is, and whether it may be written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from epctx.errors import StorageError, UsageError

FOLDER_VARIABLE = "EPCTX_CACHE_DIR"
READONLY_VARIABLE = "EPCTX_CACHE_READONLY"
FORMAT = "v1"
"""Changes with the form of what is stored; the folders of other versions are left alone."""

_TAG = """\
Signature: 8a477f597d28d172789f06886806bc55
# This file is a cache directory tag created by epctx.
# For information about cache directory tags see https://bford.info/cachedir/
"""
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, kw_only=True)
class Location:
    """A cache's place. `folder` is absolute; with `readonly` nothing in it is ever changed."""

    folder: Path
    readonly: bool = False

    @property
    def root(self) -> Path:
        """The folder of this version's form."""
        return self.folder / FORMAT

    def make(self) -> None:
        """Make the folder where it is missing, and mark it as a cache.

        Raises:
            StorageError: the system refuses; the message names the two ways out.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            tag = self.folder / "CACHEDIR.TAG"
            if not tag.exists():
                tag.write_text(_TAG, encoding="utf-8")
        except OSError as error:
            raise refused(self.folder, error) from error


def locate(environment: Mapping[str, str] = os.environ) -> Location:
    """The cache of this user: `$EPCTX_CACHE_DIR`, else the platform's folder for caches.

    Raises:
        UsageError: `$EPCTX_CACHE_READONLY` is neither true nor false.
    """
    named = environment.get(FOLDER_VARIABLE, "")
    return Location(
        folder=Path(named).absolute() if named else _of_platform(),
        readonly=_truth(environment.get(READONLY_VARIABLE, "")),
    )


def refused(path: Path, error: Exception) -> StorageError:
    """The error for a cache that the system does not let us write or lock."""
    return StorageError(
        "the cache cannot be written",
        where=str(path),
        why=getattr(error, "strerror", None) or str(error),
        remedy=f"free some space, name another folder in {FOLDER_VARIABLE}, "
        f"set {READONLY_VARIABLE}=1, or build with --no-cache",
    )


def _of_platform() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("epctx", appauthor=False)


def _truth(value: str) -> bool:
    folded = value.strip().lower()
    if folded in _TRUE:
        return True
    if folded in _FALSE:
        return False
    raise UsageError(
        f"{READONLY_VARIABLE} is {value!r}",
        remedy=f"set it to 1 or 0, or unset it: `unset {READONLY_VARIABLE}`",
    )
