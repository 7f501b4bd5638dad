from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import ModelError
from epctx.graph.prepare import sparse

VALUES = np.array([3, 5], np.float32)


def _sparse(
    dims: Sequence[int], indices: Sequence[object], values: np.ndarray = VALUES
) -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(
        values=numpy_helper.from_array(values, "w"),
        indices=numpy_helper.from_array(np.array(indices, np.int64), "wi"),
        dims=dims,
    )


def _model(tensor: onnx.SparseTensorProto, *, constant: bool = False) -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    if constant:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], name="k", sparse_value=tensor))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [4, 4])], [value("y", TensorProto.FLOAT, [4, 4])]
    )
    if not constant:
        graph.sparse_initializer.append(tensor)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _run(model: onnx.ModelProto) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": np.eye(4, dtype=np.float32)})[0])


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("indices", [[1, 10], [[0, 1], [2, 2]]], ids=["linear", "coordinates"])
def test_a_sparse_tensor_becomes_what_onnxruntime_makes_of_it(
    constant: bool, indices: list[object]
) -> None:
    model = _model(_sparse([4, 4], indices), constant=constant)
    expected = _run(model)
    assert expected[0, 1] == 3
    assert expected[2, 2] == 5

    sparse.densify(model, where="m.onnx")

    onnx.checker.check_model(model, full_check=True)
    assert not model.graph.sparse_initializer
    assert "sparse" not in str(model)
    np.testing.assert_array_equal(_run(model), expected)


@pytest.mark.parametrize(
    ("dims", "indices"),
    [
        ([4, 4], [1, 16]),
        ([4, 4], [-1, 2]),
        ([4, 4], [1]),
        ([4, 4], [1, 2, 3]),
        ([4, 4], [[0, 4], [1, 1]]),
        ([4, 4], [[0, 1, 2], [0, 1, 2]]),
        ([4, 4], [[[0, 1]], [[1, 1]]]),
    ],
)
def test_indices_that_do_not_fit_are_refused(dims: list[int], indices: list[object]) -> None:
    with pytest.raises(ModelError, match="sparse tensor 'w'") as caught:
        sparse.densify(_model(_sparse(dims, indices)), where="m.onnx")
    assert "indices" in str(caught.value)


@pytest.mark.parametrize(
    ("dims", "said"), [([2**20, 2**20], "dense form"), ([-4, 4], "negative dimension")]
)
def test_a_dense_form_that_memory_cannot_hold_is_refused(dims: list[int], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        sparse.densify(_model(_sparse(dims, [1, 10])), where="m.onnx")


@pytest.mark.parametrize(
    ("broken", "said"),
    [({"raw_data": b"123"}, "cannot be read"), ({"data_type": 99}, "has data type 99")],
)
def test_values_that_cannot_be_read_are_refused(broken: dict[str, object], said: str) -> None:
    tensor = _sparse([4, 4], [1, 10])
    for field, value in broken.items():
        setattr(tensor.values, field, value)
    with pytest.raises(ModelError, match=said):
        sparse.densify(_model(tensor), where="m.onnx")


def test_a_sparse_attribute_of_another_operator_is_refused() -> None:
    model = _model(_sparse([4, 4], [1, 10]))
    model.graph.node.append(
        helper.make_node("Mine", [], ["m"], name="n", domain="d", s=_sparse([4], [1, 2]))
    )
    with pytest.raises(ModelError, match=r"node 'n' \(d::Mine\) has the sparse attribute 's'"):
        sparse.densify(model, where="m.onnx")
