"""An action that epctx does not have: all that whoever adds one has to write."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from epctx.actions import kinds
from epctx.actions.action import Action, Code, WorkerContext


class ListingResult(Struct, frozen=True, kw_only=True):
    """The names of the files, and their size together, in the unit that was asked for."""

    names: tuple[str, ...]
    size: float


class Listing(Action[ListingResult], frozen=True, kw_only=True):
    """List the files of a group, and write the list to the new folder `folder`.

    Attributes:
        files: name to digest.
        unit: of sizes, in bytes.
        published: where the files are.
        lasts: seconds.
    """

    result = ListingResult
    kind = "list"
    code = Code((), ())
    beside = ("published", "folder", "lasts")
    writes = ("folder",)

    files: Mapping[str, str]
    unit: int
    published: Path = Path()
    folder: Path = Path()
    lasts: float = 0.0

    def run(self, worker: WorkerContext) -> ListingResult:
        """List them."""
        time.sleep(self.lasts)
        sizes = {name: (self.published / name).stat().st_size for name in sorted(self.files)}
        self.folder.mkdir(parents=True)
        text = "".join(f"{size / self.unit:g} {name}\n" for name, size in sizes.items())
        (self.folder / "list.txt").write_text(text, encoding="utf-8")
        return ListingResult(names=tuple(sizes), size=sum(sizes.values()) / self.unit)


KINDS = {**kinds.KINDS, Listing.__name__: Listing}
"""What the line in `actions.kinds` would make of them."""
