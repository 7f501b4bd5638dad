"""Every level of `optimize` against the untouched source on ONNX Runtime's kernels, bit for bit."""

from __future__ import annotations

from itertools import pairwise

import onnx
from onnx import helper

from epctx.graph.serde import canonical, protos
from tests.fuzz.graphs.drawing import FLOATS, INTEGERS
from tests.fuzz.graphs.models import Feeds, Outputs, differing, outputs
from tests.kit import optimizing

LEVELS = ("none", "basic", "extended")
_IDENTITY = (*FLOATS, *INTEGERS)
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
    except Exception as error:  # of epctx or of onnxruntime: both are findings here
        return f"{level}: {type(error).__name__}: {error}"
    names = differing(expected, found)
    if not names:
        return None
    name = names[0]
    return f"{level}: {name} is {_shown(found, name)}, not {_shown(expected, name)}"


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
