"""What a build takes and nobody may have meant: entries that nothing uses, options left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from epctx.parsing import precedence
from epctx.parsing.document.problems import Problem, at_key
from epctx.parsing.document.tree import Node
from epctx.parsing.precedence import TargetTree
from epctx.parsing.rules import options
from epctx.parsing.schema.providers import schema_of


def doubts(root: Node) -> list[Problem]:
    """What to warn about in a manifest without violations; nothing but the manifest is read."""
    trees = (*precedence.targets(root), precedence.without_target(root))
    found = [
        *_unused(root, "models", trees),
        *_unused(root, "execution_providers", trees),
        *(problem for tree in trees for problem in _advice(tree)),
    ]
    return list({(problem.mark, problem.what): problem for problem in found}.values())


def _unused(root: Node, key: str, trees: tuple[TargetTree, ...]) -> Iterator[Problem]:
    """Entries under `key` that no group lists."""
    used = {name for tree in trees for name in _listed(tree, key)}
    known = root.get(key)
    for name in known.mapping if known is not None else ():
        if known is not None and name not in used:
            remedy = f"list it in `{key}` of a model group, or remove it"
            yield at_key(known, name, "is used by no model group", remedy)


def _listed(tree: TargetTree, key: str) -> Iterator[str]:
    for group in tree.groups:
        listed = group.node.get(key)
        yield from precedence.names(listed) if listed is not None else ()


def _advice(tree: TargetTree) -> Iterator[Problem]:
    """Options that the EPs of groups do without, and rarely should."""
    for alias in dict.fromkeys(_listed(tree, "execution_providers")):
        entry = tree.providers[alias]
        schema = schema_of(entry)
        given: Mapping[str, Node] = options.converted(entry).mapping
        for each in schema.knowledge.advised if schema is not None else ():
            if not any(name in given for name in each.options):
                what = f"has no option {each.options[0]}: {each.without}"
                yield Problem(mark=entry.mark, path=entry.path, what=what, remedy=each.remedy)
