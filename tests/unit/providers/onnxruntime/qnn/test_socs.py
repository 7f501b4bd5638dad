"""The chips that QNN compiles for: one table, and the schema that lists them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from epctx.errors import ManifestError
from epctx.providers.onnxruntime.qnn import socs

ROOT = Path(__file__).parents[5]


SCHEMA = json.loads(
    (ROOT / "schemas/providers/QNNExecutionProvider.options.json").read_text(encoding="utf-8")
)


def test_the_schema_and_the_table_have_the_same_chips() -> None:
    chip = SCHEMA["$defs"]["chip"]
    _, names = chip["anyOf"]
    sold = chip["x-epctx"]["choices"]
    assert sorted(names["enum"]) == sorted([*socs.NAMED, *map(str.upper, socs.NAMED), *sold])
    assert set(sold.values()) <= set(socs.NAMED)
    chips = (ROOT / "docs/chips.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (Snapdragon [^|]+?) \| `(\w+)` \| \d+ \| v\d+ \| \S", chips, re.M)
    assert dict(listed) == sold, "each has its source in docs/chips.md"
    for name in socs.NAMED:
        assert name in chip["x-epctx"]["expects"]


def test_the_tables_agree() -> None:
    numbers = {soc.number for soc in socs.NAMED.values()}
    assert len(numbers) == len(socs.NAMED)
    assert numbers <= socs.KNOWN
    assert socs.FLOAT <= socs.KNOWN


@pytest.mark.parametrize(
    ("text", "number"), [("60", 60), ("sm8650", 57), ("SC8380XP", 60), ("0", 0), ("QCM6490", 93)]
)
def test_chips_by_name_and_number(text: str, number: int) -> None:
    assert socs.number(text, qairt="2.51.0") == number


@pytest.mark.parametrize("text", ["sm", "-1", "", "none", "60,73", "0x3c", "14", "124", "99999"])
def test_no_other_chips(text: str) -> None:
    with pytest.raises(ManifestError):
        socs.number(text, qairt="2.51.0")


def test_a_later_qairt_may_know_more_chips() -> None:
    assert socs.number("140", qairt="2.60.0") == 140
