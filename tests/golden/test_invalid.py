"""Every invalid manifest has exactly its expected messages, and every promise of them holds."""

import re
from pathlib import Path

import pytest

from tests.golden.messages import INVALID, messages

MANIFESTS = sorted(INVALID.glob("*.yaml"))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_messages_are_the_expected_ones(path: Path) -> None:
    expected = path.with_suffix(".txt").read_text(encoding="utf-8")
    assert messages(path) == expected, "if this is meant: python tests/golden/messages.py"


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_each_violation_has_a_place_and_a_remedy(path: Path) -> None:
    lines = path.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    assert lines and len(lines) % 2 == 0
    for told, remedy in zip(lines[::2], lines[1::2], strict=True):
        assert re.match(rf"{re.escape(path.name)}(:[1-9]\d*:[1-9]\d*)?: \S", told)
        assert re.match(r"  -> \S", remedy)


def test_there_are_as_many_as_promised_and_no_stray_expectations() -> None:
    assert len(MANIFESTS) >= 40
    assert {p.stem for p in INVALID.glob("*.txt")} == {p.stem for p in MANIFESTS}
