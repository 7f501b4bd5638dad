"""How much a manifest asks for: each group is resolved for each target, defaults for each group.

So a file of some kilobytes can ask for millions of groups. What is asked for is counted before any
of it is made.
"""

from __future__ import annotations

from collections.abc import Collection

from epctx import limits
from epctx.parsing.document.problems import Problem
from epctx.parsing.document.tree import Node
from epctx.parsing.precedence import names


def check(root: Node) -> list[Problem]:
    """The problem that groups have too many values as they are built for all targets, if so."""
    most, size = limits.MANIFEST_VALUES.value, resolved(root)
    if size <= most:
        return []
    node = root.get("targets") or root
    return [
        Problem(
            mark=node.mark,
            path=node.path,
            what=f"groups and compositions as they are built for all targets have {size:,} values, "
            f"more than {most:,}",
            remedy=f"build fewer groups for fewer targets; {limits.MANIFEST_VALUES.remedy}",
        )
    ]


def resolved(root: Node) -> int:
    """Values of groups and compositions, counted for every target that they are built for."""
    defaults, composed = values(root.get("defaults")), values(root.get("compose"))
    groups = root.get("model_groups")
    of = {name: defaults + values(g) for name, g in (groups.mapping if groups else {}).items()}
    targets = root.get("targets")
    whole = composed + sum(of.values())
    if targets is None:
        return whole
    return sum(
        values(target) + whole - sum(of[name] for name in _left_out(target, of))
        for target in targets.mapping.values()
    )


def _left_out(target: Node, groups: Collection[str]) -> set[str]:
    include, exclude = target.get("include"), target.get("exclude")
    excluded = set(names(exclude)) if exclude is not None else set()
    if include is None:
        return excluded.intersection(groups)
    return set(groups) - (set(names(include)) - excluded)


def values(node: Node | None) -> int:
    """The values in a node, itself too."""
    if node is None:
        return 0
    return 1 + sum(map(values, (*node.mapping.values(), *node.items)))
