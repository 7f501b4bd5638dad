"""For each field of a composition's record: what changes it changes the key."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from epctx.keys import ComposeRecord, key, records
from epctx.keys.records import (
    ComposedModel,
    InputsRecord,
    ProviderRecord,
    VerifiedModel,
)
from epctx.manifest import Tolerance

SOURCE = VerifiedModel(
    name="head", model="blake3:1", data=(), dimensions={}, shapes={}, reference=None
)
PROVIDER = ProviderRecord(provider="EP", options={}, code="c", toolchain={}, host={})
PART = ComposedModel(
    part="head",
    name="head",
    outputs={"head_ctx.onnx": "blake3:2"},
    prefix="",
    links={},
    inputs={},
    providers=(PROVIDER,),
    source=SOURCE,
)
RECORD = ComposeRecord(
    name="whole",
    parts=(PART,),
    outputs=None,
    embed_mode=None,
    given=InputsRecord(seed=0, count=1, ranges={}, dimensions={}, files=()),
    tolerance=Tolerance(
        cosine_min=None,
        max_abs=None,
        max_rel=None,
        sqnr_min=None,
        top_k_min=None,
        gain_max=None,
        floor=None,
        saturates_at=None,
    ),
    numbers="full",
    devices={"cpu": "V"},
    toolchain={"epctx": "blake3:3"},
)
PARTS: dict[str, object] = {
    "part": "other",
    "name": "other",
    "outputs": {"head_ctx.onnx": "blake3:4"},
    "prefix": "h_",
    "links": {"x": ("encoder", "y")},
    "inputs": {"x": "mask"},
    "providers": (replace(PROVIDER, options={"a": 1}),),
    "source": replace(SOURCE, model="blake3:5"),
}
WHOLES: dict[str, object] = {
    "name": "other",
    "parts": (PART, PART),
    "outputs": {"y": ("head", "y")},
    "embed_mode": 1,
    "given": None,
    "tolerance": replace(RECORD.tolerance, max_abs=1.0),
    "numbers": "off",
    "devices": {"cpu": "W"},
    "toolchain": {"epctx": "blake3:6"},
}


@pytest.mark.parametrize("name", PARTS)
def test_a_field_of_a_part_is_in_the_key(name: str) -> None:
    part = msgspec.structs.replace(PART, **{name: PARTS[name]})
    assert key(replace(RECORD, parts=(part,))) != key(RECORD)


@pytest.mark.parametrize("name", WHOLES)
def test_a_field_of_the_whole_is_in_the_key(name: str) -> None:
    assert key(msgspec.structs.replace(RECORD, **{name: WHOLES[name]})) != key(RECORD)


def test_every_field_was_tried() -> None:
    for record, tried in ((records.ComposedModel, PARTS), (records.ComposeRecord, WHOLES)):
        names = set(record.__struct_fields__) - {"action", "version"}
        assert names == set(tried)


def test_the_order_of_parts_counts() -> None:
    other = replace(PART, part="body")
    one, two = replace(RECORD, parts=(PART, other)), replace(RECORD, parts=(other, PART))
    assert key(one) != key(two)
