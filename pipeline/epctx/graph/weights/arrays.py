"""Arrays of any strides, read in C order and in pieces."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import byte_bounds

from epctx.files.digest import CHUNK

Array = npt.NDArray[Any]
"""An array whose element type is known at run time only."""


def blocks(shape: tuple[int, ...], itemsize: int) -> Iterator[tuple[slice, ...]]:
    """Index a shape in C order, at most `digest.CHUNK` bytes at a time (one element at least)."""
    if 0 in shape:
        return
    inner, axis = itemsize, len(shape)
    while axis and inner * shape[axis - 1] <= CHUNK:
        axis -= 1
        inner *= shape[axis]
    rest = (slice(None),) * (len(shape) - axis)
    if not axis:
        yield rest
        return
    step = max(CHUNK // inner, 1)
    for leading in itertools.product(*(range(size) for size in shape[: axis - 1])):
        fixed = tuple(slice(index, index + 1) for index in leading)
        for start in range(0, shape[axis - 1], step):
            yield (*fixed, slice(start, min(start + step, shape[axis - 1])), *rest)


def content(array: Array) -> Iterator[memoryview]:
    """The bytes of an array in C order, in pieces; the array may have any strides."""
    for index in blocks(array.shape, array.itemsize):
        yield np.ascontiguousarray(array[index]).reshape(-1).view(np.uint8).data


def is_fill(array: Array) -> bool:
    """All elements are one element in memory."""
    return array.size > 0 and all(
        not stride or size == 1 for stride, size in zip(array.strides, array.shape, strict=True)
    )


def held(array: Array) -> int:
    """Bytes of memory from its first element to its last: few for a fill, whatever its size."""
    low, high = byte_bounds(array)
    return min(high - low, nbytes(array))


def nbytes(array: Array) -> int:
    """Bytes that the array's content takes when written, whatever its strides."""
    return math.prod(array.shape) * array.itemsize


def address_of(array: Array) -> int:
    """Where in memory the first element is."""
    address: int = array.__array_interface__["data"][0]
    return address
