"""Document as a tree with positions, its scalars, and problems at its nodes."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from epctx.error_codes import Code
from epctx.errors import Violation

Scalar: TypeAlias = str | int | float | bool | None
Plain: TypeAlias = Scalar | list["Plain"] | dict[str, "Plain"]
Keys: TypeAlias = tuple[str | int, ...]
Kind = Literal["mapping", "list", "text", "number", "boolean", "null"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_+-]+")


class Mark(Struct, frozen=True, kw_only=True):
    """Position in the file: `line` and `column` from 1; 0 for a value that is not in the file."""

    line: int = 0
    column: int = 0


class Node(Struct, frozen=True, kw_only=True, eq=False):
    """Value with its position. Nodes are equal only if they are the same object.

    Attributes:
        value: the scalar, or the children.
        mark: position of its start.
        path: keys and indices that lead to it.
        text: a scalar as written, without quotes.
        quoted: True for a scalar in quotes or as a block.
        keys: position of each key of a mapping.
    """

    value: Scalar | tuple[Node, ...] | dict[str, Node]
    mark: Mark
    path: Keys
    text: str = ""
    quoted: bool = False
    keys: Mapping[str, Mark] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """Kind of value, in the words of messages."""
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
        """Children by key; empty if the node is not a mapping."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> tuple[Node, ...]:
        """Children of a list; empty if the node is not a list."""
        return self.value if isinstance(self.value, tuple) else ()

    @property
    def string(self) -> str | None:
        """Text of the node; None if its value is not text."""
        return self.value if isinstance(self.value, str) else None

    def get(self, *keys: str) -> Node | None:
        """Descendant under `keys`; None if there is none."""
        node = self
        for key in keys:
            child = node.value.get(key) if isinstance(node.value, dict) else None
            if child is None:
                return None
            node = child
        return node

    def at(self, path: str) -> Node:
        """Return the node at a path like `compose.whole.parts`, or its deepest ancestor there."""
        for key, child in self.mapping.items():
            if f"{path}.".startswith(f"{key}."):
                return child.at(path[len(key) + 1 :])
        return self

    def plain(self) -> Plain:
        """Value without positions, as JSON Schema needs it."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, tuple):
            return [child.plain() for child in self.value]
        return self.value


def merge(layers: Iterable[Node | None]) -> Node | None:
    """Merge layers into one node, lowest first: mappings merge by key, other values replace.

    A merged mapping has the position of its highest layer. Source: design section 5.
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


MAX_DIGITS = 300
"""Maximum characters of a number; a longer scalar is text."""

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEAN = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMERIC = frozenset("+-.0123456789")
"""Characters that a number can start with."""
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_TYPES: dict[str, type] = {
    "tag:yaml.org,2002:str": str,
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:float": float,
    "tag:yaml.org,2002:bool": bool,
    "tag:yaml.org,2002:null": type(None),
}


def resolve(text: str) -> Scalar:
    """Value of a plain scalar (one without quotes and tag)."""
    if text in _NULL:
        return None
    if text in _BOOLEAN:
        return _BOOLEAN[text]
    if text[0] not in _NUMERIC or len(text) > MAX_DIGITS:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def convert(text: str, tag: str) -> Scalar:
    """Value of a scalar with a tag of the core schema, like `!!str`.

    Raises:
        ValueError: the tag is unknown, or the text is not valid for it.
    """
    kind = _TYPES.get(tag)
    value: Scalar = text if kind is str else resolve(text)
    if kind is float and type(value) is int:
        value = float(value)
    if kind is None or type(value) is not kind:
        raise ValueError(f"{text!r} is not a {tag}")
    return value


class Problem(Struct, frozen=True, kw_only=True):
    """Fault with its position and remedy; `node` is the wrong value, None if a key is wrong."""

    mark: Mark
    path: Keys
    what: str
    remedy: str
    node: Node | None = None
    code: Code = Code.MANIFEST


def at(node: Node, what: str, remedy: str, code: Code = Code.MANIFEST) -> Problem:
    """Problem of a value."""
    return Problem(mark=node.mark, path=node.path, what=what, remedy=remedy, node=node, code=code)


def at_key(node: Node, key: str, what: str, remedy: str, code: Code = Code.MANIFEST) -> Problem:
    """Problem of a key of the mapping `node`, or of everything below the key."""
    child = node.mapping.get(key)
    path = child.path if child is not None and child.path[-1:] == (key,) else (*node.path, key)
    mark = node.keys.get(key, node.mark)
    return Problem(mark=mark, path=path, what=what, remedy=remedy, code=code)


def of_kind(code: Code, problems: Iterable[Problem]) -> Iterator[Problem]:
    """Give the problems a code, unless they have one other than the general code."""
    for problem in problems:
        yield problem if problem.code != Code.MANIFEST else replace(problem, code=code)


def refusal(reason: str) -> tuple[str, str]:
    """Message and remedy for a key that epctx sets itself; `reason` is "why" or "why; remedy"."""
    why, _, remedy = reason.partition("; ")
    return f"is refused: {why}", remedy or "remove it"


def violations(problems: Iterable[Problem], *, file: str) -> list[Violation]:
    """Convert problems to violations, in the same order."""
    return [
        Violation(
            file=file,
            line=problem.mark.line,
            column=problem.mark.column,
            path=path_text(problem.path),
            what=problem.what,
            remedy=problem.remedy,
            code=problem.code,
        )
        for problem in problems
    ]
