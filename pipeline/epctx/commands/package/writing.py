"""Writes the model package of a build: whole or not at all, the same bytes each time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from epctx import lockfile
from epctx.cache.digests import FileDigests
from epctx.commands.package import derived, finding
from epctx.commands.package.derived import Derived
from epctx.commands.package.form import Package
from epctx.commands.package.report import PackagedVariant, PackageReport
from epctx.commands.package.variants import BuiltGroup
from epctx.engine.lock import packaged
from epctx.engine.options import ReleaseOptions
from epctx.engine.output import record
from epctx.engine.output.place import OutputPaths
from epctx.engine.release import Releasing
from epctx.engine.report import BuildReport
from epctx.error_codes import Code
from epctx.errors import StorageError, UsageError
from epctx.files import atomic, digest, hashing, outputs
from epctx.files.digest import Digest
from epctx.files.items import Item
from epctx.files.outputs import SIGNATURE
from epctx.lockfile.types import Lock
from epctx.manifest import Manifest
from epctx.oci import artifact
from epctx.oci.artifact import Blob
from epctx.signing import oms
from epctx.signing.keys import Signer

_AGAIN = "run the command again, and let nothing else write there meanwhile"


def write(
    manifest: Manifest,
    report: BuildReport,
    lock: Lock,
    place: OutputPaths,
    *,
    digests: FileDigests,
    signer: Signer | None,
    waiting: Callable[[], None],
    releasing: Releasing,
    asked: ReleaseOptions,
) -> PackageReport:
    """Write the package of a build beside it, unless the same is there already; perhaps sign it.

    Args:
        report: of a whole successful build into `place`.
        lock: that the build was held to, or that it wrote: the package follows from it.
        digests: tells what the package that is there has in it.
        waiting: called once if another command uses the output.
        releasing: makes what follows from the package.
        asked: what of it is asked for.

    Raises:
        LockError: the lock says nothing of a package, or of another one.
        ModelError: a file of `package` cannot be read.
        StorageError: the disk refuses, or something changed files meanwhile.
    """
    with place.locked(waiting):
        made = _derived(manifest, report, lock, place)
        items = made.items
        blobs = {name: Blob(digest=item.sha256, size=item.size) for name, item in items.items()}
        pushed = artifact.package(blobs, name=made.package.package_name).digest
        releasing.refuse_other(pushed)
        same = _is_there(place.package, items, digests)
        if not same:
            _stage(items, place.staged_package)
            _sign(signer, items, place, place.staged_package)
            place.publish_package()
        else:
            _sign(signer, items, place, place.package)
        record.add(place, manifest.path, place.package.name, record.of_package(place), lock)
        report = releasing.package(asked, report, pushed)
    return PackageReport(
        path=place.package.name,
        state="up to date" if same else "written",
        files=len(items),
        size=sum(item.size for item in items.values()),
        saved=made.saved,
        oci=str(pushed),
        variants=tuple(_variants(made.package, made.groups)),
        signer=None if signer is None else signer.name,
        build=report,
        left_out=tuple(
            f"{each.target}/{each.group}" for each in report.groups if each.composition is not None
        ),
    )


def refuse_in_the_way(manifest: Manifest, place: OutputPaths) -> None:
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
                code=Code.IN_THE_WAY,
            )
    if place.package.exists() and not finding.is_package(place.package):
        raise UsageError(
            "is no model package, and lies where one is to go",
            file=str(place.package),
            remedy="move it, or give another folder with --out",
            code=Code.IN_THE_WAY,
        )


def _derived(manifest: Manifest, report: BuildReport, lock: Lock, place: OutputPaths) -> Derived:
    """The package that follows from the lock, of what was built and of the manifest's own files."""
    package = derived.settings(lock, where=lockfile.place(manifest.path).name)
    brought = packaged.brought(manifest)
    own = [item for files in brought.files.values() for item in files.values()]
    own += [item for files in brought.assets.values() for item in files.values()]
    built = [
        Item(
            size=file.size,
            sha256=file.sha256,
            blake3=file.blake3,
            source=place.group(group.target, group.group) / file.name,
        )
        for group in report.groups
        for file in group.files
    ]
    known = {item.sha256: item for item in (*own, *built)}
    for name, file in derived.needed(lock, package):
        if Digest("sha256", file.sha256) not in known:
            raise StorageError("changed while it was packaged", file=name, remedy=_AGAIN)
    return derived.derive(lock, package, known)


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
        files.pop(SIGNATURE, None)
        return files.keys() == items.keys() and all(
            not path.is_symlink() and digests.of(path) == items[name].blake3
            for name, path in files.items()
        )
    except OSError:
        return False


def _sign(
    signer: Signer | None, items: Mapping[str, Item], place: OutputPaths, folder: Path
) -> None:
    if signer is not None:
        files = {name: item.sha256.hex for name, item in items.items()}
        atomic.replace(folder / SIGNATURE, oms.sign(signer, place.package.name, files))


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
