"""Rules on models whose `dimensions` list sizes: each list, and the names of the buckets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from epctx.error_codes import Code
from epctx.files.filenames import problem as name_problem
from epctx.parsing import buckets
from epctx.parsing.document.problems import Problem, at
from epctx.parsing.document.tree import Node, quoted

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def check(root: Node, broken: frozenset[Node]) -> Iterator[Problem]:
    """Every problem of this kind in a manifest as it is written."""
    models = root.get("models")
    known = models.mapping if models is not None else {}
    first_of = dict.fromkeys(known, "a model")
    for model, node in known.items():
        listed, pattern = buckets.lists(node), node.get(buckets.PATTERN)
        if broken.intersection((*listed.values(), *([pattern] if pattern else ()))):
            continue
        wrong = [*_pattern(pattern, listed), *_lengths(listed)]
        yield from wrong or _names(model, node, first_of)


def _names(model: str, node: Node, first_of: dict[str, str]) -> Iterator[Problem]:
    """What is wrong with the buckets of a model; `first_of`: what is called so already."""
    seen: set[tuple[str, ...]] = set()
    for row in buckets.rows(node):
        name, sizes = buckets.name(model, node, row), tuple(size.text for size in row.values())
        wrong = _wrong(name, first_of, again=sizes in seen)
        seen.add(sizes)
        first_of.setdefault(name, f"a bucket of {model}")
        if wrong is not None:
            code = Code.WRONG_NAME if name_problem(name) else Code.OUTPUT_CLASH
            yield at(next(iter(row.values())), *wrong, code)
            return


def _lengths(listed: Mapping[str, Node]) -> Iterator[Problem]:
    first = next(iter(listed), "")
    for node in listed.values():
        own, others = len(node.items), len(listed[first].items)
        if own != others:
            what = f"lists {own} size{'s' * (own != 1)}, and {first} lists {others}"
            yield at(node, what, "list as many in each: a bucket has the i-th size of every list")


def _pattern(pattern: Node | None, listed: Mapping[str, Node]) -> Iterator[Problem]:
    if pattern is None or pattern.string is None:
        return
    if not listed:
        what = "has no effect: no dimension of the model lists sizes"
        yield at(pattern, what, "remove it, or write a list in `dimensions`")
        return
    known = (buckets.MODEL[1:-1], *listed)
    for each in _PLACEHOLDER.findall(pattern.string):
        if each not in known:
            choices = ", ".join(f"{{{name}}}" for name in known)
            yield at(pattern, f"names {quoted(each)}, of which there is no list", f"use {choices}")


def _wrong(name: str, first_of: Mapping[str, str], *, again: bool) -> tuple[str, str] | None:
    """What is wrong with a bucket, and what to do."""
    wrong = name_problem(name)
    if again:
        return "makes the same bucket again", "list each size once"
    if wrong is not None:
        return f"makes a model {quoted(name)}, which {wrong}", f"correct `{buckets.PATTERN}`"
    if name in first_of:
        what = f"makes a model {name}, as {first_of[name]} is called already"
        return what, f"rename one of them, or write another `{buckets.PATTERN}`"
    return None
