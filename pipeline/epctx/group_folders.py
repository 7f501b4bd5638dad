"""Which group folders `epctx verify` is asked about, and what a manifest says of each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from epctx.errors import ModelError, UsageError
from epctx.manifest import Manifest, ModelGroup
from epctx.outputs import SUMS
from epctx.verification import VerifyRequest


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A group that the manifest builds, and that is not where it was looked for."""

    label: str
    folder: Path


def find(paths: Sequence[Path]) -> list[VerifyRequest]:
    """A request for each group folder at or below the folders, and for each model named.

    A group folder has `SHA256SUMS`, an EPContext model, or a model that cannot be read. What is
    below it belongs to it.

    Raises:
        UsageError: a path does not exist, is neither folder nor model, or has nothing to verify.
    """
    requests: list[VerifyRequest] = []
    for path in dict.fromkeys(paths):
        if path.is_dir():
            folders = list(_group_folders(path))
            if not folders:
                raise UsageError(
                    "has nothing to verify: no EPContext model in it or below",
                    where=_words(path),
                    remedy="name the folder that `epctx build --out` wrote, or a model",
                )
            requests += [
                VerifyRequest(folder=folder.resolve(), label=_words(folder)) for folder in folders
            ]
        else:
            requests.append(_of_model(path))
    return requests


def match(
    requests: Sequence[VerifyRequest], manifest: Manifest, paths: Sequence[Path]
) -> tuple[list[VerifyRequest], list[Missing]]:
    """The requests with their model groups, and the groups that are missing below `paths`.

    A folder `<target>/<group>` is that group of that target; another one is the group whose models
    it has, if there is only one.

    Raises:
        UsageError: a folder is of no group of the manifest, or of several.
    """
    matched = [replace(each, group=_group_of(each, manifest)) for each in requests]
    folders = {request.folder for request in requests}
    missing = [
        Missing(label=f"{group.name}@{target.name}", folder=place)
        for root in _roots(paths, manifest)
        for target in manifest.targets
        for group in target.groups
        if (place := root / target.name / group.name) not in folders
    ]
    return matched, missing


def _of_model(path: Path) -> VerifyRequest:
    if not path.is_file():
        what = "is no regular file" if path.exists() else "does not exist"
        raise UsageError(what, where=_words(path), remedy="name a group folder or a model")
    if path.suffix != ".onnx":
        raise UsageError(
            "is not an .onnx file",
            where=_words(path),
            remedy="name the model that it belongs to; `epctx inspect` tells what is in a binary",
        )
    resolved = path.resolve()
    return VerifyRequest(folder=resolved.parent, label=_words(path), models=(resolved.name,))


def _group_folders(path: Path) -> Iterator[Path]:
    if _is_group_folder(path):
        yield path
        return
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            yield from _group_folders(entry)


def _is_group_folder(path: Path) -> bool:
    try:
        names = [entry.name for entry in path.iterdir()]
    except OSError as error:
        raise UsageError(
            "cannot be read", where=_words(path), why=error.strerror, remedy="check its rights"
        ) from error
    return SUMS in names or any(
        _has_context(path / name) for name in names if name.endswith(".onnx")
    )


def _has_context(path: Path) -> bool:
    """Whether a file is an EPContext model, or might be one and is broken."""
    from epctx.graph import bare, epcontext, protos

    if not path.is_file() or path.is_symlink():
        return False
    try:
        return any(map(epcontext.is_epcontext, protos.nodes(bare.read(path))))
    except ModelError:
        return True


def _group_of(request: VerifyRequest, manifest: Manifest) -> ModelGroup:
    groups = {(t.name, group.name): group for t in manifest.targets for group in t.groups}
    place = request.folder
    if (place.parent.name, place.name) in groups:
        return groups[place.parent.name, place.name]
    models = set(request.models or (p.name for p in place.glob("*_ctx.onnx")))
    having = [
        (target, group)
        for (target, _), group in groups.items()
        if models and models <= {f"{model.name}_ctx.onnx" for model in group.models}
    ]
    if len(having) == 1:
        return having[0][1]
    which = ", ".join(f"{group.name}@{target}" for target, group in having)
    raise UsageError(
        f"is of several groups of the manifest: {which}"
        if having
        else f"is of no group of the manifest {manifest.path.name}",
        where=request.label,
        remedy="keep the folder's name as it was built, <target>/<group>; "
        f"the manifest builds {', '.join(f'{target}/{group}' for target, group in groups)}",
    )


def _roots(paths: Sequence[Path], manifest: Manifest) -> list[Path]:
    """The folders of the whole manifest that were named, or that are in one that was named."""
    named = [path.resolve() for path in paths]
    found = [path if path.name == manifest.name else path / manifest.name for path in named]
    return [path for path in found if path.is_dir()]


def _words(path: Path) -> str:
    return path.as_posix() if path.is_absolute() else os.path.relpath(path).replace("\\", "/")
