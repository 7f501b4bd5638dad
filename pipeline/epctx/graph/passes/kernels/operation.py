"""Evaluation of one node on constants: its inputs as arrays, and helpers that make results.

A kernel takes an `Operation` and returns an array for each output, a view if possible. It raises
`Declined` if ONNX leaves the result open or machines may differ; the node then stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from epctx.graph.passes import edit, scratch
from epctx.graph.passes.scratch import Array, Scratch, blocks

IN_MEMORY = 1 << 24
"""Bytes (16 MiB) that a kernel may hold in memory; larger results are made block by block."""

MAX_GROWTH = 1 << 30
"""Bytes (1 GiB) by which a result may exceed the stored constants that it comes from.

In the light models, the largest weight that a fill makes, and that must be folded (real-eps.md
section 14), has 411 MB. Beyond the limit a cheap node would become a model's largest part.
"""


class Declined(Exception):
    """Raised if a node's result may differ between machines, or is too large."""


class Operation(Struct, frozen=True, kw_only=True):
    """A node, its constant inputs (None for one that is left out), and the opset version of its
    domain.
    """

    node: ir.Node
    version: int
    inputs: tuple[Array | None, ...]
    scratch: Scratch

    def input(self, index: int) -> Array:
        """Return an input that must be there."""
        array = self.optional(index)
        if array is None:
            raise Declined(f"input {index} is missing")
        return array

    def optional(self, index: int) -> Array | None:
        """Return an input; None if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def integer(self, name: str, default: int | None = None) -> int:
        """Return an integer attribute."""
        attribute = self.node.attributes.get(name)
        if attribute is not None:
            return attribute.as_int()
        if default is None:
            raise Declined(f"attribute {name} is missing")
        return default

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.as_string()

    def integers(self, index: int | None, name: str) -> tuple[int, ...] | None:
        """Return integers from input `index`, or, in older opsets, an attribute; None if
        missing.
        """
        if name in self.node.attributes:
            return tuple(self.node.attributes[name].as_ints())
        given = None if index is None else self.optional(index)
        return None if given is None else tuple(int(item) for item in given.reshape(-1))

    def result_type(self) -> ir.DataType | None:
        """Return the type of the first output; None if it is unknown."""
        return self.node.outputs[0].dtype

    def grows(self, size: int) -> None:
        """Decline a result of `size` bytes that would make the model too large."""
        given = dict(zip(self.node.inputs, self.inputs, strict=True))  # repeated inputs count once
        held = sum(scratch.held_bytes(each) for each in given.values() if each is not None)
        if size - held > MAX_GROWTH or self.scratch.is_full:
            raise Declined("the result is too large")

    def in_memory(self, *sizes: int) -> None:
        """Decline a result that is not made block by block and exceeds IN_MEMORY bytes."""
        given = [scratch.content_bytes(each) for each in self.inputs if each is not None]
        if max((*sizes, *given), default=0) > IN_MEMORY:
            raise Declined("too large to be made in memory")

    def contiguous(self, array: Array) -> Array:
        """Return the array in C order: itself, a copy, or a file if it is large."""
        if array.flags.c_contiguous or scratch.content_bytes(array) <= IN_MEMORY:
            return np.ascontiguousarray(array)
        self.grows(scratch.content_bytes(array))
        return self.scratch.lay_out(array.shape, scratch.content_chunks(array), array)

    def reshaped(self, array: Array, shape: tuple[int, ...]) -> Array:
        """Return the array in another shape, a view if possible."""
        if scratch.is_fill(array):
            return np.broadcast_to(array[(0,) * array.ndim], shape)
        return self.contiguous(array).reshape(shape)

    def elementwise(self, function: Callable[..., Array], *inputs: Array) -> Array:
        """Apply `function` to the broadcast inputs, block by block if the result is large.

        A fill stays a fill. The type of the result must not depend on the values.
        """
        operands = np.broadcast_arrays(*inputs)
        shape = operands[0].shape
        if all(scratch.is_fill(each) for each in operands):
            one = tuple(each[(slice(0, 1),) * each.ndim] for each in operands)
            return np.broadcast_to(function(*one), shape)
        sample = function(*(each[(slice(0, 0),) * each.ndim] for each in operands))
        wide = max(8, *(each.itemsize for each in operands))

        def block(index: tuple[slice, ...]) -> Array:
            parts = [each[index] for each in operands]
            result = np.empty(parts[0].shape, sample.dtype)
            for inner in blocks(result.shape, wide):
                result[inner] = function(*(part[inner] for part in parts))
            return result

        return self.assemble(shape, sample, block)

    def assemble(
        self,
        shape: tuple[int, ...],
        like: Array,
        block: Callable[[tuple[slice, ...]], Array],
    ) -> Array:
        """Return an array of `shape` and the type of `like`; `block` makes its part at an index."""
        size = math.prod(shape) * like.itemsize
        self.grows(size)
        if size <= IN_MEMORY:
            return block((slice(None),) * len(shape))

        def pieces() -> Iterator[memoryview]:
            for index in blocks(shape, like.itemsize):
                yield from scratch.content_chunks(block(index))

        return self.scratch.lay_out(shape, pieces(), like)


Kernel = Callable[[Operation], Sequence[Array]]


def axis(value: int, rank: int) -> int:
    """Return an axis counted from the front."""
    if not -rank <= value < max(rank, 1):
        raise Declined(f"axis {value} of rank {rank}")
    return value + rank if value < 0 else value


def static_input_shape(operation: Operation) -> tuple[int, ...]:
    """Return the shape of the first input, which need not be a constant."""
    shape = edit.static_shape(operation.node.inputs[0])
    if shape is None:
        raise Declined("the shape is not known")
    return shape
