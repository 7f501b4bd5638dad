"""Writes the model package of a build: whole or not at all, the same bytes each time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from epctx.cache.digests import FileDigests
from epctx.commands.package import contents, describing, finding, form, variants
from epctx.commands.package import items as items_
from epctx.commands.package.contents import Contents
from epctx.commands.package.form import MANIFEST, Package
from epctx.commands.package.items import Item
from epctx.commands.package.report import PackagedVariant, PackageReport
from epctx.commands.package.variants import BuiltGroup
from epctx.engine.output.place import Place
from epctx.engine.report import BuildReport
from epctx.errors import StorageError, UsageError
from epctx.files import digest, hashing, outputs
from epctx.files.digest import Digest
from epctx.lockfile.types import Lock
from epctx.manifest import GENAI_CONFIG, Manifest

_AGAIN = "run the command again, and let nothing else write there meanwhile"


def write(
    manifest: Manifest,
    report: BuildReport,
    place: Place,
    *,
    digests: FileDigests,
    waiting: Callable[[], None],
) -> PackageReport:
    """Write the package of a build beside it, unless the same is there already.

    Args:
        report: of a whole successful build into `place`.
        digests: tells what the package that is there has in it.
        waiting: called once if a build holds the output.

    Raises:
        UsageError: none of the groups that are to be packaged was built.
        ModelError: a file of `package` cannot be read.
        ProviderUnavailable: an EP is not installed.
        StorageError: the disk refuses, or something changed files meanwhile.
    """
    with place.locked(waiting):
        groups, package, arranged, items = _made(manifest, report, place)
        same = _is_there(place.package, items, digests)
        if not same:
            _stage(items, place.staged_package)
            place.publish_package()
    return PackageReport(
        path=place.package.name,
        state="up to date" if same else "written",
        files=len(items),
        size=sum(item.size for item in items.values()),
        saved=arranged.saved,
        variants=tuple(_variants(package, groups)),
        build=report,
    )


def refuse_in_the_way(manifest: Manifest, place: Place) -> None:
    """Nothing that is needed lies where the package replaces everything; look before a build.

    Raises:
        UsageError: an input of it does, or what is there is no package; nothing was changed.
    """
    settings = manifest.package
    inputs = [model.path for t in manifest.targets for g in t.groups for model in g.models]
    inputs += [*settings.assets.values(), *settings.files.values()]
    for path in dict.fromkeys(inputs):
        if any(each.is_relative_to(place.package) for each in (path, path.resolve())):
            raise UsageError(
                "is needed for the package, and lies where the package replaces everything",
                file=str(path),
                remedy="move it, or give another folder with --out",
            )
    if place.package.exists() and not finding.is_package(place.package):
        raise UsageError(
            "is no model package, and lies where one is to go",
            file=str(place.package),
            remedy="move it, or give another folder with --out",
        )


def _made(
    manifest: Manifest, report: BuildReport, place: Place
) -> tuple[Sequence[BuiltGroup], Package, Contents, Mapping[str, Item]]:
    lock = report.lock
    groups = _groups(manifest, report, lock, place) if lock is not None else []
    if lock is None or not groups:
        raise UsageError(
            "nothing was built that could be packaged",
            file=manifest.path.name,
            remedy="name groups in `package.groups` that a target builds",
        )
    files = {name: contents.asset(path) for name, path in manifest.package.assets.items()}
    assets = {name: contents.hash_of(held) for name, held in files.items()}

    def extra(group: BuiltGroup) -> dict[str, Item]:
        return _extra(manifest, group, assets)

    arranged = contents.arrange(groups, extra, files.values())
    package = describing.describe(manifest, groups, arranged, lock, assets)
    items = {**arranged.items, MANIFEST: items_.made(form.encode(package))}
    lines = (f"{items[path].sha256.hex}  {path}\n" for path in sorted(items))
    sums = items_.made("".join(lines).encode())
    return groups, package, arranged, {**items, outputs.SUMS: sums}


def _groups(manifest: Manifest, report: BuildReport, lock: Lock, place: Place) -> list[BuiltGroup]:
    reports = {(group.target, group.group): group for group in report.groups}
    return [
        variants.of_group(
            group,
            reports[target.name, group.name],
            lock.groups[f"{target.name}/{group.name}"],
            place.group(target.name, group.name),
        )
        for target in manifest.targets
        for group in target.groups
        if manifest.package.holds(group.name)
    ]


def _extra(manifest: Manifest, group: BuiltGroup, assets: Mapping[str, Digest]) -> dict[str, Item]:
    """The manifest's files for a variant; genai's configuration is told where the tokenizer is."""
    settings = manifest.package
    made = {}
    for name in settings.files:
        path = settings.file(name, target=group.target, group=group.name)
        made[name] = items_.found(path)
        tokenizer = settings.genai.tokenizer if settings.genai is not None else None
        if name == GENAI_CONFIG and tokenizer is not None:
            config = json.loads(path.read_text(encoding="utf-8"))
            config["model"]["tokenizer_dir"] = str(assets[tokenizer])
            text = json.dumps(config, indent=4, ensure_ascii=False)
            made[name] = items_.made(f"{text}\n".encode())
    return made


def _variants(package: Package, groups: Sequence[BuiltGroup]) -> list[PackagedVariant]:
    foreign = {model.ep for group in groups for model in group.models if not model.native}
    return [
        PackagedVariant(
            component=component,
            variant=name,
            ep=variant.ep or "",
            device=variant.device,
            folder=variant.variant_directory or name,
            compatibility=variant.compatibility_string,
            native=variant.ep not in foreign,
        )
        for component, body in package.components.items()
        if not isinstance(body, str)
        for name, variant in body.variants.items()
    ]


def _is_there(folder: Path, items: Mapping[str, Item], digests: FileDigests) -> bool:
    """Whether a folder holds just these files."""
    if not folder.is_dir() or folder.is_symlink():
        return False
    try:
        held = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
        files = {name: path for name, path in held.items() if path.is_symlink() or path.is_file()}
        return files.keys() == items.keys() and all(
            not path.is_symlink() and digests.of(path) == items[name].blake3
            for name, path in files.items()
        )
    except OSError:
        return False


def _stage(items: Mapping[str, Item], folder: Path) -> None:
    """Copy every file, and hold what was copied to what it must be."""
    folders = {folder / Path(name).parent for name in items}
    with outputs.writing(folder):
        for each in sorted(folders):
            each.mkdir(parents=True, exist_ok=True)
    hashing.of_each(lambda name: _copy(items[name], folder / name), items)
    for each in sorted(folders, reverse=True):
        outputs.sync_folder(each)


def _copy(item: Item, path: Path) -> None:
    if item.source is None:
        outputs.write(path, [item.content])
        return
    with (
        StorageError.if_refused("cannot be read", file=item.source.as_posix(), remedy=_AGAIN),
        item.source.open("rb", buffering=0) as stream,
    ):
        written = outputs.write(path, iter(lambda: stream.read(digest.CHUNK), b""))
    if written.sha256 != item.sha256:
        raise StorageError(
            "changed while it was packaged", file=item.source.as_posix(), remedy=_AGAIN
        )
