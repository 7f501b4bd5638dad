"""Rules on the manifest as it is written: names, paths of models, targets."""

from __future__ import annotations

from collections.abc import Iterator

from epctx.error_codes import Code
from epctx.files.filenames import fold
from epctx.files.outputs import BESIDE
from epctx.parsing import precedence
from epctx.parsing.document.problems import Problem, at, at_key, of_kind
from epctx.parsing.document.tree import Node, quoted
from epctx.parsing.rules.group import references
from epctx.parsing.rules.paths import Places
from epctx.text import did_you_mean


def check(root: Node, places: Places) -> Iterator[Problem]:
    """Every problem of this kind."""
    yield from of_kind(Code.OUTPUT_CLASH, _name(root.get("name")))
    for key in ("model_groups", "targets"):
        yield from of_kind(Code.OUTPUT_CLASH, _folders(root.get(key)))
    yield from of_kind(Code.PATH_REFUSED, _paths(root.get("models"), places))
    yield from _guessed(root.get("models"))
    yield from of_kind(Code.VERIFY_INPUTS, _inputs(root))
    yield from _targets(root)


def _name(name: Node | None) -> Iterator[Problem]:
    """A manifest called as what lies beside the outputs of another."""
    text = name.string if name is not None else None
    for ending in BESIDE if text is not None else ():
        if name is not None and text is not None and fold(text).endswith(ending):
            other = quoted(text[: -len(ending)])
            what = f"ends with {ending}: its outputs would lie where a manifest {other} has its own"
            yield at(name, what, "choose another name")


def _folders(named: Node | None) -> Iterator[Problem]:
    """Names of folders that a file system without case takes for one."""
    seen: dict[str, str] = {}
    for name in named.mapping if named is not None else {}:
        first = seen.setdefault(fold(name), name)
        if named is not None and first != name:
            what = (
                f"differs only by case from {quoted(first)}: some systems take them for one folder"
            )
            yield at_key(named, name, what, "rename one of them")


def _guessed(models: Node | None) -> Iterator[Problem]:
    """Entries of `guessed` for which the model has no size."""
    for model in models.mapping.values() if models is not None else ():
        guessed = model.get("guessed")
        sizes = [node for key in ("dimensions", "shapes") if (node := model.get(key)) is not None]
        known = {name for node in sizes for name in node.mapping}
        for item in guessed.items if guessed is not None else ():
            if item.string is not None and item.string not in known:
                what = f"neither `dimensions` nor `shapes` of the model has {quoted(item.string)}"
                yield at(item, what, f"remove it, or {did_you_mean(item.string, known)}")


_REFERENCE = (("reference", "path"), ("reference", "external_data_dir"))


def _paths(models: Node | None, places: Places) -> Iterator[Problem]:
    for model in models.mapping.values() if models is not None else ():
        for key in (("path",), ("external_data_dir",), *_REFERENCE):
            node = model.get(*key)
            wrong = places.problem(node.string) if node is not None and node.string else None
            if node is not None and wrong is not None:
                yield at(node, *wrong)


def _inputs(root: Node) -> Iterator[Problem]:
    """Settings of generated inputs beside files: nothing is generated then."""
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
            remedy = "remove the target, or leave it a group"
            yield at_key(targets, name, "builds no group", remedy)


def _overlap(target: Node) -> Iterator[Problem]:
    include, exclude = target.get("include"), target.get("exclude")
    included = precedence.names(include) if include is not None else []
    for item in exclude.items if exclude is not None else ():
        if item.string in included:
            yield at(item, f"{quoted(item.string or '')} is in include too", "remove it from one")
