"""EPs of this host, and sizes given by the user."""

from __future__ import annotations

import pytest

from epctx.commands.doctor import command
from epctx.commands.doctor.probe import ProviderDiagnosis, State
from epctx.commands.init import options as choice
from epctx.commands.init.options import REFERENCE, SizeOptions
from epctx.errors import UsageError
from epctx.graph import inputs
from epctx.providers import registry
from tests.kit.onnx_text import proto


@pytest.mark.parametrize(
    ("states", "proposed"),
    [
        ({REFERENCE: ("ready", True), "Q": ("ready", True)}, "Q"),
        ({REFERENCE: ("ready", True), "Q": ("ready", None)}, "Q"),
        ({REFERENCE: ("ready", True), "Q": ("ready", False)}, REFERENCE),
        ({"Q": ("no device", None), REFERENCE: ("ready", True)}, REFERENCE),
        ({"Q": ("broken", None), REFERENCE: ("ready", True)}, REFERENCE),
        ({"Q": ("not installed", None), REFERENCE: ("ready", True)}, REFERENCE),
    ],
)
def test_one_that_compiles_here_comes_before_the_reference_ep(
    states: dict[str, tuple[State, bool | None]], proposed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(name: str) -> list[ProviderDiagnosis]:
        state, builds = states[name]
        return [ProviderDiagnosis(name=name, package="p", state=state, versions={}, builds=builds)]

    monkeypatch.setattr(command, "ask", ask)
    monkeypatch.setattr(registry, "names", lambda: tuple(states))
    assert choice.proposed(choice.installed(), {}) == proposed


@pytest.mark.parametrize(
    ("options", "proposed"),
    [
        ({}, "QNNExecutionProvider"),
        ({"soc_model": "60"}, "QNNExecutionProvider"),
        ({"soc_model": "60", "vtcm_mb": "8"}, "QNNExecutionProvider"),
        ({"source": "npu"}, REFERENCE),
        ({"nobody": "knows"}, REFERENCE),
    ],
)
def test_it_is_the_first_that_has_the_options_that_are_given(
    options: dict[str, str], proposed: str
) -> None:
    found = [
        ProviderDiagnosis(name=name, package="p", state="ready", versions={})
        for name in ("QNNExecutionProvider", REFERENCE)
    ]
    assert choice.proposed(found, options) == proposed


def test_chips_have_the_names_that_they_are_sold_under() -> None:
    names = choice.names_of("QNNExecutionProvider", "soc_model")
    assert names["Snapdragon X Elite"] == "sc8380xp" and names["Snapdragon 8 Gen 3"] == "sm8650"
    assert choice.names_of("QNNExecutionProvider", "vtcm_mb") == {}
    assert choice.names_of("NobodysExecutionProvider", "soc_model") == {}


SPECS = inputs.specs(
    proto("g (float[b, 3, h] x, float[h] z) => (float[b, 3, h] y) { y = Add(x, z) }")
)


@pytest.mark.parametrize("shape", [(1, 3), (1, 4, 48)])
def test_a_shape_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"the input 'x', which is float32\[b, 3, h\]") as caught:
        SizeOptions(shapes={"x": shape}).of(SPECS)
    assert caught.value.where == "--shape"


def test_names_that_no_model_has_are_refused() -> None:
    SizeOptions(dimensions={"h": 1}, shapes={"x": (1,)}).refuse_unknown([SPECS])
    with pytest.raises(UsageError, match='no model has an open dimension "heigh"'):
        SizeOptions(dimensions={"heigh": 1}).refuse_unknown([SPECS])
    with pytest.raises(UsageError, match='no model has an input "y"') as caught:
        SizeOptions(shapes={"y": (1,)}).refuse_unknown([SPECS])
    assert caught.value.where == "--shape"
