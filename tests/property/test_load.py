"""Whatever is in a file, load loads it or says what is wrong: nothing else leaks out."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import ModelError
from epctx.graph.serde import canonical, wire
from epctx.manifest import ModelSource
from epctx.stages import load
from tests.kit import strategies


@functools.cache
def _model() -> tuple[bytes, list[int]]:
    """A model with a bit of everything, and the places in it that are not a weight's data."""
    weight = np.arange(400, dtype=np.float32)
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["y", "bw"], ["o"], name="add")],
        "body",
        [],
        [value("o", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(weight, "bw")],
    )
    nodes = [
        helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(weight)),
        helper.make_node("Mul", ["x", "k"], ["t"], name="mul"),
        helper.make_node("f", ["t"], ["y"], domain="l"),
        helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body),
    ]
    external = TensorProto(name="w", dims=[400], data_type=1, data_location=TensorProto.EXTERNAL)
    for key, text in {"location": "w.bin", "offset": "0", "length": "1600"}.items():
        external.external_data.add(key=key, value=text)
    typed = helper.make_tensor("typed", TensorProto.INT64, [2], [1, 2])
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["n"]), value("c", TensorProto.BOOL, [])],
        [value("z", TensorProto.FLOAT, ["n"])],
        [external, typed, numpy_helper.from_array(weight, "v")],
    )
    graph.sparse_initializer.append(
        helper.make_sparse_tensor(
            numpy_helper.from_array(np.array([7], np.float32), "s"),
            numpy_helper.from_array(np.array([2], np.int64), "si"),
            [4],
        )
    )
    function = helper.make_function(
        "l", "f", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("l", 1)]
    model = helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=8)
    data = model.SerializeToString()
    _, spans = wire.strip(memoryview(data), threshold=1000, location="")
    inside = {i for span in spans for i in range(span.offset, span.offset + span.length)}
    return data, [i for i in range(len(data)) if i not in inside]


def _try(data: bytes) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        path.write_bytes(data)
        path.with_name("w.bin").write_bytes(bytes(1600))
        try:
            model = load.run(ModelSource(name="m", path=path)).model
        except ModelError as error:
            assert str(path.parent) in str(error)
            assert "\n  -> " in str(error)
            return False
        path.with_name("again.onnx").write_bytes(canonical.serialize(model))
        again = load.run(ModelSource(name="m", path=path.with_name("again.onnx"))).model
        assert canonical.digest(again) == canonical.digest(model)
        return True


def test_the_model_itself_is_loaded() -> None:
    assert _try(_model()[0])


@settings(max_examples=400)
@given(st.data())
def test_a_damaged_model_is_loaded_or_refused(data: st.DataObject) -> None:
    _try(data.draw(strategies.damaged_models(*_model())))


@given(st.binary(max_size=200))
def test_no_bytes_are_a_model_by_chance(data: bytes) -> None:
    _try(data)
