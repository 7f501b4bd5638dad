"""Where what was found corrupt goes: kept for whoever wants to know why, removed by gc."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from epctx.cache.location import Location
from epctx.files.entries import Irregular, open_entry

Notice = Callable[[str], None]
"""Hears of what was found corrupt or unreadable: one clause for people. From any thread."""


@dataclass(frozen=True, kw_only=True)
class Quarantine:
    """Sets aside what cannot be trusted. Never raises: who reads on takes it as missing."""

    location: Location
    notice: Notice

    @property
    def folder(self) -> Path:
        """Where it goes."""
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

    def open(self, path: Path) -> FileIO | None:
        """Open a file of the cache; None: there is none, or none to be read, which is told."""
        try:
            return open_entry(path)
        except FileNotFoundError:
            pass
        except Irregular as error:
            self.take(path, None, error.reason)
        except OSError as error:
            self.unreadable(path, error)
        return None

    def unreadable(self, path: Path, error: OSError) -> None:
        """Say that a file is there and cannot be read, of another user for example."""
        name = path.relative_to(self.location.root).as_posix()
        self.notice(f"{name} cannot be read ({error.strerror}) and is not used")
