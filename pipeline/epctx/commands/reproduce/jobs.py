"""What the process that builds is told, and what it says: one JSON line each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from epctx.commands.reproduce.circumstances import Circumstances
from epctx.engine.events import Event
from epctx.engine.report import BuildReport
from epctx.errors import Failure


class BuildJob(Struct, frozen=True, kw_only=True):
    """Build a manifest without cache; models are not run.

    Attributes:
        folder: of the build, with all that it needs; the user's.
        only: as `epctx build --only`.
    """

    manifest: Path
    folder: Path
    only: tuple[str, ...]
    allow_outside: bool
    circumstances: Circumstances

    @property
    def out(self) -> Path:
        """The folder that gets the outputs."""
        return self.folder / "dist"


class Said(Struct, omit_defaults=True):
    """One line of the process that builds: one of these.

    Attributes:
        obstacles: by variation, what kept it from that; said first.
        event: an `Event`.
        report: the `BuildReport`; said last, as is `error`.
    """

    obstacles: Mapping[str, str] | None = None
    event: Event | None = None
    report: BuildReport | None = None
    error: Failure | None = None
