"""Why a key is another: which fields of its record differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct

_ABSENT = object()


class Change(Struct, frozen=True, kw_only=True):
    """A field that differs.

    Attributes:
        field: its path in the record: `providers[0].options.soc_model`.
        old: its value as JSON; None: it was not there.
        new: its value as JSON; None: it is not there any more.
    """

    field: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        if self.old is None:
            return f"{self.field}: {self.new} is new"
        if self.new is None:
            return f"{self.field}: {self.old} is gone"
        return f"{self.field}: {self.old} is now {self.new}"


def between(old: object, new: object) -> tuple[Change, ...]:
    """The fields that differ between two records, in the new one's order.

    Args:
        old: a record, a struct or its JSON as `msgspec.Raw`.
        new: likewise.
    """
    return tuple(_differences("", _plain(old), _plain(new)))


def _plain(record: object) -> object:
    if isinstance(record, msgspec.Raw):
        return msgspec.json.decode(record)
    return msgspec.json.decode(msgspec.json.encode(record))


def _differences(path: str, old: object, new: object) -> Iterator[Change]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys([*new, *old]):
            field = f"{path}.{name}" if path else str(name)
            yield from _differences(field, old.get(name, _ABSENT), new.get(name, _ABSENT))
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            sides = (side[index] if index < len(side) else _ABSENT for side in (old, new))
            yield from _differences(f"{path}[{index}]", *sides)
    elif old != new or type(old) is not type(new):
        yield Change(field=path, old=_text(old), new=_text(new))


def _text(value: object) -> str | None:
    if value is _ABSENT:
        return None
    return json.dumps(value, ensure_ascii=False)
