"""What a model may be at most, and what its declared shapes may be (limits.py)."""

from __future__ import annotations

import math

import onnx

from epctx import limits
from epctx.error_codes import Code
from epctx.errors import ModelError
from epctx.graph.serde import protos

_LARGEST = 2**63 - 1


def require(model: onnx.ModelProto, *, where: str) -> None:
    """Bound what every later stage costs; write a dimension of -1, as some exporters have it, as
    the unknown one that ONNX Runtime takes it for.

    Raises:
        ModelError: too many nodes, or inputs of one; no output; a declared shape that is none.
    """
    nodes = list(protos.nodes(model))
    count = len(nodes)
    if count > limits.MODEL_NODES.value:
        raise ModelError(
            f"has {count:,} nodes, more than {limits.MODEL_NODES.value:,}",
            where=where,
            remedy=f"split the model; {limits.MODEL_NODES.remedy}",
            code=Code.MODEL_TOO_LARGE,
        )
    most = limits.NODE_INPUTS.value
    for node in nodes:
        if len(node.input) > most:
            raise ModelError(
                f"{protos.describe(node)} has {len(node.input):,} inputs, more than {most:,}",
                where=where,
                remedy=f"split the node; {limits.NODE_INPUTS.remedy}",
                code=Code.MODEL_TOO_LARGE,
            )
    if not model.graph.output:
        raise ModelError("has no outputs", where=where, remedy="export the model with its outputs")
    for value in protos.values(model):
        _require_shape(value, where=where)


def _require_shape(value: onnx.ValueInfoProto, *, where: str) -> None:
    dims = list(protos.dimensions(value.type))
    if len(dims) > limits.TENSOR_RANK:
        what = f"{value.name!r} has {len(dims):,} dimensions, more than {limits.TENSOR_RANK}"
        raise ModelError.broken(what, where=where)
    for dim in dims:
        if dim.dim_value == -1:
            dim.ClearField("dim_value")
    sizes = [dim.dim_value for dim in dims if dim.HasField("dim_value")]
    if any(size < 0 for size in sizes) or math.prod(sizes) > _LARGEST:
        raise ModelError.broken(f"{value.name!r} has the shape {sizes}", where=where)
