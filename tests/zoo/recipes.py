"""What the zoo is made of: each model has a name, says what wrote it, and is made by itself."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

SOURCES = (
    "text",
    "sequences",
    "vision",
    "audio",
    "torch_modules",
    "genai",
    "optimized",
    "quantized",
    "converters",
    "onnx_wheel",
    "trained",
    "versions",
    "oddities",
)
"""Modules of `sources`; each has `recipes()`, which imports no exporter."""


@dataclass(frozen=True)
class Recipe:
    """How to make one model.

    Attributes:
        name: `<model>.<what wrote it>`, as a folder's name.
        source: What wrote it, for the table: "torch.onnx (dynamo)", "skl2onnx".
        make: Writes `model.onnx` (and its external data) into the folder that it is given.
        needs_exporters: It is made in the environment of requirements.txt, not in epctx's own.
    """

    name: str
    source: str
    make: Callable[[Path], None]
    needs_exporters: bool = True


def all_recipes() -> dict[str, Recipe]:
    """Every recipe, by name."""
    modules = (importlib.import_module(f"tests.zoo.sources.{name}") for name in SOURCES)
    return unique(recipe for module in modules for recipe in module.recipes())


def unique(recipes: Iterable[Recipe]) -> dict[str, Recipe]:
    """`recipes` by name, of which no two are the same."""
    found: dict[str, Recipe] = {}
    for recipe in recipes:
        if recipe.name in found:
            raise ValueError(f"two recipes are called {recipe.name!r}")
        found[recipe.name] = recipe
    return found
