"""Shared assets: folders named by the digest of what is in them.

The canonical hash of a folder: a line `<sha256>  <path>` for each file, sorted by path, and the
SHA-256 of that text. ONNX Runtime does not check it when it opens a package (1.31.1).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from epctx.commands.package.form import ASSETS
from epctx.files.digest import Digest

REFERENCE: Final = re.compile(r"sha256:([0-9a-f]{64})(?:/(.*))?", re.DOTALL)
"""`sha256:<hex>`, or a path in that asset; the reader knows no other spelling."""
FOLDER: Final = re.compile(r"sha256-([0-9a-f]{64})")


def of_files(files: Mapping[str, Digest]) -> Digest:
    """The canonical hash of a folder.

    Args:
        files: the SHA-256 of each file, by its path in the folder, with `/`.
    """
    lines = (f"{files[path].hex}  {path}\n" for path in sorted(files, key=str.encode))
    return Digest("sha256", hashlib.sha256("".join(lines).encode()).hexdigest())


def folder(asset: Digest) -> str:
    """Where an asset is in its package."""
    return f"{ASSETS}/sha256-{asset.hex}"
