"""Package part of the lock: everything that does not follow from the groups' outputs.

`epctx build` always writes it, with or without a package. So the lock is a function of the manifest
and the toolchain, and every byte of the package follows from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field

from epctx.engine.lock import genai
from epctx.files import items
from epctx.files.items import Item
from epctx.keys import Toolchain
from epctx.lockfile.types import LockedFile, LockedPackage, LockedRuntime, LockedVariant
from epctx.manifest import GENAI_CONFIG, Manifest, ModelGroup, PackageSettings, ProviderSpec
from epctx.parsing import genai as genai_folder
from epctx.providers import registry


class Brought(Struct, frozen=True, kw_only=True):
    """The manifest's own files for a package.

    Attributes:
        assets: files by asset name and path in the asset.
        files: files beside a group's models, by `<target>/<group>` and name.
    """

    assets: Mapping[str, Mapping[str, Item]]
    files: Mapping[str, Mapping[str, Item]]


def brought(manifest: Manifest) -> Brought:
    """Read the manifest's own files.

    Raises:
        ModelError: one cannot be read.
        ManifestError: onnxruntime-genai cannot run the models of a group in the place of
            `package.genai.source`.
        ProviderUnavailable: an EP of such a group is not installed.
    """
    settings = manifest.package
    assets = {name: items.below(path) for name, path in settings.assets.items()}
    return Brought(
        assets=assets,
        files={
            f"{target}/{group.name}": _beside(settings, assets, target, group)
            for target, group in _packaged(manifest)
        },
    )


def paths(manifest: Manifest) -> Iterator[Path]:
    """The manifest's own files and folders for a package."""
    settings = manifest.package
    yield from settings.assets.values()
    if settings.genai is not None and settings.genai.source is not None:
        yield from genai_folder.beside(settings.genai.source)
    for target, group in _packaged(manifest):
        for name in settings.files:
            yield settings.file(name, target=target, group=group.name)


def require(manifest: Manifest) -> None:
    """Refuse a `package.genai.source` that the groups do not fit, before anything is compiled.

    Raises:
        ModelError, ManifestError, ProviderUnavailable: as `brought`.
    """
    for _, group in _packaged(manifest):
        _of_source(manifest.package, group)


def locked(manifest: Manifest, toolchain: Toolchain) -> LockedPackage | None:
    """Return the package part of the lock; None if nothing is packaged.

    Raises:
        ModelError: a file of the manifest's `package` cannot be read.
        ProviderUnavailable: an EP is not installed.
        ManifestError: an EP refuses its options.
    """
    settings = manifest.package
    own = brought(manifest)
    runtimes = _Runtimes(toolchain)
    variants = tuple(
        LockedVariant(
            execution_providers=runtimes.of(group),
            files=_locked(own.files[f"{target}/{group.name}"]),
            group=f"{target}/{group.name}",
            models=tuple(model.name for model in group.models),
        )
        for target, group in _packaged(manifest)
    )
    if not variants:
        return None
    return LockedPackage(
        assets={name: _locked(files) for name, files in own.assets.items()},
        component=None if settings.genai is None else settings.genai.component,
        description=settings.description,
        execution_providers=runtimes.known,
        variants=variants,
        version=settings.version,
    )


def _packaged(manifest: Manifest) -> Iterator[tuple[str, ModelGroup]]:
    for target in manifest.targets:
        for group in target.groups:
            if manifest.package.holds(group.name):
                yield target.name, group


def _locked(files: Mapping[str, Item]) -> dict[str, LockedFile]:
    return {
        name: LockedFile(sha256=item.sha256.hex, size=item.size) for name, item in files.items()
    }


def _beside(
    settings: PackageSettings,
    assets: Mapping[str, Mapping[str, Item]],
    target: str,
    group: ModelGroup,
) -> dict[str, Item]:
    """Return the files beside the models of a variant; `files` replace those made from a source."""
    files = _of_source(settings, group)
    for name in settings.files:
        path = settings.file(name, target=target, group=group.name)
        files[name] = items.found(path)
        tokenizer = settings.genai.tokenizer if settings.genai is not None else None
        if name == GENAI_CONFIG and tokenizer is not None:
            config = json.loads(path.read_text(encoding="utf-8"))
            config["model"]["tokenizer_dir"] = str(items.digest_of(assets[tokenizer]))
            text = json.dumps(config, indent=4, ensure_ascii=False)
            files[name] = items.made(f"{text}\n".encode())
    return files


def _of_source(settings: PackageSettings, group: ModelGroup) -> dict[str, Item]:
    """Return the files that are made from `package.genai.source`; empty without one."""
    if settings.genai is None or settings.genai.source is None:
        return {}
    eps = [registry.create(spec) for spec in group.execution_providers]
    options = {ep.name: ep.inference_options() for ep in eps if ep.native}
    return genai.files(settings.genai.source, group, options)


class _Runtimes(Struct):
    """Runtime entries of EPs by unique name; equal entries have one name."""

    toolchain: Toolchain
    known: dict[str, LockedRuntime] = field(default_factory=dict)

    def of(self, group: ModelGroup) -> tuple[str, ...]:
        """Return the names of the entries of a group's EPs, in priority order."""
        return tuple(map(self._name, group.execution_providers))

    def _name(self, spec: ProviderSpec) -> str:
        traits = self.toolchain.traits(spec)
        runtime = LockedRuntime(
            device=traits.device,
            native=traits.native,
            options=dict(traits.inference_options),
            sources=traits.sources,
        )
        number, name = 1, traits.name
        while self.known.setdefault(name, runtime) != runtime:
            number += 1
            name = f"{traits.name}#{number}"
        return name
