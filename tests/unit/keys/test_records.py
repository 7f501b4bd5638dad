"""Records of keys: canonical form, and the fields in which two of them differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from epctx.actions.compose import Compose
from epctx.cache.digests import FreshDigests
from epctx.files.digest import Digest
from epctx.keys import Change, Toolchain, between, records
from epctx.keys import key as key_of
from epctx.keys.records import ComposedModel, InputsRecord, VerifiedModel
from epctx.keys.toolchain import ProviderRecord
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
ASKED = Compose(
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
)
RUNS: dict[str, object] = {"devices": {"cpu": "V"}, "toolchain": {"epctx": "blake3:3"}}
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
    "tolerance": replace(ASKED.tolerance, max_abs=1.0),
    "numbers": "off",
}


def key(asked: Compose, **runs: object) -> Digest:
    """The key, with what carries it out as it is said."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Toolchain, "of", lambda *_: {**RUNS, **runs}["toolchain"])
        patch.setattr(Toolchain, "devices", lambda *_: {**RUNS, **runs}["devices"])
        return key_of(asked.record(Toolchain(FreshDigests())))


@pytest.mark.parametrize("name", PARTS)
def test_a_field_of_a_part_is_in_the_key(name: str) -> None:
    part = msgspec.structs.replace(PART, **{name: PARTS[name]})
    assert key(replace(ASKED, parts=(part,))) != key(ASKED)


@pytest.mark.parametrize("name", WHOLES)
def test_a_field_of_the_whole_is_in_the_key(name: str) -> None:
    assert key(msgspec.structs.replace(ASKED, **{name: WHOLES[name]})) != key(ASKED)


@pytest.mark.parametrize("name", RUNS)
def test_what_carries_it_out_is_in_the_key(name: str) -> None:
    assert key(ASKED, **{name: {"cpu": "W"}}) != key(ASKED)


def test_where_it_is_made_is_not_in_the_key() -> None:
    assert key(replace(ASKED, folder=Path("elsewhere"), contents={"g": {}})) == key(ASKED)


def test_every_field_was_tried() -> None:
    for kind, beside, tried in (
        (records.ComposedModel, (), PARTS),
        (Compose, Compose.beside, WHOLES),
    ):
        assert set(kind.__struct_fields__) - set(beside) == set(tried)


def test_the_order_of_parts_counts() -> None:
    other = replace(PART, part="body")
    one, two = replace(ASKED, parts=(PART, other)), replace(ASKED, parts=(other, PART))
    assert key(one) != key(two)


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A part of a record."""

    options: dict[str, str | int | float | bool]


@dataclass(frozen=True, kw_only=True)
class Record:
    """A record."""

    models: tuple[str, ...] = ()
    inner: tuple[Inner, ...] = ()
    limit: float | None = None


def test_the_field_is_named_with_its_old_and_new_value() -> None:
    old = Record(inner=(Inner(options={"soc_model": "60"}),))
    new = Record(inner=(Inner(options={"soc_model": "57"}),))
    (change,) = between(old, new)
    assert change == Change(field="inner[0].options.soc_model", old='"60"', new='"57"')
    assert str(change) == 'inner[0].options.soc_model: "60" is now "57"'


def test_what_is_new_and_what_is_gone() -> None:
    old = Record(models=("a", "b"), inner=(Inner(options={"x": 1}),))
    new = Record(models=("a",), inner=(Inner(options={"y": 1}),))
    assert [str(change) for change in between(old, new)] == [
        'models[1]: "b" is gone',
        "inner[0].options.y: 1 is new",
        "inner[0].options.x: 1 is gone",
    ]
