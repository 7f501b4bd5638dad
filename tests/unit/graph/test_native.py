"""Native work is announced with what it may take, and its end whatever comes of it."""

from __future__ import annotations

import pytest

from epctx.graph import native
from epctx.graph.native import Allowance
from epctx.graph.prepare import inference
from tests.kit import onnx_text

SHAPES = "g (float[2] x) => (float[A] y) { s = Shape(x) t = Add(s, s) y = ConstantOfShape(t) }"


def test_work_is_announced_with_its_share_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_NATIVE_MEMORY", "1000")
    monkeypatch.setenv("EPCTX_LIMIT_NATIVE_SECONDS", "7")
    heard: list[Allowance | None] = []
    with (
        native.watched(heard.append),
        pytest.raises(ZeroDivisionError),
        native.allowed("ONNX Runtime", 3 << 16),
    ):
        assert len(heard) == 1
        raise ZeroDivisionError
    memory = 1000 + native.MEMORY_FACTOR * (3 << 16)
    assert heard == [Allowance(work="ONNX Runtime", memory=memory, seconds=10), None]


def test_nobody_hears_of_work_that_nobody_watches() -> None:
    heard: list[Allowance | None] = []
    with native.watched(heard.append):
        pass
    with native.allowed("ONNX Runtime", 1):
        assert heard == []


def test_inference_goes_as_far_as_it_may() -> None:
    model = onnx_text.proto(SHAPES)
    heard: list[Allowance | None] = []
    found: dict[str, tuple[bool, list[int | str]]] = {}
    for reach in native.REACHES:
        heard.clear()
        with native.watched(heard.append), native.inferring(reach):
            graph = inference.infer(model).graph
        (shape,) = (value.type.tensor_type.shape for value in graph.output)
        dims = [d.dim_value or d.dim_param for d in shape.dim]
        found[reach] = bool(graph.value_info), dims
        assert (len(heard) > 0) == (reach != "nothing")
        assert not heard or heard[-1] is None
    assert found == {
        "data": (True, [4]),
        "types": (True, ["A"]),
        "nothing": (False, ["A"]),
    }
    assert native.reach() == "data"
