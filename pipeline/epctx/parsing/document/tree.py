"""The manifest's values as a tree in which each knows where it stands in the file."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

Scalar: TypeAlias = str | int | float | bool | None
Plain: TypeAlias = Scalar | list["Plain"] | dict[str, "Plain"]
Keys: TypeAlias = tuple[str | int, ...]
Kind = Literal["mapping", "list", "text", "number", "boolean", "null"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_+-]+")


class Mark(Struct, frozen=True, kw_only=True):
    """A place in the file: `line` and `column` from 1; 0 for what is not in the file."""

    line: int = 0
    column: int = 0


class Node(Struct, frozen=True, kw_only=True, eq=False):
    """A value and its place. Nodes are equal only if they are the same one.

    Attributes:
        value: a scalar, or the children.
        mark: where it starts.
        path: the keys and indices that lead to it.
        text: a scalar as it is written, without quotes.
        quoted: a scalar in quotes or as a block.
        keys: of a mapping, where each key stands.
    """

    value: Scalar | tuple[Node, ...] | dict[str, Node]
    mark: Mark
    path: Keys
    text: str = ""
    quoted: bool = False
    keys: Mapping[str, Mark] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """The kind of value, in the words of messages."""
        if isinstance(self.value, dict):
            return "mapping"
        if isinstance(self.value, tuple):
            return "list"
        if isinstance(self.value, str):
            return "text"
        if self.value is None:
            return "null"
        return "boolean" if isinstance(self.value, bool) else "number"

    @property
    def mapping(self) -> Mapping[str, Node]:
        """The children by key; none if it is no mapping."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> tuple[Node, ...]:
        """The children of a list; none if it is no list."""
        return self.value if isinstance(self.value, tuple) else ()

    @property
    def string(self) -> str | None:
        """The text; None if it is no text."""
        return self.value if isinstance(self.value, str) else None

    def get(self, *keys: str) -> Node | None:
        """The descendant under `keys`; None if there is none."""
        node = self
        for key in keys:
            found = node.value.get(key) if isinstance(node.value, dict) else None
            if found is None:
                return None
            node = found
        return node

    def at(self, path: str) -> Node:
        """Return the descendant at a path like `compose.whole.parts`, as far as there is one."""
        for key, child in self.mapping.items():
            if f"{path}.".startswith(f"{key}."):
                return child.at(path[len(key) + 1 :])
        return self

    def plain(self) -> Plain:
        """The value without places, as JSON Schema sees it."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, tuple):
            return [child.plain() for child in self.value]
        return self.value


def merge(layers: Iterable[Node | None]) -> Node | None:
    """One node of several layers, lowest first: mappings merge by key, all else replaces.

    A merged mapping stands where its highest layer stands. Source: design section 5.
    """
    present = [layer for layer in layers if layer is not None]
    return functools.reduce(_over, present) if present else None


def _over(low: Node, high: Node) -> Node:
    if not (isinstance(low.value, dict) and isinstance(high.value, dict)):
        return high
    children = dict(low.value)
    for key, child in high.value.items():
        children[key] = _over(children[key], child) if key in children else child
    return replace(high, value=children, keys={**low.keys, **high.keys})


def path_text(path: Keys) -> str:
    """A path as messages print it: `model_groups.llm.models[1]`, odd keys in quotes."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        elif _BARE_KEY.fullmatch(key):
            text += f".{key}" if text else key
        else:
            text += f"[{quoted(key)}]"
    return text


def quoted(text: str, limit: int = 60) -> str:
    """Text in double quotes, for a message: invisible characters escaped, shortened to `limit`."""
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
    return f'"{escaped}"'
