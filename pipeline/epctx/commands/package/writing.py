"""`epctx package`: build, and write the package beside the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from epctx import lockfile
from epctx.cache.digests import FileDigests, FreshDigests
from epctx.cache.store import Shared
from epctx.commands import build
from epctx.commands.package import contents, form
from epctx.commands.package.contents import BuiltGroup, Derived
from epctx.commands.package.form import Package
from epctx.engine.events import Event, Listener
from epctx.engine.lock import packaged
from epctx.engine.options import BuildOptions, ReleaseOptions
from epctx.engine.output import record
from epctx.engine.output.place import OutputPaths
from epctx.engine.plan import Plan
from epctx.engine.progress import Events
from epctx.engine.release import Releasing
from epctx.engine.report import BuildReport
from epctx.error_codes import Code
from epctx.errors import EpctxError, StorageError, UsageError
from epctx.files import atomic, digest, hashing, outputs
from epctx.files.digest import Digest
from epctx.files.items import Item
from epctx.files.outputs import SIGNATURE
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock
from epctx.manifest import Manifest
from epctx.oci import artifact
from epctx.oci.artifact import Blob
from epctx.signing import oms
from epctx.signing.keys import Signer
from epctx.text import Brief
from epctx.worker.pool import Pool


class PackagedVariant(Struct, frozen=True, kw_only=True):
    """Variant of a component.

    Attributes:
        ep: ONNX Runtime's name of the EP for which the variant is selected.
        device: cpu, gpu or npu; None for any device of the EP.
        folder: folder in the package, which several variants may share.
        compatibility: compatibility string that the EP checks; None without one.
        native: True if ONNX Runtime can run the variant; else only `epctx.runtime` can.
    """

    component: str
    variant: str
    ep: str
    device: str | None
    folder: str
    compatibility: str | None
    native: bool


class PackageReport(Brief, frozen=True, kw_only=True):
    """Package written by `epctx package`.

    Attributes:
        path: folder of the package, relative to the output folder.
        state: `written`, or `up to date` if the same package existed already.
        files: number of files.
        size: total size of the files, in bytes.
        saved: bytes saved because variants share files.
        oci: digest of the OCI manifest that `epctx push` makes for the package, `sha256:…`.
        variants: variants by component, in the order in which ONNX Runtime tries them.
        signer: signer of `model.sig`; None if no signature was requested.
        build: report of the build that was packaged.
        left_out: compositions of the build, `<target>/<name>`; packages cannot contain them.
    """

    path: str
    state: Literal["written", "up to date"]
    files: int
    size: int
    saved: int
    oci: str
    variants: tuple[PackagedVariant, ...]
    signer: str | None = None
    build: BuildReport
    left_out: tuple[str, ...] = ()


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
    release_options: ReleaseOptions,
) -> PackageReport:
    """Write the package of a build beside it, unless it is up to date; sign it if requested.

    Args:
        report: report of a complete, successful build into `place`.
        lock: lock that the build used or wrote; it determines the package.
        digests: file digests, to compare an existing package.
        signer: signs the package; None for no signature.
        waiting: called once if another command uses the output.
        releasing: makes the release files that follow from the package.
        release_options: release files that are requested.

    Raises:
        LockError: the lock has no package, or another one.
        ModelError: a file of `package` cannot be read.
        StorageError: files cannot be written, or were changed meanwhile.
    """
    with place.locked(waiting):
        derived = _derived(manifest, report, lock, place)
        items = derived.items
        blobs = {name: Blob(digest=item.sha256, size=item.size) for name, item in items.items()}
        pushed = artifact.package(blobs, name=derived.package.package_name).digest
        releasing.refuse_other(pushed)
        up_to_date = _holds(place.package, items, digests)
        if not up_to_date:
            _stage(items, place.staged_package)
            _sign(signer, items, place, place.staged_package)
            place.publish_package()
        else:
            _sign(signer, items, place, place.package)
        record.add(place, manifest.path, place.package.name, record.of_package(place), lock)
        report = releasing.package(release_options, report, pushed)
    return PackageReport(
        path=place.package.name,
        state="up to date" if up_to_date else "written",
        files=len(items),
        size=sum(item.size for item in items.values()),
        saved=derived.saved,
        oci=str(pushed),
        variants=tuple(_variants(derived.package, derived.groups)),
        signer=None if signer is None else signer.name,
        build=report,
        left_out=tuple(
            f"{each.target}/{each.group}" for each in report.groups if each.composition is not None
        ),
    )


def refuse_in_the_way(manifest: Manifest, place: OutputPaths) -> None:
    """Refuse to replace inputs or foreign files by the package; called before a build.

    Raises:
        UsageError: an input lies in the package's folder, or the existing folder is not a package.
    """
    settings = manifest.package
    inputs = [model.path for t in manifest.targets for g in t.groups for model in g.models]
    inputs += [*settings.assets.values(), *settings.files.values()]
    for path in dict.fromkeys(inputs):
        if any(each.is_relative_to(place.package) for each in (path, path.resolve())):
            raise UsageError(
                "is an input of the package, but lies in the folder that the package replaces",
                file=str(path),
                remedy="move it, or give another folder with --out",
                code=Code.IN_THE_WAY,
            )
    if place.package.exists() and not form.is_package(place.package):
        raise UsageError(
            "exists and is not a model package, so no package replaces it",
            file=str(place.package),
            remedy="move it, or give another folder with --out",
            code=Code.IN_THE_WAY,
        )


def _derived(manifest: Manifest, report: BuildReport, lock: Lock, place: OutputPaths) -> Derived:
    """Derive the package from the lock, the build's outputs and the manifest's own files."""
    package = contents.package_settings(lock, where=lockfile.place(manifest.path).name)
    brought = packaged.brought(manifest)
    brought_items = [item for files in brought.files.values() for item in files.values()]
    brought_items += [item for files in brought.assets.values() for item in files.values()]
    built_items = [
        Item(
            size=file.size,
            sha256=file.sha256,
            blake3=file.blake3,
            source=place.group(group.target, group.group) / file.name,
        )
        for group in report.groups
        for file in group.files
    ]
    available = {item.sha256: item for item in (*brought_items, *built_items)}
    for name, file in contents.needed(lock, package):
        if Digest("sha256", file.sha256) not in available:
            raise StorageError("changed while it was packaged", file=name, remedy=_AGAIN)
    return contents.derive(lock, package, available)


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


def _holds(folder: Path, items: Mapping[str, Item], digests: FileDigests) -> bool:
    """Tell whether a folder holds exactly these files."""
    if not folder.is_dir() or folder.is_symlink():
        return False
    try:
        entries = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
        files = {
            name: path for name, path in entries.items() if path.is_symlink() or path.is_file()
        }
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
    """Copy every file, and check the digest of each copy."""
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
        copied = outputs.write(path, iter(lambda: stream.read(digest.CHUNK), b""))
    if copied.sha256 != item.sha256:
        raise StorageError(
            "changed while it was packaged", file=item.source.as_posix(), remedy=_AGAIN
        )


class Packaging(Struct, frozen=True, kw_only=True):
    """Outcome of a build with a package. `package` is None if the build failed."""

    build: BuildReport
    package: PackageReport | None = None


def run(
    manifest: Path,
    options: BuildOptions,
    *,
    cached: bool,
    allow_outside: bool,
    listener: Listener,
    shared: Shared | None = None,
    signer: Signer | None = None,
) -> tuple[Packaging, EpctxError | None]:
    """Build a whole manifest, and write its package beside it.

    Returns the outcome, and the build's first failure in manifest order. The arguments are those of
    `commands.build.run`; `signer` signs the package. An existing package stays if the build fails.

    Raises:
        EpctxError: raised by `commands.build.run`, `refuse_in_the_way` or `write`.
    """
    result = build.run(
        manifest,
        options,
        listener=listener,
        cached=cached,
        shared=shared,
        allow_outside=allow_outside,
        refuse=lambda plan: refuse_in_the_way(plan.manifest, _place(options.out, plan)),
    )
    if result.failure is not None:
        return Packaging(build=result.report), result.failure

    def waiting() -> None:
        what = "another command uses the output"
        listener(Event(group=result.plan.manifest.name, state="waiting", detail=what))

    assert result.report.lock is not None
    # Read the lock file, because later checks compare the package with it.
    lock = hosts.on(lockfile.read(lockfile.place(manifest)), hosts.kind(result.report.lock))
    place = _place(options.out, result.plan)
    releasing = Releasing(
        result.plan,
        place,
        Events(listener),
        lock,
        executors=Pool,
        locked=options.locked,
        signers=result.cache.signers if result.cache is not None else {},
    )
    package = write(
        result.plan.manifest,
        result.report,
        lock,
        place,
        digests=result.cache.digests
        if result.cache is not None and not options.locked
        else FreshDigests(),
        signer=signer,
        waiting=waiting,
        releasing=releasing,
        release_options=options.release,
    )
    return Packaging(build=result.report, package=package), None


def _place(out: Path, plan: Plan) -> OutputPaths:
    return OutputPaths(out=out.resolve(), name=plan.manifest.name)
