"""The search for sizes, on models that are nothing but a condition on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnxruntime as ort
import pytest

from epctx.actions.find_sizes import NodeOrder, Search, total
from epctx.verification.numbers.sizes import Sizes
from tests.kit import onnx_text

MODEL = (
    "g (float[N] x) => (float[N] z) <float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[4] b = "
    "{1,2,3,4}> { y = Neg(x) a = Abs(y) s = MatMul(a, w) z = Add(s, b) }"
)


def search(
    start: Sizes,
    *conditions: Callable[[Sizes], bool],
    asked: Sizes | None = None,
    neighbours: Sequence[tuple[str, str]] = (),
    model_sizes: Sequence[int] = (),
) -> Search:
    """Of a model whose nodes are `conditions`: a node runs if its own holds."""

    def attempt(sizes: Sizes) -> int | None:
        return next((i for i, holds in enumerate(conditions) if not holds(sizes)), None)

    return Search(
        start=start,
        fixed=asked or {},
        attempt=attempt,
        neighbours=neighbours,
        model_sizes=model_sizes,
    )


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


def test_it_begins_with_what_is_proposed_then_with_sizes_that_all_differ() -> None:
    start = {"batch": 1, "sequence": 64, "total": 128}
    assert found(search(start)) == start
    looked = search(start, lambda s: s["batch"] > 1)
    assert found(looked) == {"batch": 2, "sequence": 5, "total": 3} and looked.runs == 3


def test_what_fits_another_is_found_out() -> None:
    start = {"b": 1, "s": 64, "p": 64, "t": 64}
    looked = search(start, lambda s: True, lambda s: s["t"] == s["p"] + s["s"])
    assert found(looked) == {"b": 1, "s": 64, "p": 64, "t": 128}
    assert looked.runs < 30


def test_a_node_with_several_conditions_is_got_past_beside_what_is_asked_for() -> None:
    start = {"b": 2, "seq": 5, "past": 3, "d": 64}
    looked = search(
        start, lambda s: s["b"] == 1 and s["d"] == 16, asked={"b": 1}, model_sizes=(8, 16, 64)
    )
    assert found(looked) == {**start, "b": 1, "d": 16}


def test_no_size_is_0() -> None:
    assert search({"s": 5, "past": 5}, lambda s: s["past"] == 0).find() is None


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("past + sequence", 12),
        ("past + 1", 6),
        ("past_plus_1", 6),
        ("2*past - 1", 9),
        ("total_length", 12),
        ("past", None),
        ("__import__('os')", None),
        ("a" * 5000, None),
        ("-" * 6000, None),
        ("*".join(["0xffffffff"] * 90), None),
        ("past - 9", None),
        ("1 +", None),
        ("", None),
    ],
)
def test_names_that_say_it_are_believed(name: str, size: int | None) -> None:
    others = {"past": 5, "sequence": 7} if name != "past" else {"sequence": 7}
    assert total(name, others) == size


def test_a_total_is_a_past_and_a_sequence() -> None:
    assert total("total_length", {"past_len": 5, "seq_len": 7}) == 12
    assert total("total_length", {"past_len": 5, "past": 5, "seq_len": 7}) is None


def test_sizes_that_a_model_insists_on_are_found_node_by_node() -> None:
    looked = search(
        {"n": 1, "channels": 1, "height": 1, "width": 1},
        lambda s: s["channels"] == 3,
        lambda s: s["height"] >= 4 and s["width"] >= 4,
        lambda s: (s["height"] // 4) * (s["width"] // 4) == 64,
        neighbours=[("n", "channels"), ("channels", "height"), ("height", "width")],
    )
    assert found(looked)["channels"] == 3 and looked.runs < 500


def test_what_occurs_in_the_model_is_tried_in_pairs() -> None:
    wanted = {"a": 771, "b": 1999}
    assert found(search({"a": 1, "b": 1}, lambda s: s == wanted, model_sizes=(1999, 771))) == wanted


def test_what_is_asked_for_is_not_searched() -> None:
    start = {"batch": 1, "sequence": 64, "total": 64}

    def fits(sizes: Sizes) -> bool:
        return sizes["total"] == sizes["batch"] + sizes["sequence"]

    assert found(search(start, fits, asked={"batch": 7}))["batch"] == 7
    assert search(start, lambda s: s["batch"] == 1, asked={"batch": 7}).find() is None


def test_a_search_is_bounded_in_runs_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    start = dict.fromkeys("abcd", 1)
    monkeypatch.setenv("EPCTX_LIMIT_SIZE_RUNS", "25")
    looked = search(start, lambda s: False)
    assert looked.find() is None and looked.runs == 25
    assert looked.ended == "25 runs; EPCTX_LIMIT_SIZE_RUNS sets another limit"
    monkeypatch.setattr("epctx.actions.find_sizes.time.monotonic", iter(range(0, 999, 9)).__next__)
    looked = search(start, lambda s: False)
    assert looked.find() is None and looked.runs == 2 and looked.ended.startswith("20 s; ")
