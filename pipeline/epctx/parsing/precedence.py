"""Precedence defaults < group < target: resolve every group for every target.

Source: design section 5. The build itself applies command-line options (`--no-verify`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache

from msgspec import Struct
from msgspec.structs import replace

from epctx.parsing import buckets
from epctx.parsing.document.tree import Node, merge

DEFAULT_TARGET = "default"
"""Only target of a manifest without `targets`."""


OWN_KEYS = ("models", "sharing_groups")
"""Keys of a group that are not allowed in `defaults`."""


class Layered(Struct, frozen=True, kw_only=True, eq=False):
    """Model group merged with its defaults and its target's changes; `node` has the result."""

    name: str
    node: Node


class TargetTree(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """Resolved groups of a target.

    Attributes:
        name: name of the target; None for the groups that no target builds, which are also checked.
        providers: every entry of `execution_providers`, by alias.
        groups: groups that the target builds, in the manifest's order.
    """

    name: str | None
    providers: Mapping[str, Node]
    groups: tuple[Layered, ...]

    @cached_property
    def groups_of(self) -> Mapping[str, Sequence[str]]:
        """Names of the groups that build each model, in the groups' order."""
        group_names: dict[str, list[str]] = {}
        for group in self.groups:
            listed = group.node.get("models")
            for model in dict.fromkeys(names(listed)) if listed is not None else ():
                group_names.setdefault(model, []).append(group.name)
        return group_names


@lru_cache(maxsize=2)  # called by every rule
def targets(root: Node) -> tuple[TargetTree, ...]:
    """Targets in the manifest's order; the default target if there are none."""
    named = root.get("targets")
    if named is None:
        return (_tree(root, DEFAULT_TARGET, None, tuple(_groups(root))),)
    return tuple(
        _tree(root, name, target, built(root, target)) for name, target in named.mapping.items()
    )


@lru_cache(maxsize=2)
def without_target(root: Node) -> TargetTree:
    """Groups that no target builds."""
    built_groups = {group.name for target in targets(root) for group in target.groups}
    names = tuple(name for name in _groups(root) if name not in built_groups)
    return _tree(root, None, None, names)


def built(root: Node, target: Node) -> tuple[str, ...]:
    """Names of the groups that a target builds: `include` or all groups, without `exclude`."""
    groups, include, exclude = _groups(root), target.get("include"), target.get("exclude")
    chosen = set(groups if include is None else names(include))
    chosen -= set(names(exclude)) if exclude is not None else set()
    return tuple(name for name in groups if name in chosen)


def names(node: Node) -> list[str]:
    """Strings of a list."""
    return [item.string for item in node.items if item.string is not None]


def present(node: Node | None) -> dict[str, Node]:
    """Children of a mapping without null, which removes a value of a lower layer."""
    return {k: child for k, child in node.mapping.items() if child.kind != "null"} if node else {}


def _groups(root: Node) -> Mapping[str, Node]:
    groups = root.get("model_groups")
    return groups.mapping if groups is not None else {}


def _defaults(root: Node) -> Node | None:
    """Defaults without the keys that only a group may have."""
    node = root.get("defaults")
    if node is None:
        return None
    kept = {key: child for key, child in node.mapping.items() if key not in OWN_KEYS}
    return replace(node, value=kept)


def _tree(root: Node, name: str | None, target: Node | None, chosen: tuple[str, ...]) -> TargetTree:
    changes = target.get("execution_providers") if target is not None else None
    providers = merge([root.get("execution_providers"), changes])
    groups, defaults, all_groups = [], _defaults(root), _groups(root)
    for group in chosen:
        own = all_groups[group]
        change = target.get("model_groups", group) if target is not None else None
        layers = [defaults, own, change]
        merged = merge(layer for layer in layers if layer is None or layer.kind == "mapping")
        node = replace(merged or own, mark=own.mark, path=own.path)
        node = buckets.shared(node, root.get("models"), providers.mapping if providers else {})
        groups.append(Layered(name=group, node=node))
    return TargetTree(
        name=name, providers=providers.mapping if providers else {}, groups=tuple(groups)
    )
