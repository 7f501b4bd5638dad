"""Derive a package from a lock: its variants, its files, its manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from epctx.commands.package import form
from epctx.commands.package.form import (
    MANIFEST,
    Component,
    ExecutorInfo,
    Json,
    OrtInfo,
    Package,
    Variant,
)
from epctx.error_codes import Code
from epctx.errors import LockError, ModelError
from epctx.files import items as items_
from epctx.files.digest import Digest
from epctx.files.items import Item, digest_of
from epctx.files.outputs import SUMS, context_file
from epctx.graph.epcontext import COMPATIBILITY
from epctx.lockfile.types import (
    Lock,
    LockedFile,
    LockedGroup,
    LockedModel,
    LockedPackage,
    LockedVariant,
)
from epctx.manifest import DEFAULT_EP

if TYPE_CHECKING:
    from epctx.verification.folder import ContextModel


class BuiltModel(Struct, frozen=True, kw_only=True):
    """Compiled model of a group.

    Attributes:
        name: key in the manifest.
        file: name of the ONNX file.
        ep: ONNX Runtime's name of the first EP in the group's order that runs nodes of the model;
            the CPU EP if no EP does.
        others: further EPs that run nodes of the model.
        device: device kind of `ep`; None if it is unknown, and for the CPU EP, because ONNX Runtime
            1.31.1 never selects a CPU variant that names a device.
        compatibility: compatibility string of `ep` in the model; None without one.
        options: provider options for a session.
        sharing: True if other models share its context.
        data: names of its external data files.
        native: True if ONNX Runtime itself can run it.
        contexts: True if it has context binaries beside it.
    """

    name: str
    file: str
    ep: str
    others: tuple[str, ...]
    device: str | None
    compatibility: str | None
    options: Mapping[str, str]
    sharing: bool
    data: tuple[str, ...]
    native: bool
    contexts: bool


class BuiltGroup(Struct, frozen=True, kw_only=True):
    """A group that was built for a target.

    Attributes:
        files: outputs without SHA256SUMS, and the manifest's extra files for the folder, by name.
        locked: entry of the group in the lock.
    """

    target: str
    name: str
    models: tuple[BuiltModel, ...]
    files: Mapping[str, Item]
    locked: LockedGroup


def built_group(
    lock: Lock, package: LockedPackage, variant: LockedVariant, items: Mapping[Digest, Item]
) -> BuiltGroup:
    """Make a group from its lock entry.

    Args:
        items: files by SHA-256, including all files of the group.

    Raises:
        ModelError: a model cannot be read back.
    """
    locked = lock.groups[variant.group]
    target, _, name = variant.group.partition("/")
    locked_files = {**locked.outputs, **variant.files}
    files = {file: items[Digest("sha256", each.sha256)] for file, each in locked_files.items()}
    models = (_built_model(model, package, variant, locked, files) for model in variant.models)
    return BuiltGroup(target=target, name=name, models=tuple(models), files=files, locked=locked)


def _built_model(
    name: str,
    package: LockedPackage,
    variant: LockedVariant,
    locked: LockedGroup,
    files: Mapping[str, Item],
) -> BuiltModel:

    model = _read_model(files[context_file(name)], context_file(name))
    runtimes = [
        (each.partition("#")[0], package.execution_providers[each])
        for each in variant.execution_providers
    ]
    sharing = {m for s in locked.session_groups.values() if s.sharing is not None for m in s.models}
    active = [(ep, each) for ep, each in runtimes if set(each.sources) & set(model.sources)]
    ep, first = active[0] if active else (DEFAULT_EP, None)
    return BuiltModel(
        name=name,
        file=model.file,
        ep=ep,
        others=tuple(name for name, _ in active[1:]),
        device=first.device if first is not None else None,
        compatibility=model.metadata.get(COMPATIBILITY + ep) if active else None,
        options=first.options if first is not None else {},
        sharing=name in sharing and bool(active),
        data=model.data,
        native=first is None or first.native,
        contexts=bool(model.contexts),
    )


def _read_model(item: Item, name: str) -> ContextModel:
    from epctx.verification.folder import Unreadable, read_proto, summarize

    assert item.source is not None
    try:
        return summarize(name, read_proto(item.source))
    except Unreadable as error:
        raise ModelError(
            "cannot be read back",
            file=item.source.as_posix(),
            why=str(error),
            remedy="run the command again; another program changed the outputs meanwhile",
        ) from error


class Contents(Struct, frozen=True, kw_only=True):
    """Every file of a package except its manifest and sums.

    Attributes:
        folders: folder of each group's variants, in the order of the groups given.
        data: asset with the model's external data, by (folder, model).
        items: every file, by its path in the package, with `/`.
        saved: bytes saved because variants share files.
    """

    folders: tuple[str, ...]
    data: Mapping[tuple[str, str], Digest]
    items: Mapping[str, Item]
    saved: int


def arrange(
    groups: Sequence[BuiltGroup], shared: Iterable[Mapping[str, Item]], *, apart: bool = False
) -> Contents:
    """Assign a path in the package to every file.

    Identical folders are stored once. External data that is identical for models of several folders
    goes into an asset.

    Args:
        groups: built groups, in the order of the variants.
        shared: files of each asset of the manifest.
        apart: keep external data in each folder, because onnxruntime-genai opens the folder alone.
    """
    items: dict[str, Item] = {}
    for files in shared:
        _put(items, form.asset_folder(digest_of(files)), files)
    wholes: dict[Digest, str] = {}
    folders: list[str] = []
    placed: dict[str, tuple[BuiltGroup, Mapping[str, Item]]] = {}
    saved = 0
    for group in groups:
        files = group.files
        place = wholes.setdefault(digest_of(files), f"{group.target}/{group.name}")
        folders.append(place)
        if place in placed:
            saved += sum(item.size for item in files.values())
        placed.setdefault(place, (group, files))
    data: dict[tuple[str, str], Digest] = {}
    common = _common(placed.values())
    for place, (group, files) in placed.items():
        remaining = dict(files)
        for model in group.models:
            hashed = _data_of(model, files)
            if hashed is not None and common[hashed] > 1 and not apart:
                data[place, model.name] = hashed
                moved = {name: files[name] for name in model.data}
                target = form.asset_folder(hashed)
                if moved.keys() <= remaining.keys() and f"{target}/{model.data[0]}" in items:
                    saved += sum(item.size for item in moved.values())
                remaining = {name: item for name, item in remaining.items() if name not in moved}
                _put(items, target, moved)
        _put(items, place, remaining)
    return Contents(folders=tuple(folders), data=data, items=items, saved=saved)


def _common(placed: Iterable[tuple[BuiltGroup, Mapping[str, Item]]]) -> Counter[Digest]:
    """Count the folders that contain each set of external data."""
    return Counter(
        hashed
        for group, files in placed
        for hashed in {_data_of(model, files) for model in group.models}
        if hashed is not None
    )


def _data_of(model: BuiltModel, files: Mapping[str, Item]) -> Digest | None:
    """Canonical hash of a model's external data; None if it has none."""
    return digest_of({name: files[name] for name in model.data}) if model.data else None


def _put(items: dict[str, Item], folder: str, files: Mapping[str, Item]) -> None:
    items.update({f"{folder}/{name}": item for name, item in files.items()})


def describe(
    lock: Lock,
    settings: LockedPackage,
    groups: Sequence[BuiltGroup],
    contents: Contents,
    assets: Mapping[str, Digest],
) -> Package:
    """Make the manifest of a package.

    Args:
        lock: lock of the build.
        settings: entry of the package in the lock.
        groups: built groups, in the order of the variants.
        contents: arrangement of the same groups.
        assets: digests of the manifest's assets, by name.
    """
    if settings.component is None:
        components = _components(groups, contents)
    else:
        components = {settings.component: _of_group(groups, contents)}
    return Package(
        schema_version=form.SCHEMA_VERSION,
        package_name=lock.name,
        package_version=settings.version,
        description=settings.description,
        components=components,
        additional_metadata=form.metadata(_provenance(groups, lock, assets)),
    )


def component_names(groups: Sequence[BuiltGroup]) -> dict[tuple[str, str], str]:
    """Component of each (group, model): the model's name, or `<group>.<model>` if ambiguous."""
    pairs = dict.fromkeys((group.name, model.name) for group in groups for model in group.models)
    holders = Counter(model for _, model in pairs)
    return {
        (group, model): model if holders[model] == 1 else f"{group}.{model}"
        for group, model in pairs
    }


def _components(groups: Sequence[BuiltGroup], contents: Contents) -> dict[str, Component]:
    variants: dict[str, dict[str, Variant]] = {}
    names = component_names(groups)
    for group, folder in zip(groups, contents.folders, strict=True):
        for model in group.models:
            variant = _variant(group, [model], model, folder, contents)
            variants.setdefault(names[group.name, model.name], {})[group.target] = variant
    return {name: Component(variants=each) for name, each in variants.items()}


def _of_group(groups: Sequence[BuiltGroup], contents: Contents) -> Component:
    """Component for genai: each variant has all models of a group.

    genai creates the sessions from its own configuration. ONNX Runtime alone can also open a group
    with only one model.
    """
    variants = {}
    for group, folder in zip(groups, contents.folders, strict=True):
        first = next((model for model in group.models if model.ep != DEFAULT_EP), group.models[0])
        variants[group.target] = _variant(group, group.models, first, folder, contents)
    return Component(variants=variants)


def _variant(
    group: BuiltGroup,
    models: Sequence[BuiltModel],
    first: BuiltModel,
    folder: str,
    contents: Contents,
) -> Variant:
    """Make a variant with some models of a group; it is selected by the EP of `first`."""
    data = contents.data.get((folder, first.name))
    info = OrtInfo(
        model_file=first.file,
        session_options=_session_options(first, data),
        provider_options=dict(sorted(first.options.items())),
    )
    return Variant(
        variant_directory=folder,
        ep=first.ep,
        device=first.device,
        compatibility_string=first.compatibility,
        executor_info=ExecutorInfo(ort=info) if len(models) == 1 else None,
        additional_metadata=form.metadata({"epctx": _origin(group, models)}),
    )


def _session_options(model: BuiltModel, data: Digest | None) -> dict[str, str]:
    options = {"ep.share_ep_contexts": "1"} if model.sharing else {}
    if data is not None:
        options[form.DATA_FOLDER] = str(data)
        if model.contexts:
            # QNN 2.7.0 and OpenVINO 1.8.1 otherwise look for them in the data's folder.
            options[form.CONTEXT_FILE] = model.file
    return options


def _origin(group: BuiltGroup, models: Sequence[BuiltModel]) -> Json:
    """Origin of a variant, taken from the lock."""
    names = [model.name for model in models]
    others = dict.fromkeys(name for model in models for name in model.others)
    sessions = [s for s in group.locked.session_groups.values() if set(names) & set(s.models)]
    origin: dict[str, Json] = {
        "target": group.target,
        "group": group.name,
        "keys": list[Json](session.key for session in sessions),
        "models": {name: _source(group.locked.models[name]) for name in names},
    }
    return origin | ({"other_execution_providers": list[Json](others)} if others else {})


def _source(model: LockedModel) -> Json:
    encoded: Json = msgspec.to_builtins(model)
    return encoded


def _provenance(groups: Sequence[BuiltGroup], lock: Lock, assets: Mapping[str, Digest]) -> Json:
    """Provenance of the build, taken from the lock, with the sources of packaged groups only."""
    models = [model for group in groups for model in group.locked.models.values()]
    used_sources = {path for model in models for path in (model.source, *model.data.values())}
    asset_digests: dict[str, Json] = {name: str(hashed) for name, hashed in assets.items()}
    left_out: list[Json] = [*lock.compositions]
    providers: Json = msgspec.to_builtins(lock.execution_providers)
    return {
        "epctx": {
            "manifest": lock.name,
            "toolchain": dict(lock.toolchain),
            "execution_providers": providers,
            "sources": {
                path: {"digest": source.digest, "size": source.size}
                for path, source in lock.sources.items()
                if path in used_sources
            },
            **({"assets": asset_digests} if asset_digests else {}),
            **({"left_out": left_out} if left_out else {}),
        }
    }


class Derived(Struct, frozen=True, kw_only=True):
    """Package that follows from a lock.

    Attributes:
        groups: groups of the variants, in order.
        package: content of manifest.json.
        items: every file, by its path in the package, with `/`.
        saved: bytes saved because variants share files.
    """

    groups: Sequence[BuiltGroup]
    package: Package
    items: Mapping[str, Item]
    saved: int


def package_settings(lock: Lock, *, where: str) -> LockedPackage:
    """Return the package's entry in the lock.

    Raises:
        LockError: the lock has no entry for a package.
    """
    if lock.package is None:
        raise LockError(
            "has no entry for a package",
            file=where,
            why="an older epctx wrote it, or nothing is packaged",
            remedy="write it again with `epctx build`; `package.groups` names the packaged groups",
            code=Code.LOCK_DIFFERS,
        )
    return lock.package


def needed(lock: Lock, package: LockedPackage) -> Iterator[tuple[str, LockedFile]]:
    """Yield every file of the package: its name in messages, and its lock entry."""
    for variant in package.variants:
        outputs = {**lock.groups[variant.group].outputs, **variant.files}
        yield from ((f"{variant.group}/{name}", file) for name, file in sorted(outputs.items()))
    for asset, files in sorted(package.assets.items()):
        yield from ((f"{asset}/{name}", file) for name, file in sorted(files.items()))


def derive(lock: Lock, package: LockedPackage, items: Mapping[Digest, Item]) -> Derived:
    """Derive the package that a lock describes.

    Args:
        package: entry of the package in the lock.
        items: files by SHA-256, including all files of `needed`.

    Raises:
        ModelError: a model cannot be read.
    """
    groups = [built_group(lock, package, each, items) for each in package.variants]
    assets = {
        name: {path: items[Digest("sha256", file.sha256)] for path, file in files.items()}
        for name, files in package.assets.items()
    }
    apart = package.component is not None
    arranged = arrange(groups, assets.values(), apart=apart)
    hashed = {name: items_.digest_of(files) for name, files in assets.items()}
    described = describe(lock, package, groups, arranged, hashed)
    all_items = {**arranged.items, MANIFEST: items_.made(form.encode(described))}
    lines = (f"{all_items[path].sha256.hex}  {path}\n" for path in sorted(all_items))
    sums = items_.made("".join(lines).encode())
    return Derived(
        groups=groups, package=described, items={**all_items, SUMS: sums}, saved=arranged.saved
    )
