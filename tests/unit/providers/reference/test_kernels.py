"""The reference EP computes what the kernels compute, on weights that are given as OrtValues."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from tests.kit import onnx_text, passing
from tests.kit.building import assert_close, normal

TURNED = """g (float[1, 16, 4, 16] x) => (float[1, 16, 4, 16] y) {
    turned = Transpose <perm = [0, 2, 1, 3]> (x)
    rotated = Mul (turned, w)
    shifted = Add (rotated, turned)
    y = Transpose <perm = [0, 2, 1, 3]> (shifted)
}"""


def test_a_weight_between_transposes_is_what_the_model_says(tmp_path: Path) -> None:
    model = onnx_text.proto(TURNED)
    weight = np.arange(256, dtype=np.float32).reshape(1, 1, 16, 16) / 256
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    feeds = {"x": normal((1, 16, 4, 16))}
    wanted = passing.stock(path, feeds)
    assert_close(passing.through(path, tmp_path, feeds, "basic"), wanted)
