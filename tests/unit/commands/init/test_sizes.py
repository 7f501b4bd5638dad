"""Sizes that a starter manifest proposes: the model runs at them, whatever it is."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from epctx.commands.init import sizes
from epctx.graph import inputs
from tests.kit.onnx_text import proto


def found(folder: Path, body: str) -> dict[str, int] | None:
    model = proto(body)
    onnx.save(model, folder / "m.onnx")
    known = sizes.find(folder / "m.onnx", inputs.specs(model))
    return None if known is None else dict(known)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("g (float[batch, 3] x) => (float[batch, 3] y) { y = Relu(x) }", {"batch": 1}),
        ("g (float[N, seq_len] x) => (float[N, seq_len] y) { y = Relu(x) }",
         {"N": 1, "seq_len": 64}),
        ("g (float[1, height, width] x) => (float[1, height, width] y) { y = Relu(x) }",
         {"height": 224, "width": 224}),
        # Names suggest 64, and the weights allow nothing but 5.
        ("g (float[1, length] x) => (float[1, 1] y) <float[5, 1] w = {1, 2, 3, 4, 5}> "
         "{ y = MatMul(x, w) }", {"length": 5}),
    ],
)  # fmt: skip
def test_they_are_what_names_suggest_where_the_model_runs_at_them(
    tmp_path: Path, body: str, wanted: dict[str, int]
) -> None:
    assert found(tmp_path, body) == wanted


def test_those_that_depend_on_each_other_are_searched_for(tmp_path: Path) -> None:
    body = (
        "g (float[1, past_len] past, float[1, seq_len] x, float[1, total_len] mask) "
        "=> (float[1, total_len] y) { k = Concat<axis = 1>(past, x) y = Add(k, mask) }"
    )
    known = found(tmp_path, body)
    assert known is not None and known["seq_len"] == 64
    assert known["total_len"] == known["past_len"] + known["seq_len"]


def test_of_a_model_that_runs_at_none_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_SIZE_SECONDS", "2")
    body = (
        "g (float[a, 3] x) => (float[c] y) <int64[1] s = {0}> "
        "{ z = Reshape(x, s) q = ReduceSum<keepdims = 0>(z) i = Cast<to = 7>(q) "
        "w = Expand(q, s) y = Gather(w, i) }"
    )
    assert found(tmp_path, body) is None


def test_a_model_that_does_not_end_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_SIZE_SECONDS", "1")
    body = """g (float[n] x) => (float[n] y) <int64 most = {9000000000000000000}, bool on = {1}> {
        y = Loop (most, on, x) <body = each (int64 i, bool before, float[n] old)
            => (bool after, float[n] new) { after = Identity(before) new = Identity(old) }>
    }"""
    assert found(tmp_path, body) is None
