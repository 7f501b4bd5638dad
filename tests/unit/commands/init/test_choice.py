"""Which EPs a starter manifest can be for; those of this host are asked, as a user's are."""

from __future__ import annotations

import pytest

from epctx.commands.doctor import command
from epctx.commands.doctor.probe import ProviderDiagnosis, State
from epctx.commands.init import options as choice
from epctx.commands.init.options import REFERENCE
from epctx.providers import registry


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
