"""What JSON Schema cannot say of a manifest (design section 5, "Rules").

Rules on groups hold for the resolved groups of every target; a problem stands at the line that its
value came from. Rules pass over what the schema has already refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from epctx.error_codes import Code
from epctx.parsing import precedence
from epctx.parsing.buckets import expand
from epctx.parsing.document import Document
from epctx.parsing.document.problems import Problem, of_kind
from epctx.parsing.document.tree import Node
from epctx.parsing.precedence import TargetTree
from epctx.parsing.rules import buckets, compositions, group, options, package, settings, whole
from epctx.parsing.rules.paths import Places


def check(
    document: Document, broken: frozenset[Node], *, allow_outside: bool, partial: bool = False
) -> list[Problem]:
    """Every violation of a rule.

    Args:
        document: the manifest; it may break the schema.
        broken: the nodes that break it.
        allow_outside: paths may lead out of the manifest's folder.
        partial: files may be missing, as in a checkout without them.
    """
    folder = document.path.parent
    places = Places(folder=folder, allow_outside=allow_outside, partial=partial)
    root = expand(document.root)
    problems = [
        *buckets.check(document.root, broken),
        *whole.check(root, places),
        *_resolved(root, broken, places),
        *of_kind(Code.COMPOSITION, compositions.check(root, broken, places)),
    ]
    problems += of_kind(Code.PACKAGE, package.check(root, broken, places))
    return [p for p in problems if p.node is None or p.node not in broken]


def _resolved(root: Node, broken: frozenset[Node], places: Places) -> Iterator[Problem]:
    """Problems of what is resolved for each target, each once; names the targets if not all."""
    trees = precedence.targets(root)
    asked: dict[str | None, list[str]] = {}
    found: dict[tuple[object, ...], tuple[Problem, str | None, list[str]]] = {}
    for tree in (*trees, precedence.without_target(root)):
        for subject, problems in _checks(root, tree, broken, places):
            asked.setdefault(subject, []).append(tree.name or "")
            for problem in problems:
                key = (problem.mark, problem.path, problem.what)
                _, _, names = found.setdefault(key, (problem, subject, []))
                if names[-1:] != [tree.name or ""]:
                    names.append(tree.name or "")
    for problem, subject, names in found.values():
        told = problem.path[:2] == ("targets", *names[:1]) and len(names) == 1
        if len(names) < len(asked[subject]) and not told:
            where = "target" if len(names) == 1 else "targets"
            yield replace(problem, what=f"{problem.what} (for {where} {', '.join(names)})")
        else:
            yield problem


def _checks(
    root: Node, tree: TargetTree, broken: frozenset[Node], places: Places
) -> Iterator[tuple[str | None, list[Problem]]]:
    """The problems of the target's EPs (subject None) and of each of its groups."""
    if tree.name is not None:
        entries = (options.check(entry, places) for entry in tree.providers.values())
        yield None, [problem for problems in entries for problem in problems]
    for layered in tree.groups:
        scope = group.Scope(
            root=root, broken=broken, tree=tree, name=layered.name, node=layered.node
        )
        yield layered.name, [*group.check(scope), *settings.check(layered.node, places)]
