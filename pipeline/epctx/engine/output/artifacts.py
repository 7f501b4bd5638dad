"""What `epctx push` makes of a release, by its digest: known before it is pushed."""

from __future__ import annotations

from collections.abc import Mapping

from epctx.files import digest
from epctx.files.digest import Digest
from epctx.lockfile.types import LockedFile
from epctx.oci import artifact
from epctx.oci.artifact import Blob


def of_release(files: Mapping[str, LockedFile]) -> LockedFile:
    """The manifest of `dist/<name>`, of which these are the files, by path."""
    blobs = {
        path: Blob(digest=Digest("sha256", file.sha256), size=file.size)
        for path, file in files.items()
    }
    made = artifact.package(blobs)
    return LockedFile(sha256=made.digest.hex, size=len(made.manifest))


def named(content: str) -> LockedFile:
    """A manifest by its digest, `sha256:…`; its size is not known."""
    return LockedFile(sha256=digest.parsed(content, "sha256").hex, size=0)
