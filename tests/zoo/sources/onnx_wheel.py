"""What the onnx wheel carries: its light models, and the models of its backend tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.zoo.recipes import Recipe

BACKEND = ("simple", "pytorch-converted", "pytorch-operator")
"""Folders of onnx/backend/test/data beside `node`, whose single ops the integration tests build."""


def recipes() -> Iterator[Recipe]:
    """Light models with random weights, and the backend tests that are more than one op."""
    import onnx

    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for path in sorted((data / "light").glob("light_*.onnx")):
        name = path.stem.removeprefix("light_")
        yield Recipe(f"{name}.light", "onnx: light models", partial(_light, path), False)
    for kind in BACKEND:
        for path in sorted((data / kind).glob("*/model.onnx")):
            name = path.parent.name.removeprefix("test_")
            yield Recipe(
                f"{name}.backend", f"onnx: backend tests, {kind}", partial(_copy, path), False
            )


def _copy(path: Path, folder: Path) -> None:
    shutil.copyfile(path, folder / "model.onnx")


def _light(path: Path, folder: Path) -> None:
    from scripts import random_weights

    random_weights.convert(path, folder / "model.onnx")
