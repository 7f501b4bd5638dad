"""Shape inference over a model whose weights are elsewhere.

onnx's inference works on protos and reads small constants only, so it runs on what `wire.strip`
leaves: megabytes, whatever the weights.
"""

from __future__ import annotations

import logging
from collections.abc import Container

import onnx
import onnx.shape_inference

from epctx.graph import protos

_log = logging.getLogger(__name__)


def infer(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with types and shapes of its values inferred; no weight is read.

    A size that is inferred wins over one that the file declares, which may be from before its
    dimensions were changed. What cannot be inferred (behind an operator that onnx does not know)
    stays as declared, and more is inferred from it.
    """
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for graph in protos.graphs(bare):
        del graph.value_info[:]
        for value in graph.output:
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")
    inferred = _infer(bare)
    if inferred is None:
        return model
    named = {
        dim.dim_param for value in protos.values(model) for dim in protos.dimensions(value.type)
    }
    _drop_symbols(inferred, named)
    gained = 0
    for declared, result in zip(protos.graphs(model), protos.graphs(inferred), strict=True):
        gained += _restore(declared, result)
    if gained:
        inferred = _infer(inferred) or inferred
        _drop_symbols(inferred, named)
    return inferred


def _infer(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """What onnx infers; None where it gives the whole model up."""
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        _log.warning("shapes are not inferred: %s", error)
        return None


def _drop_symbols(model: onnx.ModelProto, named: Container[str]) -> None:
    """Take out the symbols that inference numbers itself: the numbers follow the nodes' order."""
    for value in protos.values(model):
        for dim in protos.dimensions(value.type):
            if dim.dim_param and dim.dim_param not in named:
                dim.ClearField("dim_param")


def _restore(declared: onnx.GraphProto, inferred: onnx.GraphProto) -> int:
    """Put back what the file declares and inference did not find; how many values gained by it."""
    gained = 0
    outputs = {value.name: value for value in inferred.output}
    known = {value.name: value for value in inferred.value_info}
    for value in (*declared.output, *declared.value_info):
        result = outputs.get(value.name) or known.get(value.name)
        if result is None:
            inferred.value_info.add().CopyFrom(value)
            gained += 1
        else:
            gained += _merge(value.type, result.type)
    return gained


def _merge(declared: onnx.TypeProto, inferred: onnx.TypeProto) -> bool:
    """Complete an inferred type by the declared one, where they do not contradict."""
    if inferred.WhichOneof("value") is None:
        inferred.CopyFrom(declared)
        return True
    if not (declared.HasField("tensor_type") and inferred.HasField("tensor_type")):
        return False
    source, target = declared.tensor_type, inferred.tensor_type
    if source.elem_type != target.elem_type or not source.HasField("shape"):
        return False
    if not target.HasField("shape"):
        target.shape.CopyFrom(source.shape)
        return True
    gained = False
    if len(source.shape.dim) == len(target.shape.dim):
        for given, found in zip(source.shape.dim, target.shape.dim, strict=True):
            unknown = found.WhichOneof("value") is None
            if (unknown and given.WhichOneof("value")) or (found.dim_param and given.dim_param):
                found.CopyFrom(given)
                gained |= unknown
    return gained
