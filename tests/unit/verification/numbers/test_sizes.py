"""The search for sizes, on models that are nothing but a condition on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from epctx.graph.inputs import Dim, InputSpec
from epctx.verification.numbers.sizes import NotFound, Search, Sizes, words


def spec(name: str, *shape: Dim) -> InputSpec:
    return InputSpec(name=name, dtype=np.dtype(np.float32), shape=shape, kind="float32")


def search(
    inputs: Sequence[InputSpec],
    *conditions: Callable[[Sizes], bool],
    asked: Mapping[str, Sequence[int]] | None = None,
    known: Sequence[int] = (),
) -> Search:
    """Of a model whose nodes are `conditions`: a node runs if its own holds."""

    def attempt(sizes: Sizes) -> int | None:
        return next((i for i, holds in enumerate(conditions) if not holds(sizes)), None)

    return Search(inputs=inputs, asked=asked or {}, attempt=attempt, known=known)


def test_sizes_all_differ_and_so_do_the_two_sets() -> None:
    found = search([spec("x", "batch", 3, "sequence"), spec("m", "batch", "total")]).find()
    assert found == (
        {"batch": 2, "sequence": 5, "total": 3},
        {"batch": 3, "sequence": 6, "total": 4},
    )
    assert words(found[0]) == "batch=2, sequence=5, total=3"


def test_what_fits_another_is_found_out_and_kept() -> None:
    inputs = [spec("x", "b", "s"), spec("past", "b", "p"), spec("mask", "b", "t")]
    looked = search(inputs, lambda s: True, lambda s: s["t"] == s["p"] + s["s"])
    first, second = looked.find()
    for sizes in (first, second):
        assert sizes["t"] == sizes["p"] + sizes["s"] and min(sizes.values()) > 1
    assert first["s"] != second["s"] and looked.runs < 20


def test_a_node_with_several_conditions_is_got_past_from_another_start() -> None:
    """Grouped attention: no single change brings a run further; one sample and one size do."""
    inputs = [spec("x", "b", "seq"), spec("k", "b", "past", "d"), spec("mask", "b", "total")]
    fits = search(
        inputs, lambda s: (s["b"] == 1 or s["seq"] == 1) and s["d"] == 16, known=(8, 16, 64)
    )
    for sizes in fits.find():
        assert (sizes["b"] == 1 or sizes["seq"] == 1) and sizes["d"] == 16
        assert sizes["total"] == sizes["past"] + sizes["seq"]


def test_a_model_that_only_runs_without_a_past_is_run_so() -> None:
    looked = search([spec("x", "b", "s"), spec("k", "b", "past")], lambda s: s["past"] == 0)
    first, second = looked.find()
    assert first["past"] == second["past"] == 0 and first != second


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("past + sequence", lambda s: s["past"] + s["sequence"]),
        ("past + 1", lambda s: s["past"] + 1),
        ("2*past - 1", lambda s: 2 * s["past"] - 1),
        ("total_length", lambda s: s["past"] + s["sequence"]),
    ],
)
def test_names_that_say_it_are_believed_at_once(name: str, right: Callable[[Sizes], int]) -> None:
    inputs = [spec("x", "sequence"), spec("p", "past"), spec("mask", name)]
    looked = search(inputs, lambda s: s[name] == right(s))
    assert len(looked.find()) == 2 and looked.runs == 2


@pytest.mark.parametrize("name", ["past * past", "__import__('os')", "a" * 5000, "1 +", "", "past"])
def test_other_names_are_names(name: str) -> None:
    inputs = [spec("p", "past"), spec("mask", name or None)]
    (first, _) = search(inputs).find()
    assert next(iter(first.values())) == 2


def test_sizes_that_a_model_insists_on_are_found_node_by_node() -> None:
    inputs = [spec("x", "n", "channels", "height", "width")]
    looked = search(
        inputs,
        lambda s: s["channels"] == 3,
        lambda s: s["height"] >= 4 and s["width"] >= 4,
        lambda s: (s["height"] // 4) * (s["width"] // 4) == 64,
    )
    first, second = looked.find()
    assert first["channels"] == second["channels"] == 3 and first["n"] != second["n"]
    assert looked.runs < 400


def test_what_occurs_in_the_model_is_tried_in_pairs() -> None:
    inputs = [spec("x", "a"), spec("y", "b")]
    found = search(inputs, lambda s: (s["a"], s["b"]) == (771, 1999), known=(1999, 771)).find()
    assert found == ({"a": 771, "b": 1999},), "no other runs, so there is one"


def test_dimensions_without_a_name_are_alike_along_an_axis_until_they_are_not() -> None:
    inputs = [spec("x", None, 4), spec("y", None, None)]
    assert search(inputs).find()[0] == {"x[0]": 2, "y[0]": 2, "y[1]": 5}
    first, _ = search(inputs, lambda s: s["y[0]"] == 1).find()
    assert first["y[0]"] == 1


def test_what_is_asked_for_is_not_searched() -> None:
    inputs = [spec("x", "batch", "sequence"), spec("m", "total")]

    def total(sizes: Sizes) -> bool:
        return sizes["total"] == sizes["batch"] + sizes["sequence"]

    found = search(inputs, total, asked={"batch": (7,)}).find()
    assert [s["batch"] for s in found] == [7, 7] and found[0]["sequence"] != found[1]["sequence"]
    found = search(inputs, total, asked={"batch": (7, 9, 11), "sequence": (4, 2)}).find()
    assert [(s["batch"], s["sequence"]) for s in found] == [(7, 4), (9, 2), (11, 2)]
    with pytest.raises(NotFound):
        search(inputs, lambda s: s["batch"] == 1, asked={"batch": (7,)}).find()


def test_a_search_is_bounded_in_runs_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [spec("x", "a", "b", "c", "d")]
    monkeypatch.setenv("EPCTX_LIMIT_SIZE_RUNS", "25")
    with pytest.raises(NotFound) as caught:
        search(inputs, lambda s: False).find()
    assert caught.value.runs == 25 and caught.value.first == {"a": 2, "b": 5, "c": 3, "d": 7}
    monkeypatch.setattr(
        "epctx.verification.numbers.sizes.time.monotonic", iter(range(0, 999, 9)).__next__
    )
    with pytest.raises(NotFound) as caught:
        search(inputs, lambda s: False).find()
    assert caught.value.runs == 2


def test_the_bound_in_the_search_for_others_leaves_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_SIZE_RUNS", "1")
    assert search([spec("x", "a")]).find() == ({"a": 2},)
