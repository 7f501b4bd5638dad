"""Between optimize and compile: what weights count, and which contexts fit into a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import ManifestError
from epctx.files.digest import of_bytes
from epctx.graph.model import OptimizedModel
from epctx.graph.serde import types
from epctx.manifest import CompileMemory, Pieces
from epctx.stages import cut

MEMORY = CompileMemory(
    measured_on="1.0",
    base=1000,
    first={"float": 10, "integer": 5, "4-bit": 2},
    further={"float": 8, "integer": 4, "4-bit": 1},
)


def optimized(name: str = "m", rows: int = 1) -> OptimizedModel:
    """A float, a 4-bit and an 8-bit layer of 256, 1,024 and 64 weights."""
    weights: dict[str, np.ndarray] = {
        "w": np.ones((16, 16), np.float32),
        "b": np.ones((16, 2, 16), np.uint8),
        "scales": np.ones((16, 2), np.float32),
        "q": np.ones((16, 4), np.int8),
        "s": np.array(0.5, np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="float"),
        helper.make_node("Concat", ["h", "h", "h", "h"], ["wide"], name="wide", axis=1),
        helper.make_node(
            "MatMulNBits",
            ["wide", "b", "scales"],
            ["n"],
            name="bits",
            domain="com.microsoft",
            K=64,
            N=16,
            bits=4,
            block_size=32,
        ),
        helper.make_node("DequantizeLinear", ["q", "s"], ["qf"], name="dequantize"),
        helper.make_node("MatMul", ["n", "qf"], ["y"], name="integer"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 4])],
        [numpy_helper.from_array(array, each) for each, array in weights.items()],
        value_info=[
            helper.make_tensor_value_info("h", TensorProto.FLOAT, [rows, 16]),
            helper.make_tensor_value_info("wide", TensorProto.FLOAT, [rows, 64]),
            helper.make_tensor_value_info("n", TensorProto.FLOAT, [rows, 16]),
        ],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = types.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    return OptimizedModel(name=name, model=model, passes=(), digest=of_bytes(b"m"))


def run(*models: OptimizedModel, embed: bool = False, **wanted: Any) -> list[cut.InPieces]:
    return cut.run(models, Pieces(**wanted), MEMORY, embed=embed)


def test_weights_count_by_their_kind() -> None:
    (found,) = run(optimized(), at=("h", "n"))
    small = 1000 + 10 * 32 + 2 * 1024
    assert [each.memory for each in found.reports] == [1000 + 10 * 256, small, 1000 + 5 * 64 + 10]
    assert [each.weights for each in found.reports] == [1024, 512 + 128, 64 + 4]
    assert [each.nodes for each in found.reports] == [1, 2, 2]
    assert [each.cut and each.cut.values for each in found.reports] == [("h",), ("n",), None]


def test_further_models_of_a_sharing_group_count() -> None:
    first, second = run(optimized("a"), optimized("b", rows=8), at=("h",))
    assert first.reports[0].memory == 1000 + 18 * 256
    assert [each.name for each in second.pieces] == ["b.1", "b.2"]
    assert first.reports[0].cut is not None and first.reports[0].cut.bytes == 64
    assert second.reports[0].cut is not None and second.reports[0].cut.bytes == 8 * 64


def test_without_a_measured_memory_bytes_are_balanced() -> None:
    (found,) = cut.run([optimized()], Pieces(count=2), None, embed=False)
    assert [each.memory for each in found.reports] == [None, None]
    assert [each.weights for each in found.reports] == [1024, 512 + 128 + 64 + 4]


def test_pieces_are_models_and_their_digest_is_of_their_content() -> None:
    one, other = run(optimized(), at=("h",))[0], optimized()
    (weight,) = (v for v in other.model.graph.initializers.values() if v.name == "w")
    weight.const_value = ir.tensor(np.full((16, 16), 2, np.float32), name="w")
    (edited,) = run(other, at=("h",))
    assert one.pieces[0].digest != edited.pieces[0].digest
    assert one.pieces[1].digest == edited.pieces[1].digest
    for piece in one.pieces:
        onnx.checker.check_model(ir.to_proto(piece.model))


def test_contexts_that_do_not_fit_into_the_model_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run(optimized(), count=2, embed=True)
    monkeypatch.setattr(cut, "_MOST_EMBEDDED", 1000)
    with pytest.raises(ManifestError, match="more than an ONNX file") as caught:
        run(optimized(), count=2, embed=True)
    assert caught.value.where == "embed_mode" and "embed_mode: 0" in caught.value.remedy
