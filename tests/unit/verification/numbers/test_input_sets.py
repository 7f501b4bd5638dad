from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from epctx.errors import ManifestError
from epctx.graph.inputs import InputSpec
from epctx.manifest import VerifyInputs
from epctx.verification.numbers.input_sets import InputSets

X = InputSpec(name="x", dtype=np.dtype(np.float32), shape=(1, 2), kind="float32")
IDS = InputSpec(name="ids", dtype=np.dtype(np.int64), shape=(3,), kind="int64")


def test_as_many_sets_as_asked_all_different() -> None:
    sets = list(InputSets(VerifyInputs(seed=5, count=3)).cases([X]))
    assert [case.label for case in sets] == ["seed 5, set 0", "seed 5, set 1", "seed 5, set 2"]
    assert len({case.feeds["x"].tobytes() for case in sets}) == 3


def test_whoever_asks_gets_the_same_sets() -> None:
    settings = VerifyInputs(seed=5, count=2, ranges={"ids": (0, 9)})
    one, other = (list(InputSets(settings).cases([IDS, X])) for _ in range(2))
    for left, right in zip(one, other, strict=True):
        assert all(np.array_equal(left.feeds[name], right.feeds[name]) for name in left.feeds)


def test_a_range_is_for_an_input_of_some_model() -> None:
    sets = InputSets(VerifyInputs(ranges={"ids": (0, 9), "idx": (0, 1)}))
    list(sets.cases([X]))
    with pytest.raises(ManifestError) as caught:
        sets.refuse_unused([[IDS]])
    assert 'a range is given for "idx"' in str(caught.value)
    assert 'did you mean "ids"?' in str(caught.value)


def test_files_are_given_to_whom_they_fit(tmp_path: Path) -> None:
    for name, array in (("x", np.zeros((1, 2), np.float32)), ("ids", np.zeros(3, np.int64))):
        np.savez(tmp_path / f"{name}.npz", allow_pickle=False, **{name: array})
    files = (tmp_path / "x.npz", tmp_path / "ids.npz")
    sets = InputSets(VerifyInputs(files=files))
    assert not sets.generated
    assert [case.label for case in sets.cases([X])] == ["x.npz"]
    with pytest.raises(ManifestError, match=r"ids\.npz: names \"ids\", which is no input"):
        sets.refuse_unused()
    sets.refuse_unused([[IDS]])
    assert [case.label for case in sets.cases([IDS])] == ["ids.npz"]


def test_sets_are_made_for_each_of_the_sizes() -> None:
    sets = InputSets(VerifyInputs(count=2, dimensions={"n": (2,)}))
    x = InputSpec(name="x", dtype=np.dtype(np.float32), shape=("n", None), kind="float32")
    assert not sets.problems([x])
    found = list(sets.cases([x], [{"n": 2, "x[1]": 5}, {"n": 3, "x[1]": 1}]))
    assert [case.feeds["x"].shape for case in found] == [(2, 5), (2, 5), (3, 1), (3, 1)]
    assert found[1].label == "seed 0, set 1, n=2, x[1]=5" and found[1].sizes["n"] == 2
    sets.refuse_unused()
