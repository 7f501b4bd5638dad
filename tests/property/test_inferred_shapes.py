"""Inferred shapes against those that ONNX Runtime's kernels make, with sizes of 0 and 1 among them.

onnx alone infers others: of Einsum, PRelu, pools with `ceil_mode`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from epctx.graph.prepare.inference import infer
from tests.kit import onnx_text

Case = tuple[Sequence[Sequence[int]], Mapping[str, Any], Mapping[int, Sequence[int]]]
"""Shapes of inputs, attributes, and integers that an input holds, by its place."""
_ROUNDS: Final = 60
_EQUATIONS: Final = ("bik,bkj->bij", "bik,bkj", "b i k, b k j -> j b", "...ik,...kj->...ij")
_POOLS: Final = ("AveragePool", "LpPool", "MaxPool")


def _shape(draw: random.Random, least: int = 0) -> list[int]:
    return [draw.choice([0, 1, 1, 2, 3]) for _ in range(draw.randint(least, 4))]


def _cases(op_type: str, draw: random.Random) -> Iterator[Case]:
    one, other = _shape(draw, 1), _shape(draw)
    axis = draw.randrange(-len(one), len(one))
    if op_type == "Einsum":
        rows, inner, columns = (draw.choice([1, 2, 3]) for _ in range(3))
        batches = [draw.choice([0, 1, 2]) for _ in range(2)]
        left, right = [batches[0], rows, inner], [batches[1], draw.choice([1, inner]), columns]
        for equation in _EQUATIONS:
            yield (left, right), {"equation": equation}, {}
    elif op_type in _POOLS:
        shape = [1, 2, draw.randint(1, 6), draw.randint(1, 6)]
        names = ("kernel_shape", "strides", "dilations")
        window: dict[str, Any] = {name: [draw.randint(1, 3), draw.randint(1, 3)] for name in names}
        window["ceil_mode"] = draw.randint(0, 1)
        yield (shape,), {**window, "pads": [draw.randint(0, 1)] * 4}, {}
        for padding in ("SAME_UPPER", "SAME_LOWER", "VALID"):
            yield (shape,), {**window, "auto_pad": padding}, {}
    elif op_type.startswith("Reduce"):
        yield (one, [1]), {"keepdims": draw.randint(0, 1)}, {1: [axis]}
    elif op_type.startswith("Arg"):
        yield (one,), {"axis": axis, "keepdims": draw.randint(0, 1)}, {}
    else:
        yield (one, other), {}, {}


def _made(op_type: str, case: Case) -> tuple[onnx.ModelProto, tuple[int, ...]] | None:
    """The model of a node, and the shape that it makes; None if it cannot be run."""
    shapes, attributes, integers = case
    names = [f"x{place}" for place in range(len(shapes))]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], **attributes)],
        "g",
        [
            helper.make_tensor_value_info(names[place], TensorProto.FLOAT, shape)
            for place, shape in enumerate(shapes)
            if place not in integers
        ],
        [helper.make_empty_tensor_value_info("y")],
        [
            helper.make_tensor(names[place], TensorProto.INT64, [len(held)], held)
            for place, held in integers.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=9)
    feeds = {
        names[place]: np.ones(shape, np.float32)
        for place, shape in enumerate(shapes)
        if place not in integers
    }
    try:
        (made,) = onnx_text.session(model).run(None, feeds)
    except Exception:  # onnxruntime's own exceptions have no narrower base
        return None
    return model, made.shape


@pytest.mark.parametrize(
    "op_type", ["ArgMax", "Einsum", "MatMul", "PRelu", "ReduceMax", "ReduceSum", "Add", *_POOLS]
)
def test_kernels_make_the_inferred_shape(op_type: str) -> None:
    draw, count = random.Random(op_type), 0
    for _ in range(_ROUNDS):
        for case in _cases(op_type, draw):
            made = _made(op_type, case)
            if made is None:
                continue
            count += 1
            dims = infer(made[0]).graph.output[0].type.tensor_type.shape.dim
            assert tuple(dim.dim_value for dim in dims) == made[1], case
    assert count > _ROUNDS / 8
