"""Shared assets: folders named by the digest of what is in them.

Their digest is `files.digest.of_folder`. ONNX Runtime does not check it when it opens a package
(1.31.1).
"""

from __future__ import annotations

import re
from typing import Final

from epctx.commands.package.form import ASSETS
from epctx.files.digest import Digest

REFERENCE: Final = re.compile(r"sha256:([0-9a-f]{64})(?:/(.*))?", re.DOTALL)
"""`sha256:<hex>`, or a path in that asset; the reader knows no other spelling."""
FOLDER: Final = re.compile(r"sha256-([0-9a-f]{64})")


def folder(asset: Digest) -> str:
    """Where an asset is in its package."""
    return f"{ASSETS}/sha256-{asset.hex}"
