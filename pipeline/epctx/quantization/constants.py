"""Constants as QNN computes them right when they are quantized: each node has its own.

Where nodes share quantized constants, QNN 2.7.0 can give wrong numbers, silently: of a Llama of
134 M whose equal constants were merged (weights of norms, scalars) cosine 0.50 to the quantized
model from the second layer on, and 0.9993 with one for each node. Which of the constants it was
has not been found; a model of three norms alone is right either way.
"""

from __future__ import annotations

import math
from typing import Final

import onnx

_SMALL: Final = 1 << 16
"""Elements of a constant up to which it is copied: weights that are shared for their size stay."""


def separate(model: onnx.ModelProto) -> bool:
    """Give each node of the main graph that takes a small float constant one of its own; whether
    there was one that several took.
    """
    graph = model.graph
    small = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and math.prod(tensor.dims) <= _SMALL
    }
    taken: set[str] = set()
    names = {tensor.name for tensor in graph.initializer}
    made: list[onnx.TensorProto] = []
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name not in small:
                continue
            if name not in taken:
                taken.add(name)
                continue
            copy = onnx.TensorProto()
            copy.CopyFrom(small[name])
            copy.name = free(name, names)
            node.input[place] = copy.name
            made.append(copy)
    graph.initializer.extend(made)
    return bool(made)


def free(name: str, taken: set[str]) -> str:
    """Return a name like this one that is not taken, and take it."""
    number = 1
    while f"{name}/{number}" in taken:
        number += 1
    taken.add(f"{name}/{number}")
    return f"{name}/{number}"
