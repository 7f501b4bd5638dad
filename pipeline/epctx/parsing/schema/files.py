"""Where the JSON Schemas are: in the wheel `epctx/_schemas`, else the checkout's `schemas`."""

from __future__ import annotations

import functools
import importlib.resources
from importlib.resources.abc import Traversable
from pathlib import Path

_SUFFIXES = {"": ".schema.json", "providers": ".options.json"}


@functools.cache
def root() -> Traversable:
    """The folder of the schemas (design section 4)."""
    packaged = importlib.resources.files("epctx") / "_schemas"
    return packaged if packaged.is_dir() else Path(__file__).parents[4] / "schemas"


def names() -> list[str]:
    """Every schema's name, sorted: `manifest`, `providers/QNNExecutionProvider`, ..."""
    found = []
    for folder, suffix in _SUFFIXES.items():
        place = root() / folder if folder else root()
        prefix = f"{folder}/" if folder else ""
        found += [
            prefix + entry.name.removesuffix(suffix)
            for entry in place.iterdir()
            if entry.name.endswith(suffix)
        ]
    return sorted(found)


def find(name: str) -> str | None:
    """A schema's text by its name; None if there is none of that name."""
    if name not in names():  # a manifest may say any name, of any length
        return None
    folder, _, stem = name.rpartition("/")
    return (root() / folder / f"{stem}{_SUFFIXES[folder]}").read_text(encoding="utf-8")


def read(name: str) -> str:
    """The text of a schema that epctx cannot do without.

    Raises:
        FileNotFoundError: this installation of epctx is broken.
    """
    text = find(name)
    if text is None:
        raise FileNotFoundError(f"epctx is installed without its schema {name}")
    return text
