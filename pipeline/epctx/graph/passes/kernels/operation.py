"""One node to be evaluated on constants: its inputs as arrays, and how results are made.

A kernel takes an `Operation` and returns an array for each output, views where it can. It raises
`Declined` where ONNX leaves the result open or machines may differ; the node then stays.
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
"""Bytes (16 MiB) that a kernel may hold in memory; what is larger it makes block by block."""

MAX_GROWTH = 1 << 30
"""Bytes that a result may be larger than the constants it comes from, as they are stored: 1 GiB.

The largest weight of the light models, which a fill makes and which must be folded (real-eps.md
section 14), has 411 MB. Beyond the limit a cheap node would turn into a model's largest part.
"""


class Declined(Exception):
    """The node has no result that is the same on every machine, or one too large."""


class Operation(Struct, frozen=True, kw_only=True):
    """A node, its constant inputs (None: left out), and the opset version of its domain."""

    node: ir.Node
    version: int
    inputs: tuple[Array | None, ...]
    scratch: Scratch

    def input(self, index: int) -> Array:
        """An input that must be there."""
        found = self.optional(index)
        if found is None:
            raise Declined(f"input {index} is missing")
        return found

    def optional(self, index: int) -> Array | None:
        """An input, or None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer attribute."""
        attribute = self.node.attributes.get(name)
        if attribute is not None:
            return attribute.as_int()
        if default is None:
            raise Declined(f"attribute {name} is missing")
        return default

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.as_string()

    def integers(self, index: int | None, name: str) -> tuple[int, ...] | None:
        """Integers given as input `index`, or in older opsets as an attribute; None if neither."""
        if name in self.node.attributes:
            return tuple(self.node.attributes[name].as_ints())
        given = None if index is None else self.optional(index)
        return None if given is None else tuple(int(item) for item in given.reshape(-1))

    def result_type(self) -> ir.DataType | None:
        """The type of the first output, if it is known."""
        return self.node.outputs[0].dtype

    def grows(self, size: int) -> None:
        """Decline a result of `size` bytes that would blow up the model, as others did before."""
        given = dict(zip(self.node.inputs, self.inputs, strict=True))  # what is given twice, once
        held = sum(scratch.held_bytes(each) for each in given.values() if each is not None)
        if size - held > MAX_GROWTH or self.scratch.is_full:
            raise Declined("the result is too large")

    def in_memory(self, *sizes: int) -> None:
        """Decline what is not made block by block and takes more than IN_MEMORY bytes."""
        given = [scratch.content_bytes(each) for each in self.inputs if each is not None]
        if max((*sizes, *given), default=0) > IN_MEMORY:
            raise Declined("too large to be made in memory")

    def contiguous(self, array: Array) -> Array:
        """The array laid out in C order: itself, a copy, or a file if it is large."""
        if array.flags.c_contiguous or scratch.content_bytes(array) <= IN_MEMORY:
            return np.ascontiguousarray(array)
        self.grows(scratch.content_bytes(array))
        return self.scratch.lay_out(array.shape, scratch.content_chunks(array), array)

    def reshaped(self, array: Array, shape: tuple[int, ...]) -> Array:
        """The array in another shape: a view where it can be one."""
        if scratch.is_fill(array):
            return np.broadcast_to(array[(0,) * array.ndim], shape)
        return self.contiguous(array).reshape(shape)

    def elementwise(self, function: Callable[..., Array], *inputs: Array) -> Array:
        """`function` of the broadcast inputs, made block by block where the result is large.

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
        """An array of `shape` and the type of `like`, whose part at an index `block` makes."""
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
    """An axis counted from the front."""
    if not -rank <= value < max(rank, 1):
        raise Declined(f"axis {value} of rank {rank}")
    return value + rank if value < 0 else value


def static_input_shape(operation: Operation) -> tuple[int, ...]:
    """The shape of the first input, which need not be a constant."""
    shape = edit.static_shape(operation.node.inputs[0])
    if shape is None:
        raise Declined("the shape is not known")
    return shape
