"""Writes the lock of each checked-in manifest beside it: `python -m scripts.locks [MANIFEST…]`.

Needs the QNN and OpenVINO packages in the versions of constraints.txt, and an Intel CPU for the
manifests openvino and package; elsewhere name the others. A lock that says what the builds give is
left as it is: it changes with what they give, not with every commit.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

import epctx
from epctx import lockfile
from scripts import quickstart_models

MANIFESTS = Path(__file__).parent.parent / "manifests"


def manifests() -> list[Path]:
    """The checked-in manifests."""
    found = sorted(MANIFESTS.glob("*.yaml"))
    return [path for path in found if not path.stem.endswith(".lock")]


def write(names: Collection[str]) -> None:
    """Build the manifests of these names, in a copy, without cache; all if none is named."""
    with tempfile.TemporaryDirectory(prefix="epctx-locks-") as scratch:
        folder = Path(scratch)
        quickstart_models.write(folder / "models")
        for path in manifests():
            if names and path.stem not in names:
                continue
            copy = folder / path.name
            shutil.copyfile(path, copy)
            if lockfile.place(path).exists():
                shutil.copyfile(lockfile.place(path), lockfile.place(copy))
            epctx.build(copy, out=folder / "dist", cache=False)
            shutil.copyfile(lockfile.place(copy), lockfile.place(path))


if __name__ == "__main__":
    write(sys.argv[1:])
