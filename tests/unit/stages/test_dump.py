from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from epctx.manifest import ExternalInitializers
from epctx.providers.reference import ReferenceExecutionProvider
from epctx.runtime import InferenceSession
from tests.kit.building import build, model_of


def detector() -> onnx.ModelProto:
    """MatMul (the EP's), then Mul with weights and TopK with a count (the default EP's)."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((64, 64), np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal((1, 64), np.float32), "gain"),
        numpy_helper.from_array(np.array([4], np.int64), "k"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="matmul"),
        helper.make_node("Mul", ["m", "gain"], ["s"], name="scale"),
        helper.make_node("TopK", ["s", "k"], ["y", "i"], name="top_k"),
    ]
    value = helper.make_tensor_value_info
    outputs = [value("y", TensorProto.FLOAT, [1, 4]), value("i", TensorProto.INT64, [1, 4])]
    inputs = [value("x", TensorProto.FLOAT, [1, 64])]
    return model_of(helper.make_graph(nodes, "detector", inputs, outputs, weights))


def test_external_initializers_leave_what_shape_inference_reads(tmp_path: Path) -> None:
    out = build(
        tmp_path,
        {"m": detector()},
        providers=[ReferenceExecutionProvider({"ops": ("MatMul",)})],
        external_initializers=ExternalInitializers(file="m.data", size_threshold=0),
    )
    assert {path.name for path in out.iterdir()} == {"m_ctx.onnx", "m.data", "m_reference.bin"}
    model = onnx.load(out / "m_ctx.onnx", load_external_data=False)
    outside = {t.name: t.data_location == TensorProto.EXTERNAL for t in model.graph.initializer}
    assert outside == {"gain": True, "k": False}
    with InferenceSession(out / "m_ctx.onnx") as session:
        y, i = session.run(None, {"x": np.ones((1, 64), np.float32)})
    assert y.shape == i.shape == (1, 4)


def test_each_file_is_written_before_the_model_that_refers_to_it(tmp_path: Path) -> None:
    out = build(tmp_path, {"m": detector()})
    binary, model = out / "m_reference.bin", out / "m_ctx.onnx"
    assert binary.stat().st_mtime_ns <= model.stat().st_mtime_ns
