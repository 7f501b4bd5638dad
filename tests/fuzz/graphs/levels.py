"""Every level of `optimize` against the untouched source on ONNX Runtime's kernels, bit for bit."""

from __future__ import annotations

from itertools import pairwise

import onnx
from onnx import helper

from epctx.errors import ModelError
from epctx.graph.serde import canonical, protos
from tests.fuzz.graphs.drawing import FLOATS, INTEGERS
from tests.fuzz.graphs.models import Feeds, Outputs, differing, outputs
from tests.kit import optimizing

LEVELS = ("none", "basic", "extended")
_IDENTITY = (*FLOATS, *INTEGERS)
REFUSED = "refused though ONNX Runtime runs it"
LEFT_OUT = "casts that ONNX Runtime leaves out"


def optimized(model: onnx.ModelProto, level: str) -> onnx.ModelProto:
    """The model as `optimize: {level: ...}` writes it."""
    result = onnx.ModelProto()
    result.ParseFromString(canonical.serialize(optimizing.optimized(model, level).model))
    return result


def difference(
    model: onnx.ModelProto, feeds: Feeds, level: str, expected: Outputs | None = None
) -> str | None:
    """How a level changes what a model computes, in a line; None: it does not."""
    expected = outputs(model, feeds) if expected is None else expected
    try:
        result = optimized(model, level)
        found = outputs(result, feeds)
    except ModelError as error:
        return f"{level}: {REFUSED}: {error}"
    except Exception as error:  # of epctx or of onnxruntime: both are findings here
        return f"{level}: {type(error).__name__}: {error}"
    names = differing(expected, found)
    if not names:
        return _misdeclared(model, result, found, level)
    name = names[0]
    return f"{level}: {name} is {_shown(found, name)}, not {_shown(expected, name)}"


def _misdeclared(
    source: onnx.ModelProto, result: onnx.ModelProto, found: Outputs, level: str
) -> str | None:
    """An output that has another shape than the result says, and the source does not say so, too;
    None: there is none.
    """
    for before, info in zip(source.graph.output, result.graph.output, strict=True):
        shape = found[info.name].shape
        said, told = _said(info, len(shape)), _said(before, len(shape))
        for one, other, size in zip(said, told, shape, strict=True):
            if one not in (None, size) and one != other:
                return f"{level}: {info.name} is declared as {said}, and is {list(shape)}"
    return None


def _said(info: onnx.ValueInfoProto, rank: int) -> list[int | None]:
    """The sizes that a value is declared with; -1 for all of them where it has another rank."""
    dims = info.type.tensor_type.shape.dim
    if not info.type.tensor_type.HasField("shape"):
        return [None] * rank
    said = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
    return said if len(said) == rank else [-1] * rank


def _shown(values: Outputs, name: str) -> str:
    array = values[name]
    return f"{array.dtype}{list(array.shape)} {array.reshape(-1)[:6].tolist()}"


def explanation(model: onnx.ModelProto, feeds: Feeds, level: str) -> str | None:
    """Why a difference is ONNX Runtime's own; None: it is a fault of the level.

    The one rule: ONNX Runtime's CPU EP leaves out casts between neighbours, at ORT_DISABLE_ALL
    too: those that it puts around float16 nodes for which it has no kernel, and with them the
    rounding, and the first of two Casts, which matters where the second is out of range. A level
    that removes a node changes who is a neighbour. So both models are run with two Identities
    after each float16 value and each Cast (one alone among float16 nodes runs in float32, too):
    every conversion happens, and nothing may differ any more.
    """
    try:
        source, result = _rounded(model), _rounded(optimized(model, level))
        if source is None or result is None:
            return None
        same = not differing(outputs(source, feeds), outputs(result, feeds))
    except Exception:  # it does not run with every rounding, so that this explains nothing
        return None
    return LEFT_OUT if same else None


def _rounded(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """A copy with Identities after what makes float16 or casts; None where nothing does."""
    copy = onnx.shape_inference.infer_shapes(model)
    count = 0
    for graph in protos.graphs(copy):
        kinds = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
        nodes = list(graph.node)
        del graph.node[:]
        for node in nodes:
            barriers = []
            for index, name in enumerate(node.output):
                kind = kinds.get(name)
                casts = node.op_type in ("Cast", "CastLike") and kind in _IDENTITY
                if casts or kind == onnx.TensorProto.FLOAT16:
                    names = [f"{name}/unrounded", f"{name}/rounded", name]
                    node.output[index] = names[0]
                    barriers += [
                        helper.make_node("Identity", [one], [two]) for one, two in pairwise(names)
                    ]
            graph.node.append(node)
            graph.node.extend(barriers)
            count += len(barriers)
        del graph.value_info[:]
    return copy if count else None
