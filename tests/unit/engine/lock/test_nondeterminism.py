from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from epctx.engine import plan
from epctx.engine.lock import locked_mode
from epctx.engine.plan import Plan
from epctx.manifest import Manifest, ModelGroup, ModelSource, OptionValue, ProviderSpec, Target
from epctx.providers import registry
from epctx.providers.reference import ReferenceExecutionProvider


class Wavering(ReferenceExecutionProvider):
    """An EP that knows of itself that it writes other bytes each time."""

    name = "WaveringExecutionProvider"
    unstable = "models with a Foo: write a Bar"

    def why_unstable(self, nodes: object) -> None:
        """Of no node."""


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Groups of targets `x` and `y`: `one` on Wavering, `two` on it too, `three` on another EP."""

    def create(spec: ProviderSpec) -> ReferenceExecutionProvider:
        options: Mapping[str, OptionValue] = spec.options
        steady = spec.provider == "ReferenceExecutionProvider"
        return ReferenceExecutionProvider(options) if steady else Wavering(options)

    monkeypatch.setattr(registry, "create", create)
    ref = ProviderSpec(alias="ref", provider="ReferenceExecutionProvider")
    own = ProviderSpec(alias="own", provider="WaveringExecutionProvider")
    model = (ModelSource(name="a", path=Path("/a.onnx")),)
    one = ModelGroup(name="one", models=model, execution_providers=(own,))
    two = ModelGroup(name="two", models=model, execution_providers=(ref, own))
    three = ModelGroup(name="three", models=model, execution_providers=(ref,))
    targets = tuple(Target(name=name, groups=(one, two, three)) for name in "xy")
    return plan.make(Manifest(name="m", path=Path("/m.yaml"), targets=targets))


def known(planned: Plan, *folders: str) -> list[str]:
    return list(locked_mode.unstable_eps(planned, folders))


def test_an_ep_that_wavers_is_told_once_whatever_differs(planned: Plan) -> None:
    told = "WaveringExecutionProvider: models with a Foo: write a Bar"
    assert known(planned, "x/one") == [told]
    assert known(planned, "y/two") == [told]
    assert known(planned, "x/one", "x/two", "y/one") == [told]


def test_nothing_is_told_of_groups_that_are_the_same(planned: Plan) -> None:
    assert known(planned) == []
    assert known(planned, "x/three") == [], "all of its EPs write the same each time"
    assert known(planned, "z/one", "one", "x") == []
