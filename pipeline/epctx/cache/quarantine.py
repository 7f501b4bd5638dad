"""Quarantine of corrupt files: kept for whoever wants to know why, removed by gc."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from epctx.cache.location import Location
from epctx.files.entries import Irregular, open_entry

R = TypeVar("R")

Notice = Callable[[str], None]
"""Hears of what was found corrupt or unreadable: one clause for people. From any thread."""


class Quarantine(Struct, frozen=True, kw_only=True):
    """Sets aside what cannot be trusted. Never raises: who reads on takes it as missing."""

    location: Location
    notice: Notice

    @property
    def folder(self) -> Path:
        """Folder of the quarantine."""
        return self.location.root / "quarantine"

    def take(self, path: Path, found: os.stat_result | None, why: str) -> None:
        """Set a file aside, if it still is the one that was `found`; say `why`."""
        name = path.relative_to(self.location.root).as_posix()
        if self.location.readonly:
            self.notice(f"{name} {why}; the cache is read-only, it stays and is not used")
            return
        with contextlib.suppress(OSError):
            # Another process may have made it again meanwhile: that one is good.
            if found is None or os.path.samestat(found, path.lstat()):
                self.folder.mkdir(exist_ok=True)
                path.replace(
                    self.folder / f"{path.parent.parent.name}-{path.name}-{uuid.uuid4().hex[:8]}"
                )
        self.notice(f"{name} {why}; set aside, it will be made again")

    def read(self, path: Path, read: Callable[[FileIO], R]) -> tuple[os.stat_result, R] | None:
        """Return a file's status, and what `read` makes of it; None if there is no file.

        Nor is one that is no regular file, which is set aside, or that cannot be read, of another
        user for example: that is said.
        """
        try:
            with open_entry(path) as stream:
                return os.fstat(stream.fileno()), read(stream)
        except FileNotFoundError:
            pass
        except Irregular as error:
            self.take(path, None, error.reason)
        except OSError as error:
            name = path.relative_to(self.location.root).as_posix()
            self.notice(f"{name} cannot be read ({error.strerror}) and is not used")
        return None
