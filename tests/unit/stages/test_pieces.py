"""Models cut into pieces, and assembled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import ManifestError
from epctx.files.digest import of_bytes
from epctx.files.outputs import OutputFile, context_file
from epctx.graph import epcontext
from epctx.graph.model import CutPlan, CutPoint, OptimizedModel
from epctx.graph.serde import canonical, types
from epctx.graph.weights.tensors import content_digest
from epctx.manifest import CompileMemory, Pieces
from epctx.stages import compile, pieces
from tests.kit.onnx_text import model

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


def run(*models: OptimizedModel, embed: bool = False, **wanted: Any) -> list[pieces.InPieces]:
    return pieces.cut(models, Pieces(**wanted), MEMORY, embed=embed)


def test_weights_count_by_their_kind() -> None:
    (found,) = run(optimized(), at=("h", "n"))
    small = 1000 + 10 * 32 + 2 * 1024
    assert [each.memory for each in found.reports] == [1000 + 10 * 256, small, 1000 + 5 * 64 + 10]
    assert [each.weights for each in found.reports] == [1024, 512 + 128, 64 + 4]
    assert [each.nodes for each in found.reports] == [1, 2, 2]
    assert [each.cut and each.cut.values for each in found.reports] == [("h",), ("n",), None]


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
    monkeypatch.setattr(pieces, "_MOST_EMBEDDED", 1000)
    with pytest.raises(ManifestError, match="more than an ONNX file") as caught:
        run(optimized(), count=2, embed=True)
    assert caught.value.where == "embed_mode" and "embed_mode: 0" in caught.value.remedy


WHOLE = """
g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}, float[2] v = {3.0, 4.0}> {
    [one] a = Add(x, w)
    [two] y = Mul(a, v)
}"""
FIRST = """
g (float[2] x) => (float[2] a) {
    [n1] a = com.microsoft.EPContext
        <main_context = 1, embed_mode = 0, ep_cache_context = "m_1_e.bin", max_size = 5> (x)
}"""
SECOND = """
g (float[2] a) => (float[2] y) <float[2] v = {3.0, 4.0}, float[4] own = {5.0, 6.0, 7.0, 8.0}> {
    [n2] h = com.microsoft.EPContext
        <main_context = 1, embed_mode = 0, ep_cache_context = "m_2_e.bin", max_size = 9> (a)
    [cpu] b = Mul(h, v)
    [sum] s = ReduceSum <keepdims = 0> (own)
    [cpu2] y = Add(b, s)
}"""


def write(folder: Path, text: str, number: int) -> Path:
    """Write what a piece was compiled into, its weights in a file beside it."""
    folder.mkdir()
    made = model(text, opsets='"" : 21, "com.microsoft" : 1', infer=False)
    for node in made.graph:
        for value in node.outputs:
            value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([2])
    (folder / f"m_{number}_e.bin").write_bytes(bytes([number]) * 100)
    data = [each.const_value for each in made.graph.initializers.values()]
    path, offset = folder / "m.data", 0
    with path.open("wb") as stream:
        for value, tensor in zip(made.graph.initializers.values(), data, strict=True):
            assert tensor is not None
            stream.write(tensor.tobytes())
            value.const_value = ir.ExternalTensor(
                location="m.data",
                offset=offset,
                length=tensor.nbytes,
                dtype=tensor.dtype,
                shape=ir.Shape(tensor.numpy().shape),
                name=value.name or "",
                base_dir=folder,
            )
            offset += tensor.nbytes
    (folder / context_file(f"m.{number}")).write_bytes(canonical.serialize(made))
    return folder


def test_pieces_take_their_places_with_what_no_ep_took(tmp_path: Path) -> None:
    optimized = OptimizedModel(name="m", model=model(WHOLE), passes=(), digest=of_bytes(b""))
    plan = CutPlan(cuts=(CutPoint(after="a", values=("a",), bytes=8),), memory=(0, 0))
    folders = [write(tmp_path / "1", FIRST, 1), write(tmp_path / "2", SECOND, 2)]
    binaries = [["m_1_e.bin"], ["m_2_e.bin"]]
    group = pieces.assemble({"m": optimized}, [plan], folders, binaries)
    whole = group.models["m"]
    names = [node.name for node in whole.graph]
    assert names[0] == "n1" and set(names) == {"n1", "n2", "cpu", "sum", "cpu2"}
    assert whole.metadata_props[epcontext.PIECES] == '[["a"]]'
    sizes = {node.name: node.attributes["max_size"].as_int() for node in list(whole.graph)[:2]}
    assert sizes == {"n1": 9, "n2": 9}
    kept = {name: value.const_value for name, value in whole.graph.initializers.items()}
    assert kept.keys() == {"v", "own"}
    assert kept["v"] is not None and kept["own"] is not None
    assert content_digest(kept["v"]) == of_bytes(np.array([3, 4], np.float32).tobytes())
    np.testing.assert_array_equal(kept["own"].numpy(), [5, 6, 7, 8])
    (tmp_path / "out").mkdir()
    output = compile.dump(group, tmp_path / "out")
    assert {file.name: file.size for file in output.files if file.name != "m_ctx.onnx"} == {
        "m_1_e.bin": 100,
        "m_2_e.bin": 100,
    }
    assert all(isinstance(file, OutputFile) for file in output.files)
    assert not (folders[0] / "m_1_e.bin").exists(), "it was moved, not copied"
