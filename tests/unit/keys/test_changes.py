from dataclasses import dataclass

import msgspec

from epctx.keys import Change, between


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


def test_equal_records_have_no_changes() -> None:
    assert between(Record(models=("a",)), Record(models=("a",))) == ()


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


def test_a_section_that_was_null() -> None:
    (change,) = between(Record(), Record(limit=0.5))
    assert str(change) == "limit: null is now 0.5"


def test_values_of_other_types_differ() -> None:
    old, new = (Record(inner=(Inner(options={"n": value}),)) for value in (1, True))
    assert [str(change) for change in between(old, new)] == ["inner[0].options.n: 1 is now true"]


def test_a_record_as_the_cache_keeps_it() -> None:
    old = msgspec.Raw(msgspec.json.encode(Record(models=("a",))))
    assert [str(c) for c in between(old, Record(models=("b",)))] == ['models[0]: "a" is now "b"']
