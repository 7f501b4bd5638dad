"""The model before a decoder in onnxruntime-genai's pipeline, as ONNX Runtime runs it."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from epctx.graph import genai_window
from epctx.graph.genai_window import COUNT, NEXT, PAST, TOTAL
from epctx.graph.inputs import InputSpec
from epctx.graph.serde import canonical

IDS, MASK, PLACES = (
    InputSpec(name=name, dtype=np.dtype(kind), shape=(1, None), kind=kind)
    for name, kind in (("ids", "int64"), ("mask", "int32"), ("places", "int64"))
)
PAD = 9


Found = list[tuple[list[int], list[int]]]


def talk(*windows: tuple[int, ...], keep: bool = True) -> Found:
    """The mask and the positions for each window of a conversation.

    `keep`: the count goes on to the next; else it is lost.
    """
    made = genai_window.make(IDS, [MASK, PLACES], length=8, pad=PAD)
    onnx.checker.check_model(made)
    session = ort.InferenceSession(made)
    count: dict[str, np.ndarray] = {}
    last, found = -1, []
    for ids in windows:
        last += len(ids)  # as onnxruntime-genai counts: padding, too
        feeds = {PAST: np.array([[last]], np.int32), TOTAL: np.array([8], np.int32)}
        feeds |= {"ids": np.array([ids], np.int64), **count}
        mask, places, after = session.run(["mask", "places", NEXT], feeds)
        assert (mask.dtype, places.dtype) == (np.int32, np.int64)
        found.append((mask[0].tolist(), places[0].tolist()))
        count = {COUNT: after} if keep else {}
    return found


def test_the_mask_and_the_positions_count_tokens_and_no_padding_of_before() -> None:
    assert talk((1, 2, 3, 4), (5, PAD, PAD, PAD), (6,), (PAD,)) == [
        ([1] * 4 + [0] * 4, [0, 1, 2, 3]),
        ([1] * 8, [4, 5, 6, 7]),
        ([1] * 6 + [0] * 2, [5]),  # in the place of padding
        ([1] * 7 + [0], [6]),  # padding's token, generated
    ]
    assert talk((PAD, 1, PAD, PAD), (PAD, 3, PAD, 4), (5,))[1:] == [
        ([1] * 6 + [0] * 2, [2, 3, 4, 5]),  # a second prompt
        ([1] * 7 + [0], [6]),
    ]


@pytest.mark.parametrize(
    ("windows", "keep"),
    [
        ([(1, 2, 3, 4), (1, 2), (3,), (1, 2)], True),
        ([(1, 2), (5,)], False),
        ([(1, 2), (5, 6)], False),
    ],
)
def test_beyond_the_cache_and_without_the_count_it_fails(
    windows: list[tuple[int, ...]], keep: bool
) -> None:
    with pytest.raises(Exception, match="out of data bounds"):
        talk(*windows, keep=keep)


def test_it_is_canonical_and_the_same_each_time(tmp_path: Path) -> None:
    made = genai_window.make(IDS, [MASK, PLACES], length=8, pad=PAD)
    assert made == genai_window.make(IDS, [MASK, PLACES], length=8, pad=PAD)
    (tmp_path / "m.onnx").write_bytes(made)
    assert canonical.is_canonical(tmp_path / "m.onnx")
