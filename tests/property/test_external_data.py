"""Any tensor, written in any way, is read back bit for bit."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st

from epctx.graph.serde import canonical, wire
from epctx.graph.weights.tensors import content_digest
from epctx.manifest import ModelSource
from epctx.stages import load
from tests.kit import strategies
from tests.kit.data_files import write


def _model(tensors: list[ir.Tensor[np.ndarray]]) -> ir.Model:
    values = []
    for i, tensor in enumerate(tensors):
        value = ir.Value(name=f"w{i}", const_value=tensor)
        value.type, value.shape = ir.TensorType(tensor.dtype), tensor.shape
        values.append(value)
    outputs = [ir.Value(name=f"y{i}", type=v.type, shape=v.shape) for i, v in enumerate(values)]
    nodes = [
        ir.Node("mine", "Same", [value], outputs=[output])
        for value, output in zip(values, outputs, strict=True)
    ]
    graph = ir.Graph(
        [], outputs, nodes=nodes, initializers=values, opset_imports={"mine": 1}, name="g"
    )
    return ir.Model(graph, ir_version=13)


@settings(max_examples=60)
@given(st.data())
def test_what_is_written_is_read_back(data: st.DataObject) -> None:
    tensors = data.draw(st.lists(strategies.tensors(), min_size=1, max_size=5))
    model = _model(tensors)
    digest = canonical.digest(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        write(
            model,
            path,
            "w.data",
            size_threshold=data.draw(st.sampled_from([0, 1, 100, 1024, 5000])),
        )
        loaded = load.run(ModelSource(name="m", path=path)).model
        assert canonical.digest(loaded) == digest
        for i, tensor in enumerate(tensors):
            found = loaded.graph.initializers[f"w{i}"].const_value
            assert found is not None
            assert found.dtype == tensor.dtype
            assert found.shape == tensor.shape
            assert found.tobytes() == tensor.tobytes()
            assert found.numpy().tobytes() == tensor.numpy().tobytes()
            assert content_digest(found) == content_digest(tensor)


@given(st.lists(strategies.tensors(), max_size=6), st.integers(0, 2000))
def test_a_model_stripped_and_filled_again_is_the_model(
    tensors: list[ir.Tensor[np.ndarray]], threshold: int
) -> None:
    model = ir.serde.serialize_model(_model(tensors))
    data = model.SerializeToString()
    stripped, spans = wire.strip(memoryview(data), threshold=threshold, location="here")
    filled = onnx.ModelProto.FromString(stripped)
    left_out = 0
    for tensor in filled.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            span = spans[int(tensor.external_data[1].value)]
            tensor.raw_data = data[span.offset : span.offset + span.length]
            tensor.ClearField("data_location")
            del tensor.external_data[:]
            left_out += 1
    assert filled == model
    assert left_out == sum(len(t.raw_data) >= threshold for t in model.graph.initializer)
