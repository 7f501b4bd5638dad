"""Where the texts of a package lead: into a folder of it, or into a shared asset.

As ONNX Runtime 1.31.1 resolves them in the portable layout: relative, inside, no `..`, and
`sha256:<64 lowercase hex>` with or without a path in the asset.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from epctx.commands.package import assets
from epctx.files import paths
from epctx.files.digest import Digest
from epctx.files.listing import is_link

COMPONENT: Final = "component.json"


class Unresolved(Exception):
    """A text leads to nothing that may be in a package; says why."""


class PackagePlaces(Struct, frozen=True, kw_only=True):
    """Resolves texts of the package in `root`; all results are relative to it, with `/`.

    Attributes:
        overrides: `shared_assets` of the manifest: asset to folder.
    """

    root: Path
    overrides: Mapping[str, str]

    def component(self, text: str) -> str:
        """The file of an external component, which may be given as its folder.

        Raises:
            Unresolved: there is none.
        """
        found = self.anything("", text)
        if (self.root / found).is_dir():
            found = f"{found}/{COMPONENT}"
        return self.file("", found)

    def folder(self, base: str, text: str) -> str:
        """A variant's folder, `base` being the component's. Raises Unresolved."""
        found = self.anything(base, text)
        if not (self.root / found).is_dir():
            raise Unresolved(f"{text!r} is not a folder")
        return found

    def file(self, base: str, text: str) -> str:
        """A regular file. Raises Unresolved."""
        found = self.anything(base, text)
        reason = paths.missing(self.root, found)
        if reason is not None:
            raise Unresolved(f"{text!r}: {reason}")
        return found

    def anything(self, base: str, text: str) -> str:
        """A file or a folder that is there, reached without a link. Raises Unresolved."""
        asset = assets.REFERENCE.fullmatch(text)
        if asset is not None:
            uri, inner = f"sha256:{asset[1]}", asset[2]
            own = self.overrides.get(uri) or assets.folder(Digest("sha256", asset[1]))
            joined = own if inner is None else f"{own}/{inner}"
        else:
            joined = f"{base}/{text}" if base and paths.objection(text) is None else text
        reason = paths.objection(joined)
        if reason is not None:
            raise Unresolved(f"{text!r}: {reason}")
        place = self.root
        for part in joined.split("/"):
            place = place / part
            try:
                status = place.lstat()
            except (OSError, ValueError):
                raise Unresolved(f"{text!r} does not exist in the package") from None
            if is_link(status):
                raise Unresolved(f"{text!r} leads over a link")
        return place.relative_to(self.root).as_posix()
