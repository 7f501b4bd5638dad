"""Finding execution providers: lazily, and with a remedy for whatever is missing or broken."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest

from epctx.errors import ManifestError, ProviderUnavailable
from epctx.manifest import ENTRY_POINTS, ProviderSpec
from epctx.providers import registry
from tests.kit.fake_providers import Fake


class Good(Fake):
    name = "GoodExecutionProvider"
    sources = frozenset({"good", "GOOD"})
    isolated = True

    def __init__(self, options: Mapping[str, object]) -> None:
        self.options = options


def duck(options: Mapping[str, object]) -> object:
    return SimpleNamespace(name="GoodExecutionProvider")


def needs_extra(options: Mapping[str, object]) -> Good:
    raise ImportError("No module named 'vendor_sdk'", name="vendor_sdk")


def crashes(options: Mapping[str, object]) -> Good:
    raise RuntimeError("boom")


def wants_options(options: Mapping[str, object]) -> Good:
    if not options:
        raise ManifestError("option 'chip' is missing", remedy="set it")
    return Good(options)


def entry(name: str, value: str, package: str = "acme", requires: Any = ()) -> EntryPoint:
    point = EntryPoint(name=name, value=value, group=ENTRY_POINTS)
    dist = SimpleNamespace(name=package, version="1.5", requires=list(requires))
    vars(point)["dist"] = dist
    return point


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    found: list[EntryPoint] = []
    monkeypatch.setattr(registry, "_entries_on", registry._entries_on.__wrapped__)
    monkeypatch.setattr(registry, "entry_points", lambda group: tuple(found))
    monkeypatch.setitem(
        sys.modules,
        "acme_eps",
        SimpleNamespace(
            Good=Good,
            duck=duck,
            needs_extra=needs_extra,
            crashes=crashes,
            wants_options=wants_options,
        ),
    )
    return found


def spec(provider: str, **options: str) -> ProviderSpec:
    return ProviderSpec(alias="ep", provider=provider, options=options)


def test_names_loads_nothing(packages: list[EntryPoint]) -> None:
    packages.append(entry("X", "acme_absent_module:X"))
    assert registry.names() == ("X",)


def test_an_unknown_name_is_unavailable_with_the_nearest_known_one(
    packages: list[EntryPoint],
) -> None:
    packages.append(entry("GoodExecutionProvider", "acme_eps:Good"))
    with pytest.raises(ProviderUnavailable, match='did you mean "GoodExecutionProvider"') as raised:
        registry.create(spec("GodExecutionProvider"))
    assert raised.value.exit_code == 5


def test_a_missing_extra_ends_in_the_command_that_installs_it(packages: list[EntryPoint]) -> None:
    requires = ["numpy>=2", 'other>=1; extra == "x"', "vendor-sdk>=2.7; extra == 'npu'"]
    packages.append(entry("Npu", "acme_eps:needs_extra", requires=requires))
    with pytest.raises(ProviderUnavailable) as raised:
        registry.create(spec("Npu"))
    assert raised.value.remedy == 'pip install "acme[npu]"'
    assert "acme 1.5" in str(raised.value) and "vendor_sdk" in str(raised.value)


def test_a_missing_module_without_an_extra_is_named(packages: list[EntryPoint]) -> None:
    packages.append(entry("Npu", "acme_eps:needs_extra"))
    with pytest.raises(ProviderUnavailable) as raised:
        registry.create(spec("Npu"))
    assert raised.value.remedy == "install vendor_sdk, or reinstall acme 1.5"


@pytest.mark.parametrize(
    "value", ["acme_eps:crashes", "acme_eps:absent", "acme_absent_module:X", "acme_eps:duck"]
)
def test_a_broken_package_names_itself_and_harms_nobody(
    packages: list[EntryPoint], value: str
) -> None:
    packages.append(entry("Broken", value, package="brokenpkg"))
    packages.append(entry("GoodExecutionProvider", "acme_eps:Good"))
    with pytest.raises(ProviderUnavailable, match=r"'Broken' of brokenpkg 1\.5 cannot be loaded"):
        registry.create(spec("Broken"))
    assert registry.create(spec("GoodExecutionProvider"))
    assert registry.accepting("good") is not None


def test_an_error_of_the_provider_itself_passes_through(packages: list[EntryPoint]) -> None:
    packages.append(entry("Chip", "acme_eps:wants_options"))
    with pytest.raises(ManifestError, match="chip"):
        registry.create(spec("Chip"))
    assert registry.accepting("good") is None


def test_two_packages_with_one_name_are_an_error_that_names_both(
    packages: list[EntryPoint],
) -> None:
    packages.append(entry("Good", "acme_eps:Good", package="one"))
    packages.append(entry("Good", "acme_eps:Good", package="one"))  # listed twice, says the same
    assert registry.create(spec("Good"))
    packages.append(entry("Good", "acme_eps:crashes", package="two"))
    with pytest.raises(ProviderUnavailable, match=r"one 1\.5, two 1\.5"):
        registry.create(spec("Good"))
