"""Which group folders `epctx verify` is asked about; what the manifest and the lock say of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from epctx import codec, limits
from epctx.commands.package import finding as packages
from epctx.error_codes import Code
from epctx.errors import ModelError, UsageError
from epctx.files import listing
from epctx.files.digest import Digest
from epctx.files.entries import open_entry
from epctx.files.outputs import CONTEXT_SUFFIX, KIT, SUMS, context_file
from epctx.lockfile import hosts, released
from epctx.lockfile.types import Lock, LockedFile
from epctx.manifest import Manifest
from epctx.verification.request import Composed, ExpectedFile, VerifyRequest


class Missing(Struct, frozen=True, kw_only=True):
    """A group that `record` (the manifest, the lock) has, and that is not where it should be."""

    record: str
    label: str
    folder: Path


def find(paths: Sequence[Path]) -> list[VerifyRequest]:
    """A request for each group folder at or below the folders, and for each model named.

    What is in a model package is left to `commands.package.checking`.

    A group folder has `SHA256SUMS`, an EPContext model, or a model that cannot be read. What is
    below it belongs to it.

    Raises:
        UsageError: a path does not exist, is neither folder nor model, or has nothing to verify.
    """
    requests: list[VerifyRequest] = []
    for path in dict.fromkeys(paths):
        if path.is_dir():
            try:
                folders, packaged = _group_folders(path), packages.below(path)
            except OSError as error:
                raise _unreadable(path, error) from error
            if not folders and not packaged:
                raise UsageError(
                    "has nothing to verify: no EPContext model in it or below",
                    file=words(path),
                    remedy="name the folder that `epctx build --out` wrote, or a model",
                )
            requests += [
                VerifyRequest(folder=folder.resolve(), label=words(folder)) for folder in folders
            ]
        else:
            requests.append(_of_model(path))
    return requests


def match(
    requests: Sequence[VerifyRequest], manifest: Manifest, paths: Sequence[Path]
) -> tuple[list[VerifyRequest], list[Missing]]:
    """The requests with their model groups, and the groups that are missing below `paths`.

    A folder `<target>/<group>` is that group of that target; another one is the group whose models
    it has, if there is only one. Compositions likewise; their parts are looked for beside them.

    Raises:
        UsageError: a folder is of no group of the manifest, or of several.
    """
    groups = {f"{t.name}/{group.name}": group for t in manifest.targets for group in t.groups}
    known = {
        key: {context_file(model.name) for model in group.models} for key, group in groups.items()
    }
    composed = {f"{t.name}/{c.name}": (t, c) for t in manifest.targets for c in t.compositions}
    known |= {key: {context_file(c.name)} for key, (_, c) in composed.items()}
    record = f"the manifest {manifest.path.name}"
    matched = []
    for each in requests:
        key = _key(each, known, record)
        if key in groups:
            matched.append(replace(each, group=groups[key]))
        else:
            target, composition = composed[key]
            whole = Composed.of(composition, target.groups, each.folder.parent.joinpath)
            matched.append(replace(each, composed=whole))
    roots = _roots(paths, manifest.name)
    return matched, _missing(requests, known, roots, record)


def match_lock(
    requests: Sequence[VerifyRequest], lock: Lock, paths: Sequence[Path], *, where: str
) -> tuple[list[VerifyRequest], list[Missing]]:
    """The requests with what the lock says of their files; `match` says the rest.

    A lock of several kinds of host says it of that one whose outputs a folder has.

    What is in the folder of the lock's whole release, and is none of its groups, is left to
    `commands.verify.releases.strays`.
    """
    record = f"the lock {where}"
    roots = _roots(paths, lock.name)
    requests = [each for each in requests if not _is_astray(each.folder, roots, lock)]
    views = hosts.views(lock)
    folders = views[0].folders
    known = {
        key: {name for name in outputs if name.endswith(CONTEXT_SUFFIX)}
        for key, outputs in folders.items()
    }
    matched = []
    for request in requests:
        key = _key(request, known, record)
        own = _own(request.folder, key, views)
        golden = own.golden.get(key)
        made = None if golden is None else {**golden, SUMS: released.sums(golden)}
        matched.append(
            replace(
                request,
                expected=_expected(own.folders[key]),
                golden_expected=None if made is None else _expected(made),
            )
        )
    return matched, _missing(requests, folders, roots, record)


def _own(folder: Path, key: str, views: Sequence[Lock]) -> Lock:
    """The lock for the kind of host of which a folder's SHA256SUMS has the most files."""
    if len(views) == 1:
        return views[0]
    try:
        with open_entry(folder / SUMS) as stream:
            said = stream.read(limits.RECORD_BYTES.value).decode(errors="replace")
    except OSError:
        said = ""
    return max(views, key=lambda v: sum(f.sha256 in said for f in v.folders[key].values()))


def roots_of(paths: Sequence[Path], lock: Lock) -> list[Path]:
    """The folders of a lock's whole release that were named, or that are in one that was named."""
    return _roots(paths, lock.name)


def _is_astray(folder: Path, roots: Sequence[Path], lock: Lock) -> bool:
    """A folder in that of the whole release that is none of the lock's, whatever is in it."""
    inside = (folder.relative_to(root).as_posix() for root in roots if folder.is_relative_to(root))
    return any(key not in lock.folders for key in inside)


def _expected(files: Mapping[str, LockedFile]) -> tuple[ExpectedFile, ...]:
    return tuple(
        ExpectedFile(name=name, size=file.size, digest=Digest("sha256", file.sha256))
        for name, file in sorted(files.items())
    )


def _missing(
    requests: Sequence[VerifyRequest], keys: Iterable[str], roots: Sequence[Path], record: str
) -> list[Missing]:
    folders = {request.folder for request in requests}
    found = []
    for root in roots:
        for target, _, group in (key.partition("/") for key in keys):
            place, label = root / target / group, f"{group}@{target}"
            if place not in folders:
                found.append(Missing(record=record, label=label, folder=place))
    return found


def _of_model(path: Path) -> VerifyRequest:
    if not path.is_file():
        what = "is no regular file" if path.exists() else "does not exist"
        remedy = "name a group folder or a model"
        raise UsageError(what, file=words(path), remedy=remedy, code=Code.NO_SUCH_PATH)
    if path.suffix != ".onnx":
        raise UsageError(
            "is not an .onnx file",
            file=words(path),
            remedy="name the model that it belongs to; `epctx inspect` tells what is in a binary",
            code=Code.NO_SUCH_PATH,
        )
    resolved = path.resolve()
    return VerifyRequest(folder=resolved.parent, label=words(path), models=(resolved.name,))


def _unreadable(path: Path, error: OSError) -> UsageError:
    where = words(Path(error.filename or path))
    remedy = "check its rights, and how deep it is"
    return UsageError("cannot be read", where=where, why=error.strerror, remedy=remedy)


def _group_folders(path: Path) -> list[Path]:
    found: list[Path] = []

    def into(folder: Path) -> bool:
        if packages.is_package(folder) or (folder / KIT).is_file():
            return False
        if _is_group_folder(folder):
            found.append(folder)
            return False
        return True

    if into(path):
        for _ in listing.below(path, into=into):
            pass
    return sorted(found)


def _is_group_folder(path: Path) -> bool:
    names = [entry.name for entry in path.iterdir()]
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise codec.no_text(error) from error
    return SUMS in names or any(
        _has_context(path / name) for name in names if name.endswith(".onnx")
    )


def _has_context(path: Path) -> bool:
    """Whether a file is an EPContext model, or might be one and is broken."""
    from epctx.graph import epcontext
    from epctx.graph.serde import protos, skeleton

    if not path.is_file() or path.is_symlink():
        return False
    try:
        return any(map(epcontext.is_epcontext, protos.nodes(skeleton.read(path))))
    except ModelError:
        return True


def _key(request: VerifyRequest, known: Mapping[str, set[str]], record: str) -> str:
    """Which group, `<target>/<group>`, a folder is; `known` has the models' files of each."""
    place = request.folder
    key = f"{place.parent.name}/{place.name}"
    if key in known:
        return key
    models = set(request.models or (p.name for p in place.glob(context_file("*"))))
    having = [key for key, files in known.items() if models and models <= files]
    if len(having) == 1:
        return having[0]
    raise UsageError(
        f"is of several groups of {record}: {', '.join(having)}"
        if having
        else f"is of no group of {record}",
        where=request.label,
        remedy="keep the folder's name as it was built, <target>/<group>; "
        f"known are {', '.join(known)}",
    )


def _roots(paths: Sequence[Path], name: str) -> list[Path]:
    """The folders of a whole manifest that were named, or that are in one that was named."""
    named = [path.resolve() for path in paths]
    found = [path if path.name == name else path / name for path in named]
    return [path for path in found if path.is_dir()]


def words(path: Path) -> str:
    """A path as the user knows it: relative where it was given so."""
    return path.as_posix() if path.is_absolute() else os.path.relpath(path).replace("\\", "/")
