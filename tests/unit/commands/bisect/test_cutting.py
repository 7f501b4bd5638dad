"""A model cut at inner values: what can be read, what comes before what, the same numbers."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from epctx.commands.bisect.search import CutModel
from epctx.graph import store
from epctx.stages import optimize
from tests.kit import onnx_text
from tests.kit.building import cpu, mlp
from tests.kit.optimizing import loaded, settings

BRANCHES = """
g (float[2, 4] x) => (float[2, 4] y) {
    [first] a = Relu(x)
    [shaped] s = Shape(a)
    [filled] f = ConstantOfShape(s)
    [left] l = Tanh(a)
    [joined] y = Add(l, f)
}
"""


def cut(model: onnx.ModelProto, folder: Path) -> CutModel:
    kept, scratch = folder / "optimized", folder / "cut"
    kept.mkdir()
    scratch.mkdir()
    store.write(optimize.run(loaded(model, folder), settings("none"), kept), kept)
    return CutModel(kept, scratch)


def test_a_layer_knows_those_before_it_through_nodes_that_cannot_be_read(tmp_path: Path) -> None:
    layers = cut(onnx_text.proto(BRANCHES), tmp_path).layers
    named = {layer.node.name: layer for layer in layers}
    assert "shaped" not in named, "it gives integers"
    parents = {
        name: {layers[place].node.name for place in layer.parents} for name, layer in named.items()
    }
    assert parents["joined"] == {"left", "filled"} or parents["joined"] == {"left", "first"}
    assert parents["left"] == {"first"} and parents["first"] == set()
    assert all(place < layer.place for layer in layers for place in layer.parents)


@pytest.mark.parametrize("width", [8, 64])
def test_a_cut_model_gives_its_own_outputs_first_and_the_same_numbers(
    tmp_path: Path, width: int
) -> None:
    source = mlp(width=width)
    model = cut(source, tmp_path)
    paths = [model.write(["m1", "r0", "y"]), model.write(["a2"])]
    feeds = {"x": np.ones((1, width), np.float32)}
    whole, other = (cpu(path) for path in paths)
    assert [each.name for each in whole.get_outputs()] == ["y", "m1", "r0"]
    assert [each.name for each in other.get_outputs()] == ["y", "a2"]
    (right,) = cpu(source).run(["y"], feeds)
    for session in (whole, other):
        np.testing.assert_allclose(session.run(["y"], feeds)[0], right, rtol=1e-5)


def test_weights_are_written_once(tmp_path: Path) -> None:
    model = cut(mlp(width=64), tmp_path)
    first, second = model.write(["m1"]), model.write(["m2"])
    weights = first.with_name("weights.data").stat().st_size
    assert weights >= 3 * 4 * 64**2 > first.stat().st_size + second.stat().st_size
