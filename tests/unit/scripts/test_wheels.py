"""The check of wheels, on an index of a few empty files; `make wheels` asks the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import wheels
from scripts.wheels import PLATFORMS, PROMISED

WINDOWS, ARM, LINUX, _, MAC, _ = PLATFORMS
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "hosts.md"


def test_what_only_windows_needs_is_found_and_has_a_constraint() -> None:
    constraints = wheels.CONSTRAINTS.read_text(encoding="utf-8")
    found = {each.name: each for each in wheels.dependencies(constraints)}
    assert {platform for platform, _ in found["colorama"].by} == {WINDOWS.name, ARM.name}
    assert found["onnxruntime-qnn"].by[LINUX.name, "3.12"] == {"qnn"}
    assert "" in found["pyyaml"].by[LINUX.name, "3.12"]
    without = constraints.replace("colorama==", "colour==")
    with pytest.raises(LookupError, match="colorama, needed on Windows x64, has no constraint"):
        wheels.dependencies(without)


def test_the_page_of_hosts_says_what_is_promised() -> None:
    rows = {
        cells[0]: tuple(cells[1:])
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 7
    }
    assert {name: rows.get(name) for name in PROMISED} == dict(PROMISED)
