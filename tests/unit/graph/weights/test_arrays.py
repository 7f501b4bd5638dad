"""Arrays of any strides in C order and in pieces."""

from __future__ import annotations

import numpy as np
import pytest

from epctx.files.digest import CHUNK
from epctx.graph.weights import arrays

SHAPES = [(), (0,), (7,), (3, 0, 2), (5, 1, 3), (1 << 23,), (3, 5, 1 << 20), (1 << 21, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks_cover_a_shape_in_order_and_are_small(shape: tuple[int, ...]) -> None:
    position = 0
    last = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    for index in arrays.blocks(shape, 4):
        part = last[index]
        assert 0 < part.nbytes <= CHUNK
        assert part.reshape(-1)[0] == position
        assert part.reshape(-1)[-1] == position + part.size - 1
        position += part.size
    assert position == last.size


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.int16).reshape(2, 3, 4).transpose(2, 0, 1),
        np.broadcast_to(np.float32(-0.0), (3, 5)),
        np.arange(12, dtype=np.uint8)[::-2],
        np.array(7, np.int64),
        np.zeros((0, 3), np.float64),
        np.arange(3 * (CHUNK // 8), dtype=np.int32).reshape(3, -1).T,
    ],
    ids=lambda array: f"{array.shape}",
)
def test_content_is_what_tobytes_is(array: arrays.Array) -> None:
    pieces = list(arrays.content(array))
    assert b"".join(pieces) == array.tobytes()
    assert all(len(piece) <= CHUNK for piece in pieces)


def test_a_fill_is_one_element() -> None:
    fill = np.broadcast_to(np.float32(2), (4, 1, 3))
    assert arrays.is_fill(fill)
    assert arrays.nbytes(fill) == 48
    assert arrays.held(fill) == 4
    assert arrays.held(np.broadcast_to(np.arange(3, dtype=np.int8), (9, 3))) == 3
    assert arrays.held(np.arange(10, dtype=np.int16)[::-2]) == 10
    assert arrays.is_fill(np.array(5))
    assert not arrays.is_fill(np.zeros((2, 2)))
    assert not arrays.is_fill(np.broadcast_to(np.arange(3), (2, 3)))
    assert not arrays.is_fill(np.zeros((0, 3)))
