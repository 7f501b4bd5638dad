"""Precedence, defaults < group < target: every group as it is built for every target.

Source: design section 5. The command line's part (`--no-verify`) is the build's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache

from msgspec import Struct
from msgspec.structs import replace

from epctx.parsing import buckets
from epctx.parsing.document.tree import Node, merge

DEFAULT_TARGET = "default"
"""The one target of a manifest without `targets`."""


OWN_KEYS = ("models", "sharing_groups")
"""Keys of a group that `defaults` cannot have."""


class Layered(Struct, frozen=True, kw_only=True, eq=False):
    """A model group with its defaults below and its target's changes above; `node` holds all."""

    name: str
    node: Node


class TargetTree(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """Groups of a target, resolved.

    Attributes:
        name: the target's; None: of groups that no target builds, which are checked all the same.
        providers: every entry of `execution_providers`, by alias.
        groups: the groups that are built, in the manifest's order.
    """

    name: str | None
    providers: Mapping[str, Node]
    groups: tuple[Layered, ...]

    @cached_property
    def groups_of(self) -> Mapping[str, Sequence[str]]:
        """The groups that build each model, in their order."""
        found: dict[str, list[str]] = {}
        for group in self.groups:
            listed = group.node.get("models")
            for model in dict.fromkeys(names(listed)) if listed is not None else ():
                found.setdefault(model, []).append(group.name)
        return found


@lru_cache(maxsize=2)  # each rule asks
def targets(root: Node) -> tuple[TargetTree, ...]:
    """The targets in the manifest's order; the default target if it names none."""
    named = root.get("targets")
    if named is None:
        return (_tree(root, DEFAULT_TARGET, None, tuple(_groups(root))),)
    return tuple(
        _tree(root, name, target, built(root, target)) for name, target in named.mapping.items()
    )


@lru_cache(maxsize=2)
def without_target(root: Node) -> TargetTree:
    """The groups that no target builds."""
    in_some = {group.name for target in targets(root) for group in target.groups}
    names = tuple(name for name in _groups(root) if name not in in_some)
    return _tree(root, None, None, names)


def built(root: Node, target: Node) -> tuple[str, ...]:
    """The names of the groups that a target builds: `include`, else all, without `exclude`."""
    groups, include, exclude = _groups(root), target.get("include"), target.get("exclude")
    chosen = set(groups if include is None else names(include))
    chosen -= set(names(exclude)) if exclude is not None else set()
    return tuple(name for name in groups if name in chosen)


def names(node: Node) -> list[str]:
    """The texts of a list."""
    return [item.string for item in node.items if item.string is not None]


def present(node: Node | None) -> dict[str, Node]:
    """The children of a mapping; null stands for what a layer takes away."""
    return {k: child for k, child in node.mapping.items() if child.kind != "null"} if node else {}


def _groups(root: Node) -> Mapping[str, Node]:
    groups = root.get("model_groups")
    return groups.mapping if groups is not None else {}


def _defaults(root: Node) -> Node | None:
    """The defaults, without what a group must say itself."""
    node = root.get("defaults")
    if node is None:
        return None
    kept = {key: child for key, child in node.mapping.items() if key not in OWN_KEYS}
    return replace(node, value=kept)


def _tree(root: Node, name: str | None, target: Node | None, chosen: tuple[str, ...]) -> TargetTree:
    changes = target.get("execution_providers") if target is not None else None
    providers = merge([root.get("execution_providers"), changes])
    groups, defaults, known = [], _defaults(root), _groups(root)
    for group in chosen:
        own = known[group]
        change = target.get("model_groups", group) if target is not None else None
        layers = [defaults, own, change]
        merged = merge(layer for layer in layers if layer is None or layer.kind == "mapping")
        node = replace(merged or own, mark=own.mark, path=own.path)
        node = buckets.shared(node, root.get("models"), providers.mapping if providers else {})
        groups.append(Layered(name=group, node=node))
    return TargetTree(
        name=name, providers=providers.mapping if providers else {}, groups=tuple(groups)
    )
