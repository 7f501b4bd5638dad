"""Sparse tensors: made dense at load, as ONNX Runtime does itself.

onnx_ir has no sparse initializers (it drops them without a word) and refuses sparse attributes;
every execution provider gets dense weights anyway.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import numpy_helper

from epctx import limits
from epctx.errors import ModelError
from epctx.graph.serde import protos
from epctx.graph.weights.external_data import byte_size


def densify(model: onnx.ModelProto, *, where: str) -> None:
    """Replace sparse initializers and `Constant` nodes' `sparse_value` by dense ones.

    Raises:
        ModelError: broken indices; dense forms that are too large together; another sparse
            attribute.
    """
    _require_bounded(model, where)
    for graph in protos.graphs(model):
        graph.initializer.extend(_dense(each, where) for each in graph.sparse_initializer)
        del graph.sparse_initializer[:]
    sparse_types = (onnx.AttributeProto.SPARSE_TENSOR, onnx.AttributeProto.SPARSE_TENSORS)
    for node in protos.nodes(model):
        for attribute in node.attribute:
            if attribute.type not in sparse_types:
                continue
            if (node.op_type, attribute.name) != ("Constant", "sparse_value"):
                raise ModelError(
                    f"{protos.describe(node)} has the sparse attribute {attribute.name!r}",
                    where=where,
                    remedy="epctx reads sparse tensors as initializers and constants only",
                )
            dense = _dense(attribute.sparse_tensor, where)
            attribute.Clear()
            attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
            attribute.t.CopyFrom(dense)


def _require_bounded(model: onnx.ModelProto, where: str) -> None:
    """The dense forms are held in memory, all at once: a file of a kilobyte may ask for all of it.

    Raises:
        ModelError: a shape is none, or they are too large together.
    """
    size = 0
    for sparse in protos.sparse_tensors(model):
        dense = onnx.TensorProto(data_type=sparse.values.data_type, dims=sparse.dims)
        place = f"{where}: sparse tensor {sparse.values.name!r}"
        size += byte_size(dense, where=place)
        if size > limits.DENSE_BYTES.value:
            raise ModelError(
                f"has the shape {list(sparse.dims)}",
                where=place,
                why=f"the dense forms up to this one take more than {limits.DENSE_BYTES}",
                remedy="export the model with this tensor dense, as external data; "
                f"{limits.DENSE_BYTES.remedy}",
            )


def _dense(sparse: onnx.SparseTensorProto, where: str) -> onnx.TensorProto:
    """The dense form; indices are linear [NNZ], or coordinates [NNZ, rank]."""
    where = f"{where}: sparse tensor {sparse.values.name!r}"
    shape = tuple(sparse.dims)
    try:
        values = numpy_helper.to_array(sparse.values).reshape(-1)
        indices = numpy_helper.to_array(sparse.indices)
    except (ValueError, TypeError, KeyError) as error:  # KeyError: no such data type
        raise ModelError.broken("cannot be read", where=where, why=repr(error)) from error
    linear = _linear(indices, shape)
    if linear is None or len(linear) != len(values):
        raise ModelError.broken("has indices that do not fit its values or its shape", where=where)
    dense = np.zeros(math.prod(shape), values.dtype)
    dense[linear] = values
    return numpy_helper.from_array(dense.reshape(shape), sparse.values.name)


def _linear(indices: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Positions in the flat dense tensor; None: they do not fit."""
    if indices.ndim == 1:
        indices, shape = indices[:, None], (math.prod(shape),)
    if indices.ndim != 2 or indices.shape[1] != len(shape):
        return None
    if not np.all((indices >= 0) & (indices < np.array(shape))):
        return None
    return np.asarray(np.ravel_multi_index(tuple(indices.T), shape))
