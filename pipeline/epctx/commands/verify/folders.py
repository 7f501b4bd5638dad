"""Find everything below the folders of `epctx verify`, and match it with manifest and lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from epctx import codec, limits, lockfile
from epctx.commands.package import form as packages
from epctx.engine.output.place import OutputPaths
from epctx.error_codes import Code
from epctx.errors import ModelError, UsageError
from epctx.files import listing
from epctx.files.digest import Digest
from epctx.files.entries import open_entry
from epctx.files.outputs import CONTEXT_SUFFIX, KIT, SIGNATURE, SUMS, context_file
from epctx.graph import epcontext
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock, LockedFile
from epctx.manifest import Manifest
from epctx.verification.findings import Finding, FolderReport
from epctx.verification.request import Composed, ExpectedFile, VerifyRequest


class Missing(Struct, frozen=True, kw_only=True):
    """Group that `record` (the manifest or the lock) lists, but that is missing from its place."""

    record: str
    label: str
    folder: Path


class Survey(Struct, frozen=True, kw_only=True):
    """All entries below the given paths, each once; links are not followed.

    Attributes:
        requests: one request for each group folder and each given model.
        packages: folders of model packages.
        kits: folders of kits for devices.
        byproducts: files that each build writes beside its outputs.
        rest: all other entries; a folder with nothing but such entries is listed as a whole.
    """

    requests: tuple[VerifyRequest, ...]
    packages: tuple[Path, ...]
    kits: tuple[Path, ...]
    byproducts: tuple[Path, ...]
    rest: tuple[Path, ...]


def survey(paths: Sequence[Path]) -> Survey:
    """List everything below the given folders, and each given model.

    A group folder has `SHA256SUMS`, an EPContext model, or a model that cannot be read. A package,
    a kit and a folder with `SHA256SUMS` own everything below them.

    Raises:
        UsageError: a path does not exist, is neither a folder nor a model, or has nothing to
            verify.
    """
    models: list[VerifyRequest] = []
    kinds: dict[Path, Kind] = {}
    rest: list[Path] = []
    for path in dict.fromkeys(paths):
        if not path.is_dir():
            models.append(_of_model(path))
            continue
        try:
            walked, entries = _walk(path)
        except OSError as error:
            raise _unreadable(path, error) from error
        if not walked:
            raise UsageError(
                "has nothing to verify: no EPContext model in it or below",
                file=words(path),
                remedy="name the folder that `epctx build --out` wrote, or a model",
            )
        kinds |= {folder: walked[folder] for folder in sorted(walked)}
        rest += entries
    groups = (VerifyRequest(folder=f.resolve(), label=words(f)) for f in _of_kind("group", kinds))
    return Survey(
        requests=(*groups, *models),
        packages=_of_kind("package", kinds),
        kits=_of_kind("kit", kinds),
        byproducts=tuple(filter(_is_byproduct, rest)),
        rest=tuple(path for path in rest if not _is_byproduct(path)),
    )


def reported(paths: Iterable[Path], finding: Callable[[str], Finding]) -> list[FolderReport]:
    """Report entries under their folders, each with the finding for its name."""
    findings: dict[Path, list[Finding]] = {}
    for path in paths:
        name = f"{path.name}/" if listing.is_folder(path) else path.name
        findings.setdefault(path.parent, []).append(finding(name))
    return [FolderReport(folder=words(p), findings=tuple(each)) for p, each in findings.items()]


def _of_kind(kind: Kind, kinds: Mapping[Path, Kind]) -> tuple[Path, ...]:
    return tuple(folder for folder, each in kinds.items() if each == kind)


def _is_byproduct(path: Path) -> bool:
    """Tell whether a file is a byproduct of a build: report, page, traces, record or OS lock."""
    words = path.name.removeprefix(".").split(".")
    for count in range(1, len(words)):
        place = OutputPaths(out=path.parent, name=".".join(words[:count]))
        if path in (place.report, place.page, place.traces, place.record, place.lock):
            there = place.root.is_dir() or place.package.is_dir()
            return there and path.is_file() and not path.is_symlink()
    return False


def match(
    requests: Sequence[VerifyRequest], manifest: Manifest, paths: Sequence[Path]
) -> tuple[list[VerifyRequest], list[Missing]]:
    """Match the requests with model groups; also return the groups that are missing below `paths`.

    A folder `<target>/<group>` is matched by its name. Another folder is matched by its models, if
    only one group has them. Compositions are matched in the same way, and their parts are expected
    beside them.

    Raises:
        UsageError: a folder matches no group of the manifest, or several.
    """
    groups = {f"{t.name}/{group.name}": group for t in manifest.targets for group in t.groups}
    model_files = {
        key: {context_file(model.name) for model in group.models} for key, group in groups.items()
    }
    composed = {f"{t.name}/{c.name}": (t, c) for t in manifest.targets for c in t.compositions}
    model_files |= {key: {context_file(c.name)} for key, (_, c) in composed.items()}
    record = f"the manifest {manifest.path.name}"
    matched = []
    for each in requests:
        key = _key(each, model_files, record)
        if key in groups:
            matched.append(replace(each, group=groups[key]))
        else:
            target, composition = composed[key]
            whole = Composed.of(composition, target.groups, each.folder.parent.joinpath)
            matched.append(replace(each, composed=whole))
    roots = _roots(paths, requests, model_files, manifest.name)
    return matched, _missing(paths, requests, model_files, roots, record)


def match_lock(
    requests: Sequence[VerifyRequest], lock: Lock, paths: Sequence[Path], *, where: str
) -> tuple[list[VerifyRequest], list[Missing], list[Path]]:
    """Add the lock's expected files to the requests; `match` adds the model groups.

    If the lock covers several kinds of host, use the kind whose outputs the folder has.

    Also returns the folders that lie in the release but are not in the lock, as they were given.
    """
    record = f"the lock {where}"
    views = hosts.views(lock)
    folders = views[0].folders
    roots = _roots(paths, requests, folders, lock.name)
    astray = [Path(each.label) for each in requests if _is_astray(each.folder, roots, folders)]
    requests = [each for each in requests if not _is_astray(each.folder, roots, folders)]
    model_files = {
        key: {name for name in outputs if name.endswith(CONTEXT_SUFFIX)}
        for key, outputs in folders.items()
    }
    matched = []
    for request in requests:
        key = _key(request, model_files, record)
        view = _matching_view(request.folder, key, views)
        golden = view.golden.get(key)
        matched.append(
            replace(
                request,
                expected=_expected(view.folders[key]),
                golden_expected=None if golden is None else _expected(golden),
            )
        )
    return matched, _missing(paths, requests, folders, roots, record), astray


def _matching_view(folder: Path, key: str, views: Sequence[Lock]) -> Lock:
    """Lock for the kind of host that has the most files in a folder's SHA256SUMS."""
    if len(views) == 1:
        return views[0]
    try:
        with open_entry(folder / SUMS) as stream:
            sums = stream.read(limits.RECORD_BYTES.value).decode(errors="replace")
    except OSError:
        sums = ""
    return max(views, key=lambda v: sum(f.sha256 in sums for f in v.folders[key].values()))


def _is_astray(folder: Path, roots: Iterable[Path], keys: Collection[str]) -> bool:
    """Tell whether a folder lies in a release's folder but is none of its groups."""
    inside = (folder.relative_to(root).as_posix() for root in roots if folder.is_relative_to(root))
    return any(key not in keys for key in inside)


def _expected(files: Mapping[str, LockedFile]) -> tuple[ExpectedFile, ...]:
    """Expected files of a folder, including the SHA256SUMS that lists them."""
    return tuple(
        ExpectedFile(name=name, size=file.size, digest=Digest("sha256", file.sha256))
        for name, file in sorted({**files, SUMS: lockfile.sums_file(files)}.items())
    )


def _missing(
    paths: Sequence[Path],
    requests: Sequence[VerifyRequest],
    keys: Iterable[str],
    roots: Iterable[Path],
    record: str,
) -> list[Missing]:
    """Groups whose folder should be below a given path, but is missing."""
    folders = {request.folder for request in requests}
    resolved = [path.resolve() for path in paths]
    absent = []
    for root in roots:
        for target, _, group in (key.partition("/") for key in keys):
            place, label = root / target / group, f"{group}@{target}"
            if place not in folders and any(place.is_relative_to(each) for each in resolved):
                absent.append(Missing(record=record, label=label, folder=place))
    return absent


def _of_model(path: Path) -> VerifyRequest:
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        remedy = "name a group folder or a model"
        raise UsageError(what, file=words(path), remedy=remedy, code=Code.NO_SUCH_PATH)
    if path.suffix != ".onnx":
        raise UsageError(
            "is not an .onnx file",
            file=words(path),
            remedy="name the model that it belongs to; `epctx inspect` shows what a binary has",
            code=Code.NO_SUCH_PATH,
        )
    resolved = path.resolve()
    return VerifyRequest(folder=resolved.parent, label=words(path), models=(resolved.name,))


def _unreadable(path: Path, error: OSError) -> UsageError:
    where = words(Path(error.filename or path))
    remedy = "check its permissions, and how deep it is"
    return UsageError("cannot be read", where=where, why=error.strerror, remedy=remedy)


Kind = Literal["group", "package", "kit"]


def _walk(path: Path) -> tuple[dict[Path, Kind], list[Path]]:
    """Folders below a path that have a kind, and the entries outside of them."""
    kinds: dict[Path, Kind] = {}

    def into(folder: Path) -> bool:
        kind = _kind(folder)
        if kind is not None:
            kinds[folder] = kind
        # A foreign model makes its folder a group; such a group must not hide groups below.
        return kind is None or (kind == "group" and not (folder / SUMS).exists())

    entries = list(listing.below(path, into=into)) if into(path) else []
    parents = {entry.parent for entry in entries}
    signed = {entry.parent for entry in entries if entry.name == SIGNATURE}
    kept = {*path.parents, path}
    kept |= {parent for folder in (*kinds, *signed) for parent in (folder, *folder.parents)}
    rest: dict[Path, None] = {}
    for entry in entries:
        if entry not in parents and kinds.keys().isdisjoint((entry, *entry.parents)):
            whole = [each for each in entry.parents if each not in kept]
            rest[whole[-1] if whole else entry] = None
    return kinds, list(rest)


def _kind(folder: Path) -> Kind | None:
    """Return the kind of a folder; None without a kind, though subfolders may have one."""
    if packages.is_package(folder):
        return "package"
    names = _names(folder)
    models = [name for name in names if name.endswith(".onnx")]
    # A kit has its models in subfolders, so a group folder with an added kit.json is not a kit.
    if {KIT, SUMS} <= {*names} and not models:
        return "kit"
    if SUMS in names or any(_has_context(folder / name) for name in models):
        return "group"
    return None


def _names(folder: Path) -> list[str]:
    names = [entry.name for entry in folder.iterdir()]
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise codec.no_text(error) from error
    return names


def _has_context(path: Path) -> bool:
    """Tell whether a file is an EPContext model, or a broken file that may be one."""
    from epctx.graph.serde import protos, reader

    if not path.is_file() or path.is_symlink():
        return False
    try:
        return any(map(epcontext.is_epcontext, protos.nodes(reader.read(path))))
    except ModelError:
        return True


def _key(request: VerifyRequest, model_files: Mapping[str, set[str]], record: str) -> str:
    """Return the group of a folder, `<target>/<group>`; `known` has each group's model files."""
    place = request.folder
    key = f"{place.parent.name}/{place.name}"
    if key in model_files:
        return key
    models = set(request.models or (p.name for p in place.glob(context_file("*"))))
    having = [key for key, files in model_files.items() if models and models <= files]
    if len(having) == 1:
        return having[0]
    raise UsageError(
        f"matches several groups of {record}: {', '.join(having)}"
        if having
        else f"matches no group of {record}",
        where=request.label,
        remedy="keep the folder's name as it was built, <target>/<group>; "
        f"known are {', '.join(model_files)}",
    )


def _roots(
    paths: Sequence[Path], requests: Iterable[VerifyRequest], keys: Collection[str], name: str
) -> list[Path]:
    """Folders of whole releases: with the manifest's name, or above a folder at a group's place."""
    resolved = [path.resolve() for path in paths]
    roots = [path if path.name == name else path / name for path in resolved]
    roots += [
        each.folder.parents[1]
        for each in requests
        if f"{each.folder.parent.name}/{each.folder.name}" in keys
    ]
    return [path for path in dict.fromkeys(roots) if path.is_dir()]


def words(path: Path) -> str:
    """Path as the user gave it, absolute or relative."""
    return path.as_posix() if path.is_absolute() else os.path.relpath(path).replace("\\", "/")
