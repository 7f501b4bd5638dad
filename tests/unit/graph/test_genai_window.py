"""The model before a decoder in onnxruntime-genai's pipeline, as ONNX Runtime runs it."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from epctx.graph import genai_window
from epctx.graph.genai_window import PAST, TOTAL, Fed
from epctx.graph.serde import canonical

IDS = Fed(name="ids", dtype=np.dtype(np.int64))
MASK = Fed(name="mask", dtype=np.dtype(np.int32))
PLACES = Fed(name="places", dtype=np.dtype(np.int64))


def feeds(last: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int32]]]:
    return {PAST: np.array([[last]], np.int32), TOTAL: np.array([8], np.int32)}


def test_the_mask_has_a_one_for_each_place_up_to_the_last() -> None:
    made = genai_window.make(ids=IDS, mask=MASK, positions=None, length=8)
    onnx.checker.check_model(made)
    session = ort.InferenceSession(made)
    for last in (0, 3, 7):
        (mask,) = session.run(None, feeds(last))
        assert mask.dtype == np.int32
        assert mask.tolist() == [[1] * (last + 1) + [0] * (7 - last)]


def test_positions_end_at_the_last_place() -> None:
    made = genai_window.make(ids=IDS, mask=MASK, positions=PLACES, length=8)
    session = ort.InferenceSession(made)
    for tokens, last, expected in ((4, 3, [0, 1, 2, 3]), (4, 7, [4, 5, 6, 7]), (1, 5, [5])):
        ids = np.zeros((1, tokens), np.int64)
        mask, places = session.run(["mask", "places"], {**feeds(last), "ids": ids})
        assert mask.sum() == last + 1
        assert places.dtype == np.int64 and places.tolist() == [expected]


def test_it_is_canonical_and_the_same_each_time(tmp_path: Path) -> None:
    made = genai_window.make(ids=IDS, mask=MASK, positions=PLACES, length=8)
    assert made == genai_window.make(ids=IDS, mask=MASK, positions=PLACES, length=8)
    (tmp_path / "m.onnx").write_bytes(made)
    assert canonical.is_canonical(tmp_path / "m.onnx")
