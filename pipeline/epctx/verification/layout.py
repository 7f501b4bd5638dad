"""Conformance of a whole folder: N models that share give N+1 files, and nothing is left over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import PurePosixPath

from epctx.files.outputs import SUMS, context_file
from epctx.providers.base import Outcome
from epctx.verification.findings import REBUILD, Finding
from epctx.verification.folder import ContextModel, GroupFolder

_finding = partial(Finding, "conformance")


def check(folder: GroupFolder) -> Iterator[Finding]:
    """Files missing, binaries named or shared as they should not be, files that nothing uses."""
    if folder.group is not None:
        yield from _collect("files", "every model of the group is there", _missing(folder))
    if folder.group is not None and folder.group.pieces is not None:
        yield from _collect("pieces", "its models are cut as asked", _cuts(folder))
    yield from _collect("sharing", _sharing_words(folder), _sharing(folder))
    if folder.whole:
        yield from _unreferenced(folder)


def sharing_sets(folder: GroupFolder) -> list[tuple[ContextModel, ...]]:
    """The models that share a context, in the order that they are loaded in; singles last.

    By the manifest's sharing groups; without a manifest, those that refer to one binary, the one
    that the binary is named for first.
    """
    by_file = {model.file: model for model in folder.models}
    if folder.group is not None:
        listed = [
            tuple(by_file[f] for f in map(context_file, members) if f in by_file)
            for members in folder.group.sharing_groups.values()
        ]
    else:
        listed = _by_binary(folder.models)
    shared = [models for models in listed if len(models) > 1]
    taken = {model.file for models in shared for model in models}
    return shared + [(model,) for model in folder.models if model.file not in taken]


def _by_binary(models: Sequence[ContextModel]) -> list[tuple[ContextModel, ...]]:
    sets: list[tuple[set[str], list[ContextModel]]] = []
    for model in models:
        binaries, members = set(model.contexts), [model]
        apart = []
        for known, others in sets:
            if known & binaries:
                binaries, members = binaries | known, [*others, *members]
            else:
                apart.append((known, others))
        sets = [*apart, (binaries, members)]
    return [tuple(sorted(members, key=_names_binary)) for _, members in sets]


def _names_binary(model: ContextModel) -> tuple[bool, str]:
    stem = _stem(model)
    names = (PurePosixPath(path).name for path in model.contexts)
    return not any(name.startswith(f"{stem}_") for name in names), model.file


def _missing(folder: GroupFolder) -> Iterator[str]:
    assert folder.group is not None
    wanted = {context_file(model.name) for model in folder.group.models}
    if folder.whole:
        for name in sorted(wanted - set(folder.entries)):
            yield f"'{name}' is missing"
    for model in folder.models:
        if model.file not in wanted:
            yield f"'{model.file}' is of no model of the group"


def _cuts(folder: GroupFolder) -> Iterator[str]:
    """Each model says that it has the pieces that the manifest asks for; those that share, as many
    as the first.
    """
    assert folder.group is not None and folder.group.pieces is not None
    asked, groups = folder.group.pieces, folder.group.sharing_groups.values()
    counts = {_stem(model): len(model.cuts or ()) + 1 for model in folder.models}
    fixed = asked.count or (len(asked.at) + 1 if asked.at else None)
    first = {name: members[0] for members in groups for name in members}
    for name, count in counts.items():
        wanted = fixed or counts.get(first.get(name, name), count)
        if count != wanted:
            yield f"'{context_file(name)}' says that it is in pieces: {count}, not {wanted}"


def _sharing_words(folder: GroupFolder) -> str:
    models = len(folder.models)
    binaries = len({path for model in folder.models for path in model.contexts})
    return f"{models} model{'s' * (models != 1)}, {binaries} context binar" + (
        "y" if binaries == 1 else "ies"
    )


def _sharing(folder: GroupFolder) -> Iterator[str]:
    """Every binary is named for the first that shares; those who share use one an EP and piece."""
    if folder.group is None:
        return
    pieces = folder.group.pieces is not None
    first = {m: members[0] for members in folder.group.sharing_groups.values() for m in members}
    used: dict[tuple[str, str, str], set[str]] = {}
    for model in folder.models:
        name = _stem(model)
        owner = first.get(name, name)
        for node in model.nodes:
            if node.context_path is None:
                continue
            provider = folder.providers.find(node.source or "")
            wanted = rf"{re.escape(owner)}(_\d+)?_{re.escape(provider.label if provider else '')}"
            match = re.match(wanted, PurePosixPath(node.context_path).name)
            if match is None:
                yield (
                    f"'{model.file}' uses the context binary '{node.context_path}', which is not "
                    f"named for '{owner}'"
                )
            if name in first:
                piece = (match and pieces and match[1]) or ""
                used.setdefault((owner, node.source or "", piece), set()).add(node.context_path)
    for (owner, source, _), binaries in used.items():
        if len(binaries) > 1:
            yield (
                f"the models that share with '{owner}' use several context binaries of the source "
                f"'{source}': {', '.join(sorted(binaries))}"
            )


def _unreferenced(folder: GroupFolder) -> Iterator[Finding]:
    used = {name for model in folder.models for name in model.files} | {SUMS}
    used |= {file for file, _ in folder.unreadable}
    used = {PurePosixPath(name).as_posix() for name in used}
    left = [name for name in folder.entries if name not in used]
    outcome: Outcome = "fail" if folder.ours else "not checkable"
    for name in left:
        kind = "is an ONNX model without EPContext nodes" if name in folder.plain else "is unused"
        yield _finding(
            "unreferenced",
            name,
            outcome,
            f"{kind}: no EPContext model of the folder refers to it",
            "remove it; a stale context binary is loaded without an error"
            if folder.ours
            else "epctx did not make this folder: whoever did knows what belongs to it",
        )
    if not left:
        yield _finding("unreferenced", ".", "pass", "every file is used by a model")


def _stem(model: ContextModel) -> str:
    return model.file.removesuffix(".onnx").removesuffix("_ctx")


def _collect(word: str, words: str, faults: Iterator[str]) -> Iterator[Finding]:
    found = list(faults)
    for fault in found:
        yield _finding(word, ".", "fail", fault, REBUILD)
    if not found:
        yield _finding(word, ".", "pass", words)
