"""Differences between two locks in words, causes before effects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from epctx.keys.records import Change, between
from epctx.lockfile.types import (
    Lock,
    LockedComposition,
    LockedFile,
    LockedGroup,
    LockedModel,
    LockedPackage,
    LockedToolchain,
)

T = TypeVar("T")
_OWN = "epctx/"
"""Prefix of an action's name in a lock's toolchain, for the digest of its sources."""
_EPCTX = "epctx blake3:"
"""Prefix of the code digest of an EP of epctx."""
Kind = Literal["toolchain", "host", "source", "setting", "code", "key", "output"]


class Difference(Struct, frozen=True, kw_only=True):
    """One difference.

    Attributes:
        kind: `toolchain`, `host` (a fact that an EP's bytes depend on), `source` and `setting` are
            causes; `output` is an effect. `code` (of epctx, within one version) and `key` (of an
            action) are listed only if no cause is.
        where: the source, EP, group, or file of a group.
        what: the old and the new value, in words.
    """

    kind: Kind
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def between_locks(old: Lock, new: Lock) -> tuple[Difference, ...]:
    """Return all differences that can change bytes, and those of the outputs.

    Two things do not count as causes: a CPU that no EP depends on, and epctx's own code within one
    version. Changed code causes a build, and is listed only if the outputs differ. So a lock stays
    valid through all commits that change no byte.
    """
    causes = causes_between(old, new)
    outputs = tuple(_outputs(old, new))
    if causes:
        return causes + outputs
    code = tuple(_own_code(old, new))
    if code:
        return code + outputs if outputs else ()
    return (*_keys(old, new), *outputs)


def causes_between(old: Lock, new: Lock) -> tuple[Difference, ...]:
    """Return the differences of sources, toolchain, host and settings, without outputs."""
    return (
        *_toolchains(old, new),
        *_sources(old, new),
        *_ranges(old, new),
        *_settings(old, new),
    )


def part_of(lock: Lock, groups: Collection[str], compositions: Collection[str]) -> Lock:
    """Return the part of a lock about some groups and compositions, their sources and EPs."""
    locked_groups = {name: group for name, group in lock.groups.items() if name in groups}
    providers = {p.provider for group in locked_groups.values() for p in group.execution_providers}
    models = [model for group in locked_groups.values() for model in group.models.values()]
    sources = {path for model in models for path in (model.source, *model.data.values())}
    quantized = [group.quantize for group in locked_groups.values() if group.quantize is not None]
    sources |= {path for settings in quantized for path in settings["samples"]}
    return replace(
        lock,
        groups=locked_groups,
        compositions=_only(lock.compositions, compositions),
        execution_providers=_only(lock.execution_providers, providers),
        golden=_only(lock.golden, {*groups, *compositions}),
        oci={},
        package=None,
        sources=_only(lock.sources, sources),
    )


def _only(values: Mapping[str, T], names: Collection[str]) -> dict[str, T]:
    return {name: value for name, value in values.items() if name in names}


def _own_code(old: Lock, new: Lock) -> Iterator[Difference]:
    """Yield differences of epctx's own sources, and of its EPs."""
    for name, one, other in _both(old.toolchain, new.toolchain):
        if name.startswith(_OWN) and one != other:
            yield Difference(kind="code", where="toolchain", what=f"{name} has changed")
    for name, before, after in _both(old.execution_providers, new.execution_providers):
        if before is not None and after is not None and before.code != after.code:
            yield Difference(kind="code", where=name, what="its code has changed")


def _others(toolchain: LockedToolchain) -> Mapping[str, object]:
    """Return an EP's toolchain; without its code, if it is an EP of epctx."""
    code = "epctx" if toolchain.code.startswith(_EPCTX) else toolchain.code
    return {"code": code, **toolchain.toolchain}


def _toolchains(old: Lock, new: Lock) -> Iterator[Difference]:
    libraries = (
        {name: version for name, version in lock.toolchain.items() if not name.startswith(_OWN)}
        for lock in (old, new)
    )
    for change in between(*libraries):
        yield Difference(kind="toolchain", where="toolchain", what=_words(change))
    for name, before, after in _both(old.execution_providers, new.execution_providers):
        yield from _between("toolchain", name, before, after, _others, "used")
        for change in between(before.host, after.host) if before and after else ():
            what = f"made on another host: {_words(change)}"
            yield Difference(kind="host", where=name, what=what)


def _sources(old: Lock, new: Lock) -> Iterator[Difference]:
    for path, before, after in _both(old.sources, new.sources):
        if before == after:
            continue
        if before is None or after is None:
            what = "is a new source" if before is None else "is no longer a source"
        elif before.size != after.size:
            what = f"has other content: {before.size} bytes are now {after.size}"
        else:
            what = f"has other content of the same size, {after.size} bytes"
        yield Difference(kind="source", where=path, what=what)


def _ranges(old: Lock, new: Lock) -> Iterator[Difference]:
    what = file_difference(old.ranges, new.ranges)
    if what is not None:
        yield Difference(kind="source", where="the ranges of quantized models", what=what)


def _settings(old: Lock, new: Lock) -> Iterator[Difference]:
    for name, before, after in _both(old.groups, new.groups):
        yield from _between("setting", name, before, after, _plain_settings, "built")
    for name, one, other in _both(old.compositions, new.compositions):
        yield from _between("setting", name, one, other, _plain_composition, "composed")
    # A lock of an older epctx has no package part: this is not a difference.
    if old.package is not None and new.package is not None:
        yield from _between("setting", "package", old.package, new.package, _plain_package, "")


def _between(
    kind: Kind,
    name: str,
    old: T | None,
    new: T | None,
    plain: Callable[[T], Mapping[str, object]],
    done: str,
) -> Iterator[Difference]:
    """Yield the differences of two entries; `done` is what a build does with them."""
    if old is None or new is None:
        what = f"is {done} now" if old is None else f"is no longer {done}"
        yield Difference(kind=kind, where=name, what=what)
        return
    for change in between(plain(old), plain(new)):
        yield Difference(kind=kind, where=name, what=_words(change))


def _plain_composition(composition: LockedComposition) -> Mapping[str, object]:
    """Return the manifest's settings of a composition."""
    return {
        "outputs": composition.asked,
        "embed_mode": composition.embed_mode,
        "order": composition.order,
        "parts": composition.parts,
    }


def _plain_package(package: LockedPackage) -> Mapping[str, object]:
    """Return the parts of a package besides built files, and its EP entries."""
    return {
        "version": package.version,
        "description": package.description,
        "component": package.component,
        "assets": package.assets,
        "execution_providers": package.execution_providers,
        "variants": {variant.group: variant for variant in package.variants},
        "order": tuple(variant.group for variant in package.variants),
    }


def _plain_settings(group: LockedGroup) -> Mapping[str, object]:
    """Return the manifest's settings of a group."""
    return {
        "models": {name: _plain_model(model) for name, model in group.models.items()},
        "execution_providers": group.execution_providers,
        "embed_mode": group.embed_mode,
        "node_name_prefix": group.node_name_prefix,
        "optimize": group.optimize,
        "quantize": group.quantize,
        "passes": group.passes,
        "passes of other packages": group.passes_of_others,
        "partition": group.partition,
        "partition.pieces": group.asked_pieces,
        "session_options": group.session_options,
        "external_initializers": group.external_initializers,
        "session groups": {
            name: {"models": session.models, "sharing": session.sharing is not None}
            for name, session in group.session_groups.items()
        },
    }


def _plain_model(model: LockedModel) -> Mapping[str, object]:
    return {
        "source": model.source,
        "data": model.data,
        "dimensions": model.dimensions,
        "shapes": model.shapes,
    }


def _keys(old: Lock, new: Lock) -> Iterator[Difference]:
    for name, before, after in _both(old.groups, new.groups):
        if before is None or after is None:
            continue
        for change in between(_plain_keys(before), _plain_keys(after)):
            yield Difference(kind="key", where=name, what=f"the key of {_words(change)}")


def _plain_keys(group: LockedGroup) -> Mapping[str, object]:
    keys: dict[str, object] = {f"model {n}": model.key for n, model in group.models.items()}
    keys |= {f"optimized model {n}": model.optimized for n, model in group.models.items()}
    keys |= {f"calibration of model {n}": model.calibration for n, model in group.models.items()}
    keys |= {f"quantized model {n}": model.quantized for n, model in group.models.items()}
    keys |= {f"pieces of {name}": pieces.keys for name, pieces in group.pieces.items()}
    return keys | {f"session group {n}": s.key for n, s in group.session_groups.items()}


def _outputs(old: Lock, new: Lock) -> Iterator[Difference]:
    befores: dict[str, LockedGroup | LockedComposition] = {**old.compositions, **old.groups}
    afters: dict[str, LockedGroup | LockedComposition] = {**new.compositions, **new.groups}
    for name, before, after in _both(befores, afters):
        if before is None or after is None:
            continue
        for file, one, other in _both(before.outputs, after.outputs):
            what = file_difference(one, other)
            if what is not None:
                yield Difference(kind="output", where=f"{name}/{file}", what=what)


def file_difference(old: LockedFile | None, new: LockedFile | None) -> str | None:
    """Return the difference of a file in words; None if there is none."""
    if old == new:
        return None
    if old is None:
        return "is a new output"
    if new is None:
        return "is no longer an output"
    if old.size != new.size:
        return f"{old.size} bytes are now {new.size}"
    return f"has other content of the same size, {new.size} bytes"


def _both(old: Mapping[str, T], new: Mapping[str, T]) -> Iterator[tuple[str, T | None, T | None]]:
    """Yield the entries of both mappings by name; None if a mapping lacks one."""
    for name in sorted({*old, *new}):
        yield name, old.get(name), new.get(name)


def _words(change: Change) -> str:
    if change.field in ("", "code"):
        return "its code has changed"
    text = str(change)
    # A digest says nothing to people, only that it changed.
    if change.old is not None and change.new is not None and "blake3:" in change.new:
        return f"{change.field} has changed"
    return text
