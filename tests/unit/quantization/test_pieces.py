"""A float model quantized in pieces, against the same model quantized whole."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import ManifestError, ModelError
from epctx.graph.inputs import Array
from epctx.manifest import (
    Calibration,
    Pieces,
    Preset,
    QuantizeSettings,
    TensorOverride,
    WeightOnly,
)
from epctx.quantization import pieces
from epctx.stages import quantize
from epctx.stages.quantize import QuantizedModel
from tests.kit import optimizing, piece_models
from tests.kit.building import mlp, normal

KINDS: dict[str, Callable[[], onnx.ModelProto]] = {
    "unet": piece_models.unet,
    "resnet": partial(piece_models.resnet, blocks=(2, 2, 2, 1), width=8),
    "bodies": piece_models.branching,
}


def run(
    folder: Path,
    model: onnx.ModelProto,
    wanted: Pieces | None,
    *,
    preset: Preset = "qnn",
    ranges: str | None = None,
    **settings: Any,
) -> QuantizedModel:
    folder.mkdir(parents=True)
    optimized = optimizing.optimized(model, "basic", scratch=folder.parent)
    asked = QuantizeSettings(**{"calibration": Calibration(random=True, count=3), **settings})
    return quantize.run(optimized, asked, preset, folder, pieces=wanted, ranges=ranges, others=())


def outputs(folder: Path, feeds: dict[str, Array]) -> list[Array]:
    return list(ort.InferenceSession(folder / quantize.FILE).run(None, feeds))


def repeated(model: onnx.ModelProto) -> list[str]:
    """Values that are dequantized, and quantized again."""
    made = {node.output[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    return [
        n.input[0] for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] in made
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_ranges_and_losses_are_those_of_the_whole(kind: str, tmp_path: Path) -> None:
    model = KINDS[kind]()
    whole = run(tmp_path / "whole" / "q", model, None)
    apart = run(tmp_path / "apart" / "q", model, Pieces(count=3))
    assert whole.ranges is not None and apart.ranges is not None
    known, found = json.loads(whole.ranges), json.loads(apart.ranges)
    assert found == known, "of the same tensors, to the bit"
    assert [path.name for path in tmp_path.glob("apart/*")] == ["q"], "scratch is gone"
    told = apart.report
    assert (told.nodes, told.samples) == (whole.report.nodes, 3)
    for one, other in zip(told.outputs, whole.report.outputs, strict=True):
        assert one.name == other.name and one.sqnr == pytest.approx(other.sqnr, abs=0.5)
    assert {each.name for each in told.tensors} >= {each.name for each in whole.report.tensors}
    made = onnx.load(tmp_path / "apart" / "q" / quantize.FILE)
    assert not repeated(made), "what crosses is quantized once"


def test_a_value_that_crosses_has_the_scale_of_the_piece_that_makes_it(tmp_path: Path) -> None:
    """A Transpose has the scale of its input, whatever its own range is said to be, and is not cut
    from what makes that.
    """
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], "m0"),
        helper.make_node("Transpose", ["a"], ["t"], "turn", perm=[1, 0]),
        helper.make_node("MatMul", ["t", "w1"], ["y"], "m1"),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [32, 32]) for n in "xy"]
    weights = [numpy_helper.from_array(normal((32, 32)), f"w{i}") for i in range(2)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    folder = tmp_path / "q"
    folder.mkdir()
    optimized = optimizing.optimized(model, "none", scratch=tmp_path)
    ranges = {"x": (-1.0, 1.0), "a": (-2.0, 2.0), "t": (-9.0, 9.0), "y": (-3.0, 3.0)}
    quantize.run(
        optimized,
        QuantizeSettings(calibration=Calibration(random=True)),
        "qnn",
        folder,
        pieces=Pieces(at=("t",)),
        ranges=json.dumps(ranges),
        others=(),
    )
    made = onnx.load(folder / quantize.FILE)
    assert not repeated(made)
    scales = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    (last,) = (node for node in made.graph.node if node.name == "m1")
    (given,) = (node for node in made.graph.node if node.output[0] == last.input[0])
    assert scales[given.input[1]] == pytest.approx(4 / 65535)


def test_settings_hold_for_the_piece_that_has_what_they_name(tmp_path: Path) -> None:
    model = mlp(width=32, layers=6)
    overrides = {"r3": TensorOverride(type="uint8")}
    run(tmp_path / "a" / "q", model, Pieces(count=3), exclude_nodes=("mm0",), overrides=overrides)
    made = onnx.load(tmp_path / "a" / "q" / quantize.FILE)
    makers = {node.output[0]: node.op_type for node in made.graph.node}
    (first,) = (node for node in made.graph.node if node.name == "mm0")
    assert "DequantizeLinear" not in [makers.get(name) for name in first.input]
    types = Counter(t.data_type for t in made.graph.initializer if t.name == "r3_zero_point")
    assert types == {TensorProto.UINT8: 1}


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"exclude_nodes": ("mm9",)}, ManifestError),
        ({"exclude_op_types": ("Conv",)}, ManifestError),
        ({"overrides": {"w9": TensorOverride()}}, ManifestError),
        ({"exclude_nodes": ("*",)}, ModelError),
    ],
)
def test_what_no_piece_has_is_refused(
    settings: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        run(tmp_path / "q", mlp(width=16, layers=4), Pieces(count=2), **settings)
    assert [path.name for path in tmp_path.iterdir()] == ["q"]


def test_a_type_of_one_piece_is_an_opset_of_all(tmp_path: Path) -> None:
    model = piece_models.unet()
    assert model.opset_import[0].version < 21
    overrides = {model.graph.output[0].name: TensorOverride(type="uint16")}
    run(tmp_path / "q", model, Pieces(count=3), preset="cpu", overrides=overrides)
    made = onnx.load(tmp_path / "q" / quantize.FILE)
    assert made.opset_import[0].version >= 21


def test_a_piece_of_which_all_op_types_are_excluded_stays_float(tmp_path: Path) -> None:
    names = ["x", "a", "b", "c", "y"]
    kinds = ["MatMul", "MatMul", "Gemm", "Gemm"]
    nodes = [
        helper.make_node(kind, [names[i], f"w{i}"], [names[i + 1]], f"n{i}")
        for i, kind in enumerate(kinds)
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 32]) for n in ("x", "y")]
    weights = [numpy_helper.from_array(normal((32, 32)), f"w{i}") for i in range(4)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    run(tmp_path / "q", model, Pieces(count=2), exclude_op_types=("MatMul",))
    found = onnx.load(tmp_path / "q" / quantize.FILE).graph
    makers = {node.output[0]: node.op_type for node in found.node}
    whole = {n.op_type: {makers.get(name) for name in n.input} for n in found.node}
    assert whole["MatMul"] <= {None, "MatMul"} and whole["Gemm"] == {"DequantizeLinear"}


def test_weights_in_blocks(tmp_path: Path) -> None:
    made = run(
        tmp_path / "q",
        mlp(width=32, layers=6),
        Pieces(count=3),
        weight_only=WeightOnly(),
        calibration=Calibration(),
    )
    assert made.ranges is None and made.report.quantized == 6


def test_max_memory_gives_as_many_pieces_as_keep_to_it() -> None:
    def parts(wanted: Pieces | None) -> int:
        made = optimizing.optimized(piece_models.unet(), "none").model
        return len(pieces.cut(made, wanted))

    size = sum(
        w.size for t in piece_models.unet().graph.initializer for w in [numpy_helper.to_array(t)]
    )
    needed = round(size * pieces.MEMORY.first["float"])
    assert parts(None) == parts(Pieces(count=1)) == 0
    assert parts(Pieces(max_memory=pieces.MEMORY.base + needed)) == 0
    assert parts(Pieces(max_memory=pieces.MEMORY.base + needed // 2)) == 2
    assert parts(Pieces(count=3)) == parts(Pieces(at=("relu3", "relu5"))) == 3
    assert 3 < parts(Pieces(max_memory=1)) < 30, "as near as it can be cut"
