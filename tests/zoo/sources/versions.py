"""Models of other opsets, by onnx's version converter, and of several models, by onnx.compose."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.zoo.recipes import Recipe
from tests.zoo.sources import exporting, text, torch_modules, vision

NEWEST = 21
CONVERTED = {"unet": (torch_modules.MODULES["unet"], 9), "resnet": (vision.MAKERS["resnet"], 7)}
"""With the oldest opset that torch exports it with: the converter goes up, and seldom down."""
MERGED = {
    "resnet_twice": (vision.MAKERS["resnet"], vision.MAKERS["convnext"]),
    "text_and_image": (text.MAKERS["bert"], vision.MAKERS["vit"]),
}


def recipes() -> Iterator[Recipe]:
    """Each opset of a convolutional network, and models beside each other."""
    for name, (maker, oldest) in CONVERTED.items():
        for opset in range(oldest, NEWEST + 1):
            make = partial(_convert, maker, oldest, opset)
            yield Recipe(f"{name}.opset{opset}", f"onnx.version_converter, to {opset}", make)
    for name, makers in MERGED.items():
        yield Recipe(f"{name}.merged", "onnx.compose", partial(_merge, *makers))


def _convert(maker: exporting.Maker, oldest: int, opset: int, folder: Path) -> None:
    import onnx
    from onnx import version_converter

    exporting.export(maker, "script", folder, oldest)
    made = version_converter.convert_version(onnx.load(folder / "model.onnx"), opset)
    onnx.save(made, folder / "model.onnx")


def _merge(first: exporting.Maker, second: exporting.Maker, folder: Path) -> None:
    import onnx
    from onnx import compose

    parts = []
    for place, maker in enumerate((first, second)):
        part = folder / f"part{place}"
        part.mkdir()
        exporting.export(maker, "script", part)
        parts.append(onnx.load(part / "model.onnx"))
    named = [compose.add_prefix(part, f"part{place}/") for place, part in enumerate(parts)]
    graph = compose.merge_graphs(named[0].graph, named[1].graph, [])
    made = onnx.helper.make_model(graph, opset_imports=parts[0].opset_import, ir_version=10)
    onnx.save(made, folder / "model.onnx")
