"""The stage: a model in, a quantized one out, what it lost, and nothing beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from epctx.errors import ManifestError, ModelError
from epctx.manifest import Calibration, Pieces, QuantizeSettings
from epctx.quantization.loss import sqnr
from epctx.stages import quantize
from epctx.stages.quantize import QuantizedModel
from tests.kit import onnx_text, optimizing
from tests.kit.building import mlp, normal

RANDOM = Calibration(random=True, count=4)


def run(
    folder: Path,
    model: onnx.ModelProto,
    *,
    ranges: str | None = None,
    pieces: Pieces | None = None,
    **settings: Any,
) -> QuantizedModel:
    folder.mkdir(parents=True)
    optimized = optimizing.optimized(model, "basic", scratch=folder.parent)
    asked = QuantizeSettings(**{"calibration": RANDOM, **settings})
    return quantize.run(optimized, asked, "qnn", folder, pieces=pieces, ranges=ranges, others=())


def test_what_comes_out_computes_what_went_in_but_for_its_noise(tmp_path: Path) -> None:
    model = mlp(width=32, layers=2)
    made = run(tmp_path / "q", model)
    assert [file.location for file in made.files] == [quantize.FILE]
    assert [path.name for path in tmp_path.iterdir()] == ["q"], "scratch is gone"
    feeds = {"x": normal((1, 32)) / 2}
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    found = ort.InferenceSession(tmp_path / "q" / quantize.FILE).run(None, feeds)[0]
    noise = sqnr(wanted, found)
    assert noise is not None and 25 < noise < 90
    told = made.report
    assert (told.preset, told.activations, told.weights) == ("qnn", "uint16", "uint8")
    assert (told.samples, told.random, told.limited, told.bodies) == (4, True, (), ())
    assert [each.name for each in told.outputs] == ["y"]
    assert told.size == sum(file.size for file in made.files) < told.float_size
    losses = [each.sqnr for each in told.tensors if each.sqnr is not None]
    assert losses == sorted(losses) and len(losses) >= 3


def test_weights_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp(width=64)
    helper.set_model_props(model, {"author": "me"})  # the weights pass through another file
    whole = run(tmp_path / "a" / "q", model)
    monkeypatch.setattr(quantize, "_ONE_FILE", 1000)
    made = run(tmp_path / "b" / "q", model, ranges=whole.ranges)
    assert [file.location for file in made.files] == ["model.onnx", "model.onnx.data"]
    feeds = {"x": normal((1, 64))}
    values = [
        ort.InferenceSession(tmp_path / name / "q" / quantize.FILE).run(None, feeds)[0]
        for name in "ab"
    ]
    np.testing.assert_array_equal(*values)


def test_masks_are_told(tmp_path: Path) -> None:
    text = (
        "g (float[1,4] x) => (float[1,4] y) <float m = {-3e38}, float z = {0.0}> {"
        " c = Greater(x, z) w = Where(c, x, m) y = Softmax(w) }"
    )
    assert "w" in run(tmp_path / "a", onnx_text.proto(text)).report.limited
    cut = run(tmp_path / "b", onnx_text.proto(text), range_floor=-100.0).report
    assert "w" in cut.limited and cut.range_floor == -100


def test_bodies_stay_float_and_are_told(tmp_path: Path) -> None:
    model = mlp(width=8, layers=1)
    bodies = [
        helper.make_graph(
            [helper.make_node(op, ["y"], [f"{op}_y"])],
            op,
            [],
            [helper.make_tensor_value_info(f"{op}_y", TensorProto.FLOAT, [1, 8])],
        )
        for op in ("Neg", "Abs")
    ]
    branch = helper.make_node(
        "If", ["c"], ["z"], "branch", then_branch=bodies[0], else_branch=bodies[1]
    )
    model.graph.node.append(branch)
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    model.graph.output[0].name = "z"
    assert run(tmp_path / "q", model).report.bodies == ("node 'branch' (If)",)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"exclude_nodes": ("nothing",)}, ManifestError),
        ({"exclude_nodes": ("*",)}, ModelError),
        ({"calibration": Calibration(files=(Path("absent.npz"),))}, ModelError),
    ],
)
def test_what_fails_leaves_nothing(
    settings: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        run(tmp_path / "q", mlp(width=8), **settings)
    assert [path.name for path in tmp_path.iterdir()] == ["q"]
