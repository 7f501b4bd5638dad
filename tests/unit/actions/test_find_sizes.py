"""The search for sizes, on models that are nothing but a condition on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnxruntime as ort
import pytest

from epctx.actions.find_sizes import NodeOrder, Search
from epctx.graph.inputs import Dim, InputSpec
from epctx.verification.numbers.sizes import Sizes
from tests.kit import onnx_text

MODEL = (
    "g (float[N] x) => (float[N] z) <float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[4] b = "
    "{1,2,3,4}> { y = Neg(x) a = Abs(y) s = MatMul(a, w) z = Add(s, b) }"
)


def spec(name: str, *shape: Dim) -> InputSpec:
    return InputSpec(name=name, dtype=np.dtype(np.float32), shape=shape, kind="float32")


def search(
    inputs: Sequence[InputSpec],
    *conditions: Callable[[Sizes], bool],
    asked: Sizes | None = None,
    start: Sizes | None = None,
    known: Sequence[int] = (),
) -> Search:
    """Of a model whose nodes are `conditions`: a node runs if its own holds."""

    def attempt(sizes: Sizes) -> int | None:
        return next((i for i, holds in enumerate(conditions) if not holds(sizes)), None)

    return Search(inputs=inputs, asked=asked or {}, attempt=attempt, start=start or {}, known=known)


def found(looked: Search) -> Sizes:
    sizes = looked.find()
    assert sizes is not None
    return sizes


@pytest.mark.parametrize("named", [True, False])
def test_onnxruntime_says_where_a_run_failed(named: bool) -> None:
    proto = onnx_text.proto(MODEL)
    for node in proto.graph.node if named else ():
        node.name = f"the {node.op_type}"
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options)
    with pytest.raises(Exception, match="MatMul") as caught:
        session.run(None, {"x": np.ones(7, np.float32)})
    order = NodeOrder.of(proto)
    assert order.reached(str(caught.value)) == 2
    assert order.reached("something else") == -1
    assert order.sizes == (4, 3)


def test_sizes_all_differ_where_nothing_is_to_begin_with() -> None:
    inputs = [spec("x", "batch", 3, "sequence"), spec("m", "batch", "total")]
    assert found(search(inputs)) == {"batch": 2, "sequence": 5, "total": 3}
    start = {"batch": 1, "sequence": 64, "total": 128}
    assert found(search(inputs, start=start)) == start


def test_what_fits_another_is_found_out_and_kept() -> None:
    inputs = [spec("x", "b", "s"), spec("past", "b", "p"), spec("mask", "b", "t")]
    looked = search(inputs, lambda s: True, lambda s: s["t"] == s["p"] + s["s"])
    sizes = found(looked)
    assert sizes["t"] == sizes["p"] + sizes["s"] and min(sizes.values()) > 1
    assert looked.runs < 20


def test_a_node_with_several_conditions_is_got_past_from_another_start() -> None:
    """Grouped attention: no single change brings a run further; one sample and one size do."""
    inputs = [spec("x", "b", "seq"), spec("k", "b", "past", "d"), spec("mask", "b", "total")]
    sizes = found(
        search(inputs, lambda s: (s["b"] == 1 or s["seq"] == 1) and s["d"] == 16, known=(8, 16, 64))
    )
    assert (sizes["b"] == 1 or sizes["seq"] == 1) and sizes["d"] == 16
    assert sizes["total"] == sizes["past"] + sizes["seq"]


def test_no_size_is_0() -> None:
    looked = search([spec("x", "b", "s"), spec("k", "b", "past")], lambda s: s["past"] == 0)
    assert looked.find() is None


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("past + sequence", lambda s: s["past"] + s["sequence"]),
        ("past + 1", lambda s: s["past"] + 1),
        ("past_plus_1", lambda s: s["past"] + 1),
        ("2*past - 1", lambda s: 2 * s["past"] - 1),
        ("total_length", lambda s: s["past"] + s["sequence"]),
    ],
)
def test_names_that_say_it_are_believed_at_once(name: str, right: Callable[[Sizes], int]) -> None:
    inputs = [spec("x", "sequence"), spec("p", "past"), spec("mask", name)]
    looked = search(inputs, lambda s: s[name] == right(s))
    assert found(looked) and looked.runs == 1


@pytest.mark.parametrize("name", ["past * past", "__import__('os')", "a" * 5000, "1 +", "", "past"])
def test_other_names_are_names(name: str) -> None:
    inputs = [spec("p", "past"), spec("mask", name or None)]
    assert next(iter(found(search(inputs)).values())) == 2


def test_sizes_that_a_model_insists_on_are_found_node_by_node() -> None:
    inputs = [spec("x", "n", "channels", "height", "width")]
    looked = search(
        inputs,
        lambda s: s["channels"] == 3,
        lambda s: s["height"] >= 4 and s["width"] >= 4,
        lambda s: (s["height"] // 4) * (s["width"] // 4) == 64,
    )
    assert found(looked)["channels"] == 3 and looked.runs < 400


def test_what_occurs_in_the_model_is_tried_in_pairs() -> None:
    inputs = [spec("x", "a"), spec("y", "b")]
    looked = search(inputs, lambda s: (s["a"], s["b"]) == (771, 1999), known=(1999, 771))
    assert found(looked) == {"a": 771, "b": 1999}


def test_dimensions_without_a_name_are_alike_along_an_axis_until_they_are_not() -> None:
    inputs = [spec("x", None, 4), spec("y", None, None)]
    assert found(search(inputs)) == {"x[0]": 2, "y[0]": 2, "y[1]": 5}
    assert found(search(inputs, lambda s: s["y[0]"] == 1))["y[0]"] == 1


def test_what_is_asked_for_is_not_searched() -> None:
    inputs = [spec("x", "batch", "sequence"), spec("m", "total")]

    def total(sizes: Sizes) -> bool:
        return sizes["total"] == sizes["batch"] + sizes["sequence"]

    assert found(search(inputs, total, asked={"batch": 7}))["batch"] == 7
    assert search(inputs, lambda s: s["batch"] == 1, asked={"batch": 7}).find() is None


def test_a_search_is_bounded_in_runs_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [spec("x", "a", "b", "c", "d")]
    monkeypatch.setenv("EPCTX_LIMIT_SIZE_RUNS", "25")
    looked = search(inputs, lambda s: False)
    assert looked.find() is None and looked.runs == 25
    monkeypatch.setattr("epctx.actions.find_sizes.time.monotonic", iter(range(0, 999, 9)).__next__)
    looked = search(inputs, lambda s: False)
    assert looked.find() is None and looked.runs == 2
