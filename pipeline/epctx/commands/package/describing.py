"""The manifest of a package: components and variants of what was built, and where it comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from epctx.commands.package import form
from epctx.commands.package.contents import Contents
from epctx.commands.package.form import Component, ExecutorInfo, Json, OrtInfo, Package, Variant
from epctx.commands.package.variants import BuiltGroup, BuiltModel
from epctx.files.digest import Digest
from epctx.lockfile.types import Lock, LockedModel, LockedPackage
from epctx.manifest import DEFAULT_EP


def describe(
    lock: Lock,
    settings: LockedPackage,
    groups: Sequence[BuiltGroup],
    contents: Contents,
    assets: Mapping[str, Digest],
) -> Package:
    """The manifest of a package.

    Args:
        lock: of the build.
        settings: what it says of the package.
        groups: what was built, in the order of the variants.
        contents: where it goes; `folders` are those of `groups`.
        assets: the assets of the manifest, by name.
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
    """The component of each (group, model): the model's name, unless several groups hold it."""
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
    """The one component of genai: a variant has all models of the group.

    Their sessions are made by genai, out of its own configuration; a group of one model can be
    opened by ONNX Runtime alone, too.
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
    """A variant with some models of a group, by the `first` of which it is selected."""
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
            # QNN 2.7.0 and OpenVINO 1.8.1 look for them in the folder of the data otherwise.
            options[form.CONTEXT_FILE] = model.file
    return options


def _origin(group: BuiltGroup, models: Sequence[BuiltModel]) -> Json:
    """What a variant was made from, as the lock tells it."""
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
    found: Json = msgspec.to_builtins(model)
    return found


def _provenance(groups: Sequence[BuiltGroup], lock: Lock, assets: Mapping[str, Digest]) -> Json:
    """What the lock says of the whole build; of the sources, those of what is packaged."""
    models = [model for group in groups for model in group.locked.models.values()]
    used = {path for model in models for path in (model.source, *model.data.values())}
    named: dict[str, Json] = {name: str(hashed) for name, hashed in assets.items()}
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
                if path in used
            },
            **({"assets": named} if named else {}),
            **({"left_out": left_out} if left_out else {}),
        }
    }
