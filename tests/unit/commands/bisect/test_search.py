"""The search for the first wrong layer: cuts, readings, trials."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epctx.commands.bisect.search import CutModel, Layer, Search, Spent, Trials, smallest
from epctx.engine import plan
from epctx.errors import CompileError, EpctxError
from epctx.graph import store
from epctx.manifest import ModelGroup, PartitionSettings
from epctx.stages import optimize
from tests.kit import onnx_text
from tests.kit.building import cpu, mlp
from tests.kit.optimizing import loaded, settings


def layers(parents: list[list[int]]) -> list[Layer]:
    return [
        Layer(
            place=place,
            node=ir.Node("", "Relu", []),
            values=(f"v{place}",),
            parents=frozenset(before),
        )
        for place, before in enumerate(parents)
    ]


def chain(length: int) -> list[Layer]:
    return layers([[place - 1] if place else [] for place in range(length)])


def after(model: list[Layer], fault: int) -> set[str]:
    """What is wrong if one layer is: its values, and those of all that use it."""
    wrong = {fault}
    for layer in model:
        if wrong & layer.parents:
            wrong.add(layer.place)
    return {f"v{place}" for place in wrong}


def found(model: list[Layer], wrong: set[str], at_once: int) -> tuple[int, int, int]:
    """The first wrong layer, how many rounds and how many values it took."""
    search = Search(model, at_once)
    last = f"v{max(int(each[1:]) for each in wrong)}"
    search.passed.update({last: False})
    rounds = read = 0
    while values := search.values():
        rounds, read = rounds + 1, read + len(values)
        assert not set(values) & search.passed.keys(), "what is known is not read again"
        search.passed.update({value: value not in wrong for value in values})
    assert search.wrong is not None
    return search.wrong.place, rounds, read


@pytest.mark.parametrize("fault", [0, 1, 150, 298, 299])
def test_of_a_chain_of_300_nodes_three_rounds_of_eight_tell(fault: int) -> None:
    model = chain(300)
    place, rounds, read = found(model, after(model, fault), at_once=8)
    assert place == fault
    assert rounds <= 4 and read <= 32


def test_how_many_rounds_are_left_is_told() -> None:
    search = Search(chain(300), 8)
    assert search.rounds() == 0 and search.values() == ()
    search.passed.update({"v299": False})
    assert search.rounds() == 3 and len(search.suspects()) == 299


@given(
    st.lists(st.lists(st.integers(0, 1000), max_size=3), min_size=1, max_size=40),
    st.integers(0, 1000),
    st.integers(1, 9),
)
def test_of_any_graph_the_layer_is_wrong_and_all_that_it_uses_is_right(
    drawn: list[list[int]], fault: int, at_once: int
) -> None:
    model = layers([[each % place for each in some if place] for place, some in enumerate(drawn)])
    wrong = after(model, fault % len(model))
    place, _, _ = found(model, wrong, at_once)
    assert f"v{place}" in wrong
    assert not {f"v{parent}" for parent in model[place].parents} & wrong


def test_a_right_value_behind_the_fault_hides_nothing() -> None:
    """A Relu may make a wrong value right: what was cleared by it is read in the end."""
    search = Search(layers([[], [0], [1], [1], [2, 3]]), 4)
    search.passed.update({"v4": False, "v2": True, "v3": False})
    assert search.values() == ("v1",), "node 2 is right, and yet 1, before both, may be wrong"
    search.passed["v1"] = False
    assert search.values() == ("v0",)
    search.passed["v0"] = True
    assert search.values() == () and search.wrong is search.layers[1]


def test_a_layer_of_two_values_is_right_if_both_are() -> None:
    model = chain(2)
    two = Layer(place=0, node=model[0].node, values=("v0", "w0"), parents=frozenset())
    search = Search([two, model[1]], 4)
    search.passed.update({"v1": False})
    assert search.values() == ("v0", "w0")
    search.passed.update({"v0": True, "w0": False})
    assert search.wrong is two and search.values() == ()


def culprits(count: int, needed: set[int], *, kinds: int = 5) -> tuple[list[int], int]:
    """The items without which nothing fails, and how many trials that took."""
    trials = 0

    def passes(out: Sequence[int]) -> bool:
        nonlocal trials
        trials += 1
        return needed <= set(out)

    return smallest(range(count), passes, lambda item: item % kinds), trials


@pytest.mark.parametrize("one", [0, 1, 77, 298, 299])
def test_one_culprit_of_300_takes_ten_trials(one: int) -> None:
    found, trials = culprits(300, {one})
    assert found == [one] and trials <= 10


def test_several_culprits_are_found_one_by_one() -> None:
    found, trials = culprits(300, {10, 150, 290})
    assert set(found) == {10, 150, 290} and trials <= 45


def test_many_culprits_are_left_out_by_their_kind() -> None:
    found, trials = culprits(300, set(range(0, 300, 5)))
    assert found == list(range(0, 300, 5)) and trials <= 50


def test_what_fails_with_any_item_is_given_up_at_once() -> None:
    found, trials = culprits(300, set(range(300)))
    assert found == [] and trials <= 15


def test_many_culprits_of_many_kinds_are_given_up() -> None:
    found, trials = culprits(300, set(range(0, 300, 7)) | {299}, kinds=300)
    assert found == [] and trials <= 50


@given(st.sets(st.integers(0, 59), min_size=1, max_size=3), st.integers(1, 3))
def test_leaving_out_what_is_found_passes_and_no_less_does(needed: set[int], kinds: int) -> None:
    found, _ = culprits(60, needed, kinds=kinds)
    assert set(found) == needed


BRANCHES = """
g (float[2, 4] x) => (float[2, 4] y) {
    [first] a = Relu(x)
    [shaped] s = Shape(a)
    [filled] f = ConstantOfShape(s)
    [left] l = Tanh(a)
    [joined] y = Add(l, f)
}
"""


def cut(model: onnx.ModelProto, folder: Path) -> CutModel:
    kept, scratch = folder / "optimized", folder / "cut"
    kept.mkdir()
    scratch.mkdir()
    store.write(optimize.run(loaded(model, folder), settings("none"), kept), kept)
    return CutModel(kept, scratch)


def test_a_layer_knows_those_before_it_through_nodes_that_cannot_be_read(tmp_path: Path) -> None:
    layers = cut(onnx_text.proto(BRANCHES), tmp_path).layers
    named = {layer.node.name: layer for layer in layers}
    assert "shaped" not in named, "it gives integers"
    parents = {
        name: {layers[place].node.name for place in layer.parents} for name, layer in named.items()
    }
    assert parents["joined"] == {"left", "filled"} or parents["joined"] == {"left", "first"}
    assert parents["left"] == {"first"} and parents["first"] == set()
    assert all(place < layer.place for layer in layers for place in layer.parents)


@pytest.mark.parametrize("width", [8, 64])
def test_a_cut_model_gives_its_own_outputs_first_and_the_same_numbers(
    tmp_path: Path, width: int
) -> None:
    source = mlp(width=width)
    model = cut(source, tmp_path)
    paths = [model.write(["m1", "r0", "y"]), model.write(["a2"])]
    feeds = {"x": np.ones((1, width), np.float32)}
    whole, other = (cpu(path) for path in paths)
    assert [each.name for each in whole.get_outputs()] == ["y", "m1", "r0"]
    assert [each.name for each in other.get_outputs()] == ["y", "a2"]
    (right,) = cpu(source).run(["y"], feeds)
    for session in (whole, other):
        np.testing.assert_allclose(session.run(["y"], feeds)[0], right, rtol=1e-5)


def test_weights_are_written_once(tmp_path: Path) -> None:
    model = cut(mlp(width=64), tmp_path)
    first, second = model.write(["m1"]), model.write(["m2"])
    weights = first.with_name("weights.data").stat().st_size
    assert weights >= 3 * 4 * 64**2 > first.stat().st_size + second.stat().st_size


@pytest.fixture
def trials(damaged: Path, tmp_path: Path) -> Trials:
    folder = tmp_path / "trials"
    folder.mkdir()
    return Trials(manifest=plan.read(damaged).manifest, target="default", folder=folder)


@pytest.fixture
def group(damaged: Path) -> ModelGroup:
    return plan.read(damaged).groups[0].group


def test_the_numbers_of_a_build_that_fails_by_them_come_back(
    trials: Trials, group: ModelGroup
) -> None:
    numbers = trials.build(group)
    assert {each.output for each in numbers} == {"y"}
    assert not any(each.passed for each in numbers)
    repaired = replace(group, partition=PartitionSettings(exclude_nodes=("product6",)))
    assert all(each.passed for each in trials.build(repaired))
    assert trials.count == 2 and not list(trials.folder.iterdir())


def test_a_build_that_fails_otherwise_is_no_result(trials: Trials, group: ModelGroup) -> None:
    misspelt = replace(group, partition=PartitionSettings(exclude_nodes=("produkt",)))
    with pytest.raises(EpctxError, match="no node of the optimized models matches"):
        trials.build(misspelt)


@pytest.mark.parametrize(
    ("remedy", "told"),
    [
        ("use another SDK; its log: {}/a.log", "use another SDK; `epctx build` keeps its log"),
        ("see the whole log: {}/a.log", "`epctx build` keeps its log"),
        ("use another SDK", "use another SDK"),
    ],
)
def test_a_failure_names_no_log_that_is_gone(
    trials: Trials, group: ModelGroup, monkeypatch: pytest.MonkeyPatch, remedy: str, told: str
) -> None:
    error = CompileError("it failed", remedy=remedy.format(trials.folder))
    nothing = SimpleNamespace(verify=None)
    monkeypatch.setattr(Trials, "run", lambda trials, group: (nothing, error))
    with pytest.raises(CompileError) as raised:
        trials.build(group)
    assert raised.value.remedy == told


def test_the_first_build_is_made_whatever_the_budget(trials: Trials, group: ModelGroup) -> None:
    trials.deadline = time.monotonic()
    trials.build(group)
    with pytest.raises(Spent):
        trials.run(group)
