"""Check the rules that JSON Schema cannot express (design section 5, "Rules")."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace

from epctx import limits
from epctx.error_codes import Code
from epctx.files.filenames import fold
from epctx.files.filenames import problem as name_problem
from epctx.files.outputs import BESIDE
from epctx.parsing import buckets, precedence
from epctx.parsing.buckets import expand
from epctx.parsing.document import Document
from epctx.parsing.document.tree import Node, Problem, at, at_key, of_kind, quoted
from epctx.parsing.precedence import TargetTree, names
from epctx.parsing.rules import compositions, options, package, settings
from epctx.parsing.rules import group as group_rules
from epctx.parsing.rules.group import references
from epctx.parsing.rules.settings import Places
from epctx.parsing.schema.providers import schema_of
from epctx.text import did_you_mean


def check_whole(root: Node, places: Places) -> Iterator[Problem]:
    """Find problems in names, paths, guessed sizes, inputs and targets."""
    yield from of_kind(Code.OUTPUT_CLASH, _name(root.get("name")))
    for key in ("model_groups", "targets"):
        yield from of_kind(Code.OUTPUT_CLASH, _folders(root.get(key)))
    yield from of_kind(Code.PATH_REFUSED, _paths(root.get("models"), places))
    yield from _guessed(root.get("models"))
    yield from of_kind(Code.VERIFY_INPUTS, _inputs(root))
    yield from _targets(root)


def _name(name: Node | None) -> Iterator[Problem]:
    """Refuse a manifest name that clashes with files beside another manifest's outputs."""
    text = name.string if name is not None else None
    for ending in BESIDE if text is not None else ():
        if name is not None and text is not None and fold(text).endswith(ending):
            other = quoted(text[: -len(ending)])
            what = f"ends with {ending}: a manifest named {other} would write to the same paths"
            yield at(name, what, "choose another name")


def _folders(named: Node | None) -> Iterator[Problem]:
    """Find folder names that a case-insensitive file system cannot tell apart."""
    seen: dict[str, str] = {}
    for name in named.mapping if named is not None else {}:
        first = seen.setdefault(fold(name), name)
        if named is not None and first != name:
            what = (
                f"differs only by case from {quoted(first)}: some systems take them for one folder"
            )
            yield at_key(named, name, what, "rename one of them")


def _guessed(models: Node | None) -> Iterator[Problem]:
    """Find entries of `guessed` for which the model has no size."""
    for model in models.mapping.values() if models is not None else ():
        guessed = model.get("guessed")
        sizes = [node for key in ("dimensions", "shapes") if (node := model.get(key)) is not None]
        sized = {name for node in sizes for name in node.mapping}
        for item in guessed.items if guessed is not None else ():
            if item.string is not None and item.string not in sized:
                what = f"neither `dimensions` nor `shapes` of the model has {quoted(item.string)}"
                yield at(item, what, f"remove it, or {did_you_mean(item.string, sized)}")


_REFERENCE = (("reference", "path"), ("reference", "external_data_dir"))


def _paths(models: Node | None, places: Places) -> Iterator[Problem]:
    for model in models.mapping.values() if models is not None else ():
        for key in (("path",), ("external_data_dir",), ("custom_ops",), *_REFERENCE):
            node = model.get(*key)
            wrong = places.problem(node.string) if node is not None and node.string else None
            if node is not None and wrong is not None:
                yield at(node, *wrong)


def _inputs(root: Node) -> Iterator[Problem]:
    """Find settings for generated inputs beside files, which replace generated inputs."""
    defaults, groups, targets = (root.get(k) for k in ("defaults", "model_groups", "targets"))
    written = [defaults, *(groups.mapping.values() if groups is not None else ())]
    for target in targets.mapping.values() if targets is not None else ():
        changed = target.get("model_groups")
        written += changed.mapping.values() if changed is not None else ()
    for group in written:
        inputs = group.get("verify", "inputs") if group is not None else None
        files = inputs.get("files") if inputs is not None else None
        for key in (
            ("seed", "count", "ranges", "dimensions") if files is not None and files.items else ()
        ):
            if inputs is not None and key in inputs.mapping:
                yield at_key(inputs, key, "has no effect beside files", "remove it, or files")


def _targets(root: Node) -> Iterator[Problem]:
    groups, targets = root.get("model_groups"), root.get("targets")
    if groups is None or groups.kind != "mapping" or targets is None:
        return
    for name, target in targets.mapping.items():
        lists = [node for key in ("include", "exclude") if (node := target.get(key)) is not None]
        wrong = [p for node in lists for p in references(node, groups.mapping, "model group")]
        wrong += _overlap(target)
        changed = target.get("model_groups")
        for group in changed.mapping if changed is not None else {}:
            if changed is not None and group not in groups.mapping:
                remedy = did_you_mean(group, groups.mapping)
                what = "there is no such model group"
                wrong.append(at_key(changed, group, what, remedy, Code.NO_SUCH_NAME))
        yield from wrong
        if not wrong and groups.mapping and not precedence.built(root, target):
            remedy = "remove the target, or let it build a group"
            yield at_key(targets, name, "builds no group", remedy)


def _overlap(target: Node) -> Iterator[Problem]:
    include, exclude = target.get("include"), target.get("exclude")
    included = precedence.names(include) if include is not None else []
    for item in exclude.items if exclude is not None else ():
        if item.string in included:
            yield at(item, f"{quoted(item.string or '')} is in include too", "remove it from one")


_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def check_buckets(root: Node, broken: frozenset[Node]) -> Iterator[Problem]:
    """Find problems in the buckets of a manifest before it is expanded."""
    models = root.get("models")
    models_by_name = models.mapping if models is not None else {}
    first_of = dict.fromkeys(models_by_name, "a model")
    for model, node in models_by_name.items():
        listed, pattern = buckets.lists(node), node.get(buckets.PATTERN)
        if broken.intersection((*listed.values(), *([pattern] if pattern else ()))):
            continue
        wrong = [*_pattern(pattern, listed), *_lengths(listed)]
        yield from wrong or _names(model, node, first_of)


def _names(model: str, node: Node, first_of: dict[str, str]) -> Iterator[Problem]:
    """Find faults in the buckets of a model; `first_of` has the names in use."""
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
            yield at(node, what, "list equally many: a bucket has the i-th size of every list")


def _pattern(pattern: Node | None, listed: Mapping[str, Node]) -> Iterator[Problem]:
    if pattern is None or pattern.string is None:
        return
    if not listed:
        what = "has no effect: no dimension of the model lists sizes"
        yield at(pattern, what, "remove it, or write a list in `dimensions`")
        return
    placeholders = (buckets.MODEL[1:-1], *listed)
    for each in _PLACEHOLDER.findall(pattern.string):
        if each not in placeholders:
            choices = ", ".join(f"{{{name}}}" for name in placeholders)
            yield at(pattern, f"names {quoted(each)}, which has no list", f"use {choices}")


def _wrong(name: str, first_of: Mapping[str, str], *, again: bool) -> tuple[str, str] | None:
    """Describe the fault of a bucket, with a remedy."""
    wrong = name_problem(name)
    if again:
        return "makes the same bucket again", "list each size once"
    if wrong is not None:
        return f"makes a model {quoted(name)}, which {wrong}", f"correct `{buckets.PATTERN}`"
    if name in first_of:
        what = f"makes a model {name}, but {first_of[name]} has that name already"
        return what, f"rename one of them, or write another `{buckets.PATTERN}`"
    return None


def check_size(root: Node) -> list[Problem]:
    """Find a problem if all groups together have too many values."""
    most, size = limits.MANIFEST_VALUES.value, resolved_values(root)
    if size <= most:
        return []
    node = root.get("targets") or root
    return [
        Problem(
            mark=node.mark,
            path=node.path,
            what=f"the groups and compositions of all targets have {size:,} values, "
            f"more than {most:,}",
            remedy=f"build fewer groups for fewer targets; {limits.MANIFEST_VALUES.remedy}",
        )
    ]


def resolved_values(root: Node) -> int:
    """Count the values of groups and compositions, once per target that builds them."""
    defaults, composed = values(root.get("defaults")), values(root.get("compose"))
    groups = root.get("model_groups")
    values_of = {
        name: defaults + values(g) for name, g in (groups.mapping if groups else {}).items()
    }
    targets = root.get("targets")
    whole = composed + sum(values_of.values())
    if targets is None:
        return whole
    return sum(
        values(target) + whole - sum(values_of[name] for name in _left_out(target, values_of))
        for target in targets.mapping.values()
    )


def _left_out(target: Node, groups: Collection[str]) -> set[str]:
    include, exclude = target.get("include"), target.get("exclude")
    excluded = set(names(exclude)) if exclude is not None else set()
    if include is None:
        return excluded.intersection(groups)
    return set(groups) - (set(names(include)) - excluded)


def values(node: Node | None) -> int:
    """Count the values in a node, including itself."""
    if node is None:
        return 0
    return 1 + sum(map(values, (*node.mapping.values(), *node.items)))


def doubts(root: Node) -> list[Problem]:
    """Find warnings in a valid manifest, without reading any other file."""
    trees = (*precedence.targets(root), precedence.without_target(root))
    problems = [
        *_unused(root, "models", trees),
        *_unused(root, "execution_providers", trees),
        *(problem for tree in trees for problem in _advice(tree)),
    ]
    return list({(problem.mark, problem.what): problem for problem in problems}.values())


def _unused(root: Node, key: str, trees: tuple[TargetTree, ...]) -> Iterator[Problem]:
    """Find entries under `key` that no group lists."""
    used = {name for tree in trees for name in _listed(tree, key)}
    entries = root.get(key)
    for name in entries.mapping if entries is not None else ():
        if entries is not None and name not in used:
            remedy = f"list it in `{key}` of a model group, or remove it"
            yield at_key(entries, name, "is used by no model group", remedy)


def _listed(tree: TargetTree, key: str) -> Iterator[str]:
    for group in tree.groups:
        listed = group.node.get(key)
        yield from precedence.names(listed) if listed is not None else ()


def _advice(tree: TargetTree) -> Iterator[Problem]:
    """Find advised options that are missing from the EPs of groups."""
    for alias in dict.fromkeys(_listed(tree, "execution_providers")):
        entry = tree.providers[alias]
        schema = schema_of(entry)
        given: Mapping[str, Node] = options.converted(entry).mapping
        for each in schema.knowledge.advised if schema is not None else ():
            if not any(name in given for name in each.options):
                what = f"has no option {each.options[0]}: {each.without}"
                yield Problem(mark=entry.mark, path=entry.path, what=what, remedy=each.remedy)


def check(
    document: Document, broken: frozenset[Node], *, allow_outside: bool, partial: bool = False
) -> list[Problem]:
    """Find every violation of a rule.

    Args:
        document: document of the manifest, which may break the schema.
        broken: nodes that break the schema.
        allow_outside: allow paths that lead out of the manifest's folder.
        partial: allow missing files, as in a checkout without models.
    """
    folder = document.path.parent
    places = Places(folder=folder, allow_outside=allow_outside, partial=partial)
    root = expand(document.root)
    problems = [
        *check_buckets(document.root, broken),
        *check_whole(root, places),
        *_resolved(root, broken, places),
        *of_kind(Code.COMPOSITION, compositions.check(root, broken, places)),
    ]
    problems += of_kind(Code.PACKAGE, package.check(root, broken, places))
    return [p for p in problems if p.node is None or p.node not in broken]


def _resolved(root: Node, broken: frozenset[Node], places: Places) -> Iterator[Problem]:
    """Find problems per target, each once; a message names the targets unless all are affected."""
    trees = precedence.targets(root)
    targets_of: dict[str | None, list[str]] = {}
    problems_by_key: dict[tuple[object, ...], tuple[Problem, str | None, list[str]]] = {}
    for tree in (*trees, precedence.without_target(root)):
        for subject, problems in _checks(root, tree, broken, places):
            targets_of.setdefault(subject, []).append(tree.name or "")
            for problem in problems:
                key = (problem.mark, problem.path, problem.what)
                _, _, names = problems_by_key.setdefault(key, (problem, subject, []))
                if names[-1:] != [tree.name or ""]:
                    names.append(tree.name or "")
    for problem, subject, names in problems_by_key.values():
        named_in_path = problem.path[:2] == ("targets", *names[:1]) and len(names) == 1
        if len(names) < len(targets_of[subject]) and not named_in_path:
            where = "target" if len(names) == 1 else "targets"
            yield replace(problem, what=f"{problem.what} (for {where} {', '.join(names)})")
        else:
            yield problem


def _checks(
    root: Node, tree: TargetTree, broken: frozenset[Node], places: Places
) -> Iterator[tuple[str | None, list[Problem]]]:
    """Yield the problems of the target's EPs (subject None), then those of each of its groups."""
    if tree.name is not None:
        entries = (options.check(entry, places) for entry in tree.providers.values())
        yield None, [problem for problems in entries for problem in problems]
    for layered in tree.groups:
        scope = group_rules.Scope(
            root=root, broken=broken, tree=tree, name=layered.name, node=layered.node
        )
        yield layered.name, [*group_rules.check(scope), *settings.check(layered.node, places)]
