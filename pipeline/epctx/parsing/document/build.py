"""Build the tree of a YAML document from parser events, and enforce the limits at each event.

Keys are always text (`60:` is "60"), and `<<` merges are supported. Scalars are only text, numbers,
true, false and null. The depth is limited, as is the number of values after aliases are expanded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NoReturn

import yaml
from msgspec import Struct, field

from epctx import limits
from epctx.error_codes import Code
from epctx.errors import InvalidManifest, Violation
from epctx.parsing.document import tree
from epctx.parsing.document.tree import Keys, Mark, Node, Problem, Scalar, quoted, violations

_CONTAINER_TAGS = frozenset({"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "!"})
_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Tree(Struct, frozen=True, kw_only=True):
    """Values of a document, and violations at single values (see `document.Document`)."""

    root: Node
    violations: tuple[Violation, ...]
    broken: frozenset[Node]


def build(text: str, *, file: str) -> Tree:
    """Build the tree of `text`; `file` is its name in messages.

    Raises:
        InvalidManifest: the text is not a single YAML document within the limits.
    """
    return _Builder(file).build(text)


class _Open(Struct, kw_only=True):
    """Mapping or list that is still open."""

    path: Keys
    mark: Mark
    anchor: str | None
    is_list: bool
    items: list[Node] = field(default_factory=list)
    children: dict[str, Node] = field(default_factory=dict)
    keys: dict[str, Mark] = field(default_factory=dict)
    merged: list[Node] = field(default_factory=list)
    merge_mark: Mark | None = None
    key: tuple[str, Mark] | None = None
    """Key that waits for its value; None if a key comes next."""
    skip: bool = False
    """True if the next value belongs to a duplicate key."""
    broken: bool = False
    """True if the value has a refused tag, so its type is unknown."""
    merge: bool = False
    """True if the next value belongs to `<<`."""

    def close(self) -> Node:
        """Return the finished node; own keys override merged ones, earlier merges later ones."""
        if self.is_list:
            return Node(value=tuple(self.items), mark=self.mark, path=self.path)
        for source in self.merged:
            for key, child in source.mapping.items():
                self.children.setdefault(key, child)
                self.keys.setdefault(key, source.keys[key])
        return Node(value=self.children, mark=self.mark, path=self.path, keys=self.keys)


class _Builder:
    def __init__(self, file: str) -> None:
        self.file = file
        self.most = limits.MANIFEST_VALUES.value
        self.deepest = limits.MANIFEST_DEPTH.value
        self.count = 0
        self.stack: list[_Open] = []
        self.root: Node | None = None
        self.anchors: dict[str, Node] = {}
        self.size: dict[Node, int] = {}
        self.height: dict[Node, int] = {}
        self.violations: list[Violation] = []
        self.broken: set[Node] = set()

    def build(self, text: str) -> Tree:
        documents = 0
        for event in self._events(text):
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    remedy = "write one manifest per file"
                    self._stop(_mark(event), "a second document starts", remedy)
            elif isinstance(event, yaml.NodeEvent):
                self._node(event)
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                self._close()
        if self.root is None:
            self._stop(Mark(), "is empty", "write a starter manifest with `epctx init`")
        return Tree(
            root=self.root,
            violations=tuple(self.violations),
            broken=frozenset(self.broken),
        )

    def _events(self, text: str) -> Iterator[yaml.Event]:
        try:
            yield from yaml.parse(text, Loader=_PARSER)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            line, column = (mark.line, mark.column) if mark else (0, 0)
            rest = "".join(text.split("\n")[line : line + 1])[column:]
            self._stop(Mark(line=line + 1, column=column + 1), *_syntax(error, rest))
        except yaml.reader.ReaderError as error:
            # Its position is in bytes; the first such character is the one that is refused.
            before = text.partition(chr(error.character))[0]
            mark_ = Mark(line=before.count("\n") + 1, column=len(before) - before.rfind("\n"))
            what = f"has the control character U+{error.character:04X}"
            self._stop(mark_, what, "remove it")

    def _node(self, event: yaml.NodeEvent) -> None:
        mark = _mark(event)
        self.count += 1
        if self.count > 2 * self.most:  # keys and values; aliases are counted at their end
            self._too_many(mark)
        parent = self.stack[-1] if self.stack else None
        if parent is not None and not parent.is_list and parent.key is None:
            self._key(parent, event, mark)
        elif isinstance(event, yaml.AliasEvent):
            self._put(self._alias(event, mark))
        elif isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event, mark)
            self._remember(node, event.anchor, size=1, height=1)
            self._put(node)
        else:
            self._open(event, mark)

    def _open(self, event: yaml.NodeEvent, mark: Mark) -> None:
        if len(self.stack) >= self.deepest:
            self._too_deep(mark)
        opened = _Open(
            path=self._path(),
            mark=mark,
            anchor=event.anchor,
            is_list=isinstance(event, yaml.SequenceStartEvent),
        )
        tag = getattr(event, "tag", None)
        if tag is not None and tag not in _CONTAINER_TAGS:
            self._report(mark, opened.path, f"has the tag {quoted(tag)}", "remove the tag")
            opened.broken = True
        self.stack.append(opened)

    def _close(self) -> None:
        opened = self.stack.pop()
        node = opened.close()
        if opened.broken:
            self.broken.add(node)
        children = (*node.items, *node.mapping.values())
        size = 1 + sum(self.size[child] for child in children)
        height = 1 + max((self.height[child] for child in children), default=0)
        self._remember(node, opened.anchor, size=size, height=height)
        self._put(node)

    def _remember(self, node: Node, anchor: str | None, *, size: int, height: int) -> None:
        if size > self.most:
            self._too_many(node.mark)
        if height > self.deepest:
            self._too_deep(node.mark)
        self.size[node] = size
        self.height[node] = height
        if anchor is not None:
            self.anchors[anchor] = node

    def _alias(self, event: yaml.AliasEvent, mark: Mark) -> Node:
        name = event.anchor or ""
        if any(opened.anchor == name for opened in self.stack):
            self._stop(mark, f"*{name} stands inside &{name}", "write the value out")
        if name not in self.anchors:
            self._stop(mark, f"*{name} has no &{name} before it", f"mark a value with &{name}")
        return self.anchors[name]

    def _put(self, node: Node) -> None:
        if not self.stack:
            self.root = node
            return
        parent = self.stack[-1]
        if parent.key is None:
            parent.items.append(node)
            return
        (key, mark), parent.key = parent.key, None
        if parent.skip:
            return
        if parent.merge:
            self._merge(parent, node)
        else:
            parent.children[key] = node
            parent.keys[key] = mark

    def _merge(self, parent: _Open, node: Node) -> None:
        sources = node.items if node.kind == "list" else (node,)
        if any(source.kind != "mapping" for source in sources):
            remedy = "merge with an alias of a mapping: `<<: *name`"
            what = "merges a value that is not a mapping"
            self._report(node.mark, (*parent.path, "<<"), what, remedy)
        parent.merged.extend(source for source in sources if source.kind == "mapping")

    def _key(self, parent: _Open, event: yaml.NodeEvent, mark: Mark) -> None:
        node = self._key_node(parent, event, mark)
        parent.key = (node.text, mark)
        parent.merge = node.text == "<<" and not node.quoted
        first = parent.merge_mark if parent.merge else parent.keys.get(node.text)
        parent.skip = first is not None
        if first is not None:
            remedy = "write `<<: [*a, *b]`" if parent.merge else "keep one of them"
            what = f"is there twice, first in line {first.line}"
            path = (*parent.path, node.text)
            self._report(mark, path, what, remedy, Code.DUPLICATE_KEY)
        elif parent.merge:
            parent.merge_mark = mark

    def _key_node(self, parent: _Open, event: yaml.NodeEvent, mark: Mark) -> Node:
        node: Node | None = None
        if isinstance(event, yaml.AliasEvent):
            node = self._alias(event, mark)
        elif isinstance(event, yaml.ScalarEvent):
            text, quotes = event.value, not event.implicit[0]
            node = Node(value=text, mark=mark, path=parent.path, text=text, quoted=quotes)
            self._remember(node, event.anchor, size=1, height=1)
        if node is None or node.kind in ("mapping", "list"):
            remedy = "put a key in quotes if it is text that starts with a bracket"
            self._stop(mark, "a key is a list or a mapping", remedy)
        return node

    def _path(self) -> Keys:
        if not self.stack:
            return ()
        parent = self.stack[-1]
        return (*parent.path, len(parent.items) if parent.key is None else parent.key[0])

    def _scalar(self, event: yaml.ScalarEvent, mark: Mark) -> Node:
        path, text, quotes = self._path(), event.value, not event.implicit[0]
        problem: tuple[str, str] | None = None
        value: Scalar = text
        try:
            if event.tag is not None and event.tag != "!":
                value = tree.convert(text, event.tag)
            elif not quotes:
                value = tree.resolve(text)
        except ValueError:
            problem = f"has the tag {quoted(event.tag or '')}", "remove the tag"
        if isinstance(value, float) and not math.isfinite(value):
            problem = f"is {text}, which is not a finite number", "write a finite number"
        node = Node(value=value, mark=mark, path=path, text=text, quoted=quotes)
        if problem is not None:
            self.broken.add(node)
            self._report(mark, path, *problem)
        return node

    def _report(
        self, mark: Mark, path: Keys, what: str, remedy: str, code: Code = Code.NO_YAML
    ) -> None:
        problem = Problem(mark=mark, path=path, what=what, remedy=remedy, code=code)
        self.violations += violations([problem], file=self.file)

    def _too_many(self, mark: Mark) -> NoReturn:
        what = f"holds more than {limits.MANIFEST_VALUES}, aliases expanded"
        remedy = "write fewer values, or fewer aliases of aliases"
        self._stop(mark, what, f"{remedy}; {limits.MANIFEST_VALUES.remedy}")

    def _too_deep(self, mark: Mark) -> NoReturn:
        self._stop(mark, f"is nested deeper than {limits.MANIFEST_DEPTH}", "flatten it")

    def _stop(self, mark: Mark, what: str, remedy: str) -> NoReturn:
        self._report(mark, (), what, remedy)
        raise InvalidManifest(self.violations)


def _mark(event: yaml.Event) -> Mark:
    start = event.start_mark
    return Mark(line=start.line + 1, column=start.column + 1) if start else Mark()


def _syntax(error: yaml.MarkedYAMLError, rest: str) -> tuple[str, str]:
    """Explain a syntax error, with a remedy; `rest` is the line from the error on."""
    problem = error.problem or "it is not valid YAML"
    if rest.startswith("\t"):
        return "is indented with a tab", "indent with spaces"
    if rest[:1] in ("@", "`", "%") and "cannot start" in problem:
        return f"a value cannot start with {rest[0]}", "put the value in quotes"
    if "mapping values" in problem:
        return (
            "a colon stands where no key is allowed",
            'check the indentation; put a value that contains ": " in quotes',
        )
    if not rest and error.context_mark is not None:
        at, end = error.context_mark, error.problem_mark
        if end is not None and at.index == end.index:  # only the position of the end is known
            return "the file ends before a bracket is closed", "close it"
        return f"the file ends before what was opened in line {at.line + 1} is closed", "close it"
    context = f"{error.context}, " if error.context else ""
    what = f"is not valid YAML: {context}{problem}"
    return what, "check indentation, brackets and quotes before it"
