from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from epctx.graph.dataflow import Dataflow
from epctx.graph.partition import surgery
from epctx.graph.serde import canonical
from epctx.manifest import ModelSource
from epctx.providers.onnxruntime.exchange import Staging, sink_captured_initializers
from epctx.stages import load
from tests.kit import onnx_text
from tests.kit.building import mlp


def whole(model: ir.Model) -> ir.Model:
    flow = Dataflow(model)
    return surgery.extract(model, flow.cut(0, range(len(flow.nodes))))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "source" / "m.onnx"
    path.parent.mkdir()
    onnx.save(mlp(width=64, layers=2), path)
    return path


@pytest.fixture
def source(path: Path) -> ir.Model:
    return load.run(ModelSource(name="m", path=path)).model


def test_weights_lie_beside_the_model_and_scalars_inside(tmp_path: Path, source: ir.Model) -> None:
    name = Staging(folder=tmp_path).write(whole(source), "eye_m")
    assert name == "eye_m.onnx"
    assert sorted(p.name for p in tmp_path.glob("eye*")) == ["eye_m.onnx", "eye_m.weights"]
    proto = onnx.load(tmp_path / name, load_external_data=False)
    places = {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}
        for tensor in proto.graph.initializer
    }
    for keys in (places["w0"], places["w1"]):
        assert keys["location"] == "eye_m.weights"
        assert int(keys["offset"]) % 4096 == 0
    assert not places["b0"], "256 bytes stay in the model, where shapes are read from"


def test_onnxruntime_computes_the_same_from_it(
    tmp_path: Path, path: Path, source: ir.Model
) -> None:
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)}
    name = Staging(folder=tmp_path).write(whole(source), "m")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    sessions = [
        ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        for file in (path, tmp_path / name)
    ]
    expected, found = (session.run(None, feeds)[0] for session in sessions)
    np.testing.assert_array_equal(expected, found)


def test_weights_of_two_models_are_written_once(
    tmp_path: Path, path: Path, source: ir.Model
) -> None:
    """Wherever they lie: exporters write a file of its own for each model."""
    shutil.copytree(path.parent, tmp_path / "copy")
    other = load.run(ModelSource(name="b", path=tmp_path / "copy" / path.name)).model
    staging = Staging(folder=tmp_path)
    staging.write(whole(source), "a")
    staging.write(whole(other), "b")
    assert (tmp_path / "a.weights").stat().st_size > 0
    assert (tmp_path / "b.weights").stat().st_size == 0
    onnx.load(tmp_path / "b.onnx")


def test_inside_when_it_is_asked_for(tmp_path: Path, source: ir.Model) -> None:
    Staging(folder=tmp_path, inside=True).write(whole(source), "m")
    assert [p.name for p in tmp_path.glob("m*")] == ["m.onnx"]
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert all(tensor.raw_data for tensor in proto.graph.initializer)


def test_nothing_of_the_source_but_its_graph_reaches_the_ep(
    tmp_path: Path, path: Path, source: ir.Model
) -> None:
    """Names of graph and producer, documentation and metadata would change bytes (section 1)."""
    other = load.run(ModelSource(name="other", path=path)).model
    source.producer_name, source.doc_string, source.graph.name = "torch", "hello", "main_graph"
    source.metadata_props["where"] = "/home/me"
    source.model_version = 7
    next(iter(source.graph)).metadata_props["trace"] = "/home/me/model.py"
    Staging(folder=tmp_path).write(whole(source), "a")
    Staging(folder=tmp_path).write(whole(other), "b")
    a, b = ((tmp_path / f"{stem}.onnx").read_bytes() for stem in "ab")
    assert a.replace(b"a.weights", b"b.weights") == b


def test_bodies_get_the_weights_that_they_use() -> None:
    weight = numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")

    def branch(name: str, op_type: str) -> onnx.GraphProto:
        value = helper.make_tensor_value_info(f"y_{name}", onnx.TensorProto.FLOAT, [4])
        node = helper.make_node(op_type, ["x", "w"], [f"y_{name}"])
        return helper.make_graph([node], name, [], [value])

    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("a", "Add"), else_branch=branch("b", "Mul")
    )
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4]),
            helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])],
        [weight],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = ir.from_proto(proto)
    feeds = {"x": np.ones(4, np.float32), "c": np.array(False)}
    expected = onnx_text.run(model, feeds)
    sink_captured_initializers(model)
    written = onnx.ModelProto.FromString(canonical.serialize(model))
    assert not written.graph.initializer
    for attribute in written.graph.node[0].attribute:
        assert [tensor.name for tensor in attribute.g.initializer] == [f"w/{attribute.g.name}"]
    np.testing.assert_array_equal(onnx_text.session(written).run(None, feeds)[0], expected[0])
