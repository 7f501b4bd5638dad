"""Rules on `package`: names and files exist, variants have no clashes, genai's needs are met."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from epctx.files import listing
from epctx.files.filenames import fold
from epctx.manifest import GENAI_CONFIG, filled
from epctx.parsing import precedence
from epctx.parsing.document.tree import Node, Problem, at, at_key, quoted
from epctx.parsing.precedence import TargetTree, names, present
from epctx.parsing.rules import group
from epctx.parsing.rules.settings import Places
from epctx.text import did_you_mean

_LARGEST = 1 << 24
"""Largest size of a genai_config.json in bytes; real files have a few thousand."""


def check(root: Node, broken: frozenset[Node], places: Places) -> Iterator[Problem]:
    """Find problems in `package`."""
    package = root.get("package")
    if package is None or package.kind != "mapping":
        return
    trees = precedence.targets(root)
    yield from _groups(package, root, trees)
    yield from _components(package, root, trees)
    yield from _assets(package, places)
    yield from _files(root, package, broken, trees, places)
    yield from _genai(package, trees, places)


def _groups(package: Node, root: Node, trees: tuple[TargetTree, ...]) -> Iterator[Problem]:
    listed, defined = package.get("groups"), root.get("model_groups")
    built = {layered.name for tree in trees for layered in tree.groups}
    for item in listed.items if listed is not None else ():
        if item.string is None or defined is None or item.string in built:
            continue
        if item.string in defined.mapping:
            yield at(item, f"no target builds {quoted(item.string)}", "remove it")
        else:
            remedy = did_you_mean(item.string, defined.mapping)
            yield at(item, f"there is no model group {quoted(item.string)}", remedy)


def _components(package: Node, root: Node, trees: tuple[TargetTree, ...]) -> Iterator[Problem]:
    """Find a model whose name is also the component name of another model.

    A model that several groups hold has a component `<group>.<model>` for each.
    """
    holders: dict[str, dict[str, None]] = {}
    for tree in trees:
        for layered in _packaged(package, tree):
            listed = layered.node.get("models")
            for model in names(listed) if listed is not None else ():
                holders.setdefault(model, {})[layered.name] = None
    models = root.get("models")
    for model, groups in holders.items():
        for name in (f"{holder}.{model}" for holder in groups if len(groups) > 1):
            if models is not None and len(holders.get(name, ())) == 1:
                what = f"is also the package's name for {model}, which {' and '.join(groups)} hold"
                yield at_key(models, name, what, "rename one of them")


def _packaged(package: Node, tree: TargetTree) -> list[precedence.Layered]:
    listed = package.get("groups")
    chosen = names(listed) if listed is not None else None
    return [layered for layered in tree.groups if chosen is None or layered.name in chosen]


def _assets(package: Node, places: Places) -> Iterator[Problem]:
    for node in present(package.get("assets")).values():
        if node.string is None:
            continue
        path = places.absolute(node.string)
        wrong = places.problem(node.string)
        wrong = wrong or (None if places.lacks(path) else _no_asset(path))
        if wrong is not None:
            yield at(node, *wrong)


def _no_asset(path: Path) -> tuple[str, str] | None:
    """Reason why a path cannot be an asset; ONNX Runtime follows no links in assets."""
    check = "check the path; it is relative to the manifest"
    if path.is_file():
        return None
    if not path.is_dir():
        return "does not exist", check
    try:
        entries = sorted(listing.below(path))
    except OSError as error:
        return f"cannot be read ({error.strerror})", check
    for each in entries:
        inner = each.relative_to(path).as_posix()
        if each.is_symlink():
            return f"holds the link {inner}", "put the file itself there"
        if not unicodedata.is_normalized("NFC", inner):
            return f"holds {quoted(inner)}, which is not in Unicode's form NFC", "rename it"
        if "\n" in inner or "\\" in inner:
            return f"holds {quoted(inner)}, which a package cannot contain", "rename it"
    if not any(each.is_file() for each in entries):
        return "is a folder without a file", check
    return None


def _files(
    root: Node,
    package: Node,
    broken: frozenset[Node],
    trees: tuple[TargetTree, ...],
    places: Places,
) -> Iterator[Problem]:
    files = package.get("files")
    first_of: dict[str, str] = {}
    for name, node in present(files).items():
        if files is None or node.string is None:
            continue
        first = first_of.setdefault(fold(name), name)
        if first != name:
            what = f"differs only by case from {quoted(first)}: some systems take them for one"
            yield at_key(files, name, what, "rename one of them")
        wrong = places.problem(node.string)
        if wrong is not None:
            yield at(node, *wrong)
            continue
        for tree, layered in ((t, g) for t in trees for g in _packaged(package, t)):
            problem = _file(node, places, tree.name or "", layered.name)
            scope = group.Scope(
                root=root, broken=broken, tree=tree, name=layered.name, node=layered.node
            )
            origin = group.outputs(scope).get(fold(name))
            if origin is not None:
                what = f"is the file of {origin}, in group {layered.name}"
                problem = at_key(files, name, what, "choose another name")
            if problem is not None:
                yield problem
                break


def _file(node: Node, places: Places, target: str, group: str) -> Problem | None:
    text = filled(node.text, target=target, group=group)
    path = places.absolute(text)
    outside = None if places.allow_outside else places.outside(path, "copy the file inside")
    if outside is not None:
        return at(node, *outside)
    if path.is_file() or places.lacks(path):
        return None
    what = "is a folder" if path.is_dir() else "does not exist"
    variant = f" (for {group}@{target})" if text != node.text else ""
    remedy = "put the folder into `assets`" if path.is_dir() else "check the path"
    return at(node, f"{quoted(text)} {what}{variant}", remedy)


def _genai(package: Node, trees: tuple[TargetTree, ...], places: Places) -> Iterator[Problem]:
    genai, files = package.get("genai"), package.get("files")
    if genai is None or genai.kind != "mapping":
        return
    group_names = dict.fromkeys(g.name for tree in trees for g in _packaged(package, tree))
    if len(group_names) > 1:
        what = (
            f"needs one group, but {', '.join(group_names)} are packaged: genai reads one component"
        )
        yield at_key(package, "genai", what, "name one group in `package.groups`")
    config = files.get(GENAI_CONFIG) if files is not None else None
    source = genai.get("source")
    if source is not None and source.string is not None:
        yield from _source(source, places)
    elif config is None:
        what = f"needs a {GENAI_CONFIG} for every variant"
        remedy = f"name its folder in `source`, or in `package.files`: {{{GENAI_CONFIG}: <path>}}"
        yield at_key(package, "genai", what, remedy)
    if config is not None and config.string is not None and places.problem(config.string) is None:
        yield from _configs(config, package, trees, places)
    tokenizer, assets = genai.get("tokenizer"), present(package.get("assets"))
    if tokenizer is not None and tokenizer.string and tokenizer.string not in assets:
        remedy = did_you_mean(tokenizer.string, assets) if assets else "name it in `assets`"
        yield at(tokenizer, f"there is no asset {quoted(tokenizer.string)}", remedy)


def _source(node: Node, places: Places) -> Iterator[Problem]:
    wrong, config = places.problem(node.text), places.absolute(node.text) / GENAI_CONFIG
    if wrong is None and not config.is_file() and not places.lacks(config):
        what = f"{quoted(node.text)} is not a folder with a {GENAI_CONFIG}"
        wrong = what, "name one that onnxruntime-genai's model builder wrote"
    if wrong is not None:
        yield at(node, *wrong)


def _configs(
    node: Node, package: Node, trees: tuple[TargetTree, ...], places: Places
) -> Iterator[Problem]:
    """Find a genai_config.json that genai cannot read; each file is reported once."""
    texts = {
        filled(node.text, target=tree.name or "", group=layered.name)
        for tree in trees
        for layered in _packaged(package, tree)
    }
    for text in sorted(texts):
        path = places.absolute(text)
        if not path.is_file():
            continue  # reported with the other files
        try:
            large = path.stat().st_size > _LARGEST
            config = None if large else json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            yield at(node, f"{quoted(text)} is not valid JSON: {error}", "repair it")
            continue
        if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
            yield at(node, f'{quoted(text)} has no "model"', "name a genai_config.json")
