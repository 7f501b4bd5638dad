"""Example model: a small classifier of images with fixed random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from epctx.error_codes import Code
from epctx.errors import StorageError, UsageError
from epctx.files.atomic import replacing

NAME: Final = "digits.onnx"
_IMAGE, _CLASSES = 28, 10


def write(folder: Path, *, force: bool = False) -> Path:
    """Write the model `digits.onnx`: float32 `image` [1, 1, 28, 28] to `scores` [1, 10].

    Args:
        folder: destination folder, created if missing.
        force: overwrite an existing file.

    Raises:
        UsageError: a file of that name exists.
        StorageError: the model cannot be written.
    """
    path = folder / NAME
    if path.exists() and not force:
        raise UsageError(
            "the file already exists",
            file=path.as_posix(),
            remedy=f"use it: `epctx init {path.as_posix()}`; or replace it with --force",
            code=Code.IN_THE_WAY,
        )
    with StorageError.if_refused(
        "cannot be written",
        file=path.as_posix(),
        remedy="go to a folder that you may write to",
    ):
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            stream.write(_model())
    return path


def _model() -> bytes:
    import numpy as np
    from onnx import NodeProto, TensorProto, helper, numpy_helper

    draw = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> TensorProto:
        scale = float(np.prod(shape[1:])) ** -0.5
        values = draw.standard_normal(shape) * scale
        return numpy_helper.from_array(values.astype(np.float32), name)

    def halved(source: str, number: int) -> tuple[NodeProto, NodeProto]:
        """Add a convolution that halves height and width, and its activation."""
        names = [source, f"w{number}"]
        window: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
        return (
            helper.make_node("Conv", names, [f"c{number}"], f"conv{number}", **window),
            helper.make_node("Relu", [f"c{number}"], [f"r{number}"], f"relu{number}"),
        )

    nodes = [
        *halved("image", 1),
        *halved("r1", 2),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3"], ["scores"], "classify", transB=1),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "digits",
        [value("image", TensorProto.FLOAT, [1, 1, _IMAGE, _IMAGE])],
        [value("scores", TensorProto.FLOAT, [1, _CLASSES])],
        [weight("w1", 16, 1, 3, 3), weight("w2", 32, 16, 3, 3), weight("w3", _CLASSES, 32)],
    )
    opsets = [helper.make_opsetid("", 17)]
    encoded: bytes = helper.make_model(
        graph, opset_imports=opsets, ir_version=8, producer_name="epctx"
    ).SerializeToString(deterministic=True)
    return encoded
