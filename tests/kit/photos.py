"""Photos of shapes, and a small model that tells them apart, for docs/howto/photos.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

LABELS = ("circle", "cross", "square")
SIDE = 32
_COUNTS = {"train": 120, "test": 20}
"""Photos of each shape, by use."""


def write(folder: Path) -> None:
    """Write `photos/<use>/<label>/<number>.ppm` and `shapes.onnx` into a folder.

    The weights of the convolutions are drawn, those of the last node are fitted to the photos for
    training by ridge regression.
    """
    draw = np.random.default_rng(0)
    images = {use: _photos(draw, count) for use, count in _COUNTS.items()}
    for use, taken in images.items():
        for place, pixels in enumerate(taken):
            number, label = place // len(LABELS), LABELS[place % len(LABELS)]
            path = folder / "photos" / use / label / f"{number}.ppm"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"P6\n%d %d\n255\n" % (SIDE, SIDE) + pixels.tobytes())
    edges = draw.standard_normal((16, 3, 5, 5)) * 0.2
    weights = {
        "w1": edges - edges.mean((2, 3), keepdims=True),
        "w2": draw.standard_normal((64, 16, 5, 5)) * 0.08,
    }
    session = ort.InferenceSession(_model("features", weights).SerializeToString())
    fed = (images["train"].transpose(0, 3, 1, 2) / 255).astype(np.float32)
    found = np.asarray(session.run(None, {"image": fed})[0], np.float64)
    found = np.c_[found, np.ones(len(found))]
    answers = np.tile(np.eye(len(LABELS)), (_COUNTS["train"], 1))
    fitted = np.linalg.solve(found.T @ found + 0.1 * np.eye(found.shape[1]), found.T @ answers)
    weights |= {"w3": fitted[:-1], "b3": fitted[-1]}
    onnx.save(_model("scores", weights), folder / "shapes.onnx")


def _photos(draw: np.random.Generator, count: int) -> npt.NDArray[np.uint8]:
    """Draw so many photos of each shape, of some size, place and colours: [photo, y, x, colour]."""
    y, x = np.mgrid[:SIDE, :SIDE]
    taken = []
    for place in range(count * len(LABELS)):
        (row, column), radius = draw.integers(13, 20, 2), draw.integers(7, 10)
        down, right = np.abs(y - row), np.abs(x - column)
        shape = {
            "circle": np.hypot(down, right) < radius,
            "cross": (np.minimum(down, right) < 2) & (np.maximum(down, right) < radius),
            "square": np.maximum(down, right) < radius,
        }[LABELS[place % len(LABELS)]]
        ground = draw.integers(0, 100, 3) + draw.integers(0, 40, (SIDE, SIDE, 3))
        taken.append(np.where(shape[..., None], ground + draw.integers(60, 110, 3), ground))
    return np.asarray(taken, np.uint8)


def _model(output: str, weights: dict[str, npt.NDArray[np.float64]]) -> onnx.ModelProto:
    """Two convolutions, and the last node if there are weights for it."""
    halved: dict[str, Any] = {"strides": [2, 2], "pads": [2, 2, 2, 2]}
    pooled: dict[str, Any] = {"kernel_shape": [4, 4], "strides": [4, 4]}
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["c1"], "conv1", **halved),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "conv2", **halved),
        helper.make_node("Relu", ["c2"], ["r2"], "relu2"),
        helper.make_node("AveragePool", ["r2"], ["p"], "pool", **pooled),
        helper.make_node("Flatten", ["p"], ["features"], "flatten"),
        helper.make_node("Gemm", ["features", "w3", "b3"], ["scores"], "classify"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes if "w3" in weights else nodes[:-1],
        "shapes",
        [value("image", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [value(output, TensorProto.FLOAT, ["batch", None])],
        [numpy_helper.from_array(v.astype(np.float32), name) for name, v in weights.items()],
    )
    opset = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)
