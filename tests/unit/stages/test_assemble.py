"""Compiled pieces in one model: its weights, and its largest context."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from epctx.files.digest import of_bytes
from epctx.files.outputs import OutputFile, context_file
from epctx.graph import epcontext
from epctx.graph.model import CutPlan, CutPoint, OptimizedModel
from epctx.graph.serde import canonical
from epctx.graph.weights.mapped import content_digest
from epctx.stages import assemble, dump
from tests.kit.onnx_text import model

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
    group = assemble.run({"m": optimized}, [plan], folders, binaries)
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
    output = dump.run(group, tmp_path / "out")
    assert {file.name: file.size for file in output.files if file.name != "m_ctx.onnx"} == {
        "m_1_e.bin": 100,
        "m_2_e.bin": 100,
    }
    assert all(isinstance(file, OutputFile) for file in output.files)
    assert not (folders[0] / "m_1_e.bin").exists(), "it was moved, not copied"
