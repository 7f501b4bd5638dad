"""The model before a decoder in onnxruntime-genai's pipeline, as ONNX Runtime runs it."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from epctx.graph import genai_window
from epctx.graph.genai_window import COUNT, NEXT, PAST, TOTAL, Fed
from epctx.graph.serde import canonical

IDS = Fed(name="ids", dtype=np.dtype(np.int64))
MASK = Fed(name="mask", dtype=np.dtype(np.int32))
PLACES = Fed(name="places", dtype=np.dtype(np.int64))
PAD = 9


class Window:
    """A window in a conversation, with `last` as onnxruntime-genai counts, padding included."""

    def __init__(self) -> None:
        made = genai_window.make(ids=IDS, mask=MASK, positions=PLACES, length=8, pad=PAD)
        onnx.checker.check_model(made)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        self._session = ort.InferenceSession(made, options)
        self.count: dict[str, np.ndarray] = {}
        self._last = -1

    def run(self, *ids: int) -> tuple[list[int], list[int]]:
        """The mask and the positions."""
        self._last += len(ids)
        feeds = {PAST: np.array([[self._last]], np.int32), TOTAL: np.array([8], np.int32)}
        feeds |= {"ids": np.array([ids], np.int64), **self.count}
        outputs = self._session.run(["mask", "places", NEXT], feeds)
        mask, places, self.count[COUNT] = outputs
        assert (mask.dtype, places.dtype) == (np.int32, np.int64)
        return mask[0].tolist(), places[0].tolist()


def test_the_mask_and_the_positions_count_tokens_and_no_padding_of_before() -> None:
    window = Window()
    assert window.run(1, 2, 3, 4) == ([1] * 4 + [0] * 4, [0, 1, 2, 3])
    assert window.run(5, PAD, PAD, PAD) == ([1] * 8, [4, 5, 6, 7])
    assert window.run(6) == ([1] * 6 + [0] * 2, [5]), "the padding is overwritten"
    assert window.run(PAD) == ([1] * 7 + [0], [6]), "a token that was generated"
    window = Window()
    assert window.run(PAD, 1, PAD, PAD) == ([1] * 4 + [0] * 4, [0, 1, 2, 3])
    assert window.run(PAD, 3, PAD, 4) == ([1] * 6 + [0] * 2, [2, 3, 4, 5]), "a second prompt"
    assert window.run(5) == ([1] * 7 + [0], [6])


def test_without_positions_it_makes_none() -> None:
    made = genai_window.make(ids=IDS, mask=MASK, positions=None, length=8, pad=PAD)
    outputs = [output.name for output in ort.InferenceSession(made).get_outputs()]
    assert outputs == [MASK.name, NEXT]


def test_it_fails_beyond_the_cache_and_where_the_count_is_lost() -> None:
    window = Window()
    for ids in ((1, 2, 3, 4), (1, 2), (3,)):
        window.run(*ids)
    with pytest.raises(Exception, match="out of data bounds"):
        window.run(1, 2)
    for ids in ((5,), (5, 6)):
        window = Window()
        window.run(1, 2)
        window.count.clear()
        with pytest.raises(Exception, match="out of data bounds"):
            window.run(*ids)


def test_it_is_canonical_and_the_same_each_time(tmp_path: Path) -> None:
    made = genai_window.make(ids=IDS, mask=MASK, positions=PLACES, length=8, pad=PAD)
    assert made == genai_window.make(ids=IDS, mask=MASK, positions=PLACES, length=8, pad=PAD)
    (tmp_path / "m.onnx").write_bytes(made)
    assert canonical.is_canonical(tmp_path / "m.onnx")
