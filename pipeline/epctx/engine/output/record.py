"""`dist/.<name>.record.json`: what the next build must know about the output folder.

The record names the manifest that the outputs came from, so that another manifest of the same name
does not overwrite them silently. It lists the digests of the files released beside the outputs, so
that epctx removes these files when the outputs change. epctx trusts it for nothing else: it removes
a file only from the places that `OutputPaths` names, and only if the file has a recorded digest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from epctx import codec, limits, lockfile
from epctx.engine.output.place import OutputPaths
from epctx.engine.state import CompositionState, GroupState
from epctx.error_codes import Code
from epctx.errors import EpctxError, ModelError, StorageError, UsageError
from epctx.files import atomic, digest, hashing, paths
from epctx.files.entries import discard, open_entry
from epctx.files.filenames import fold
from epctx.files.outputs import SIGNATURE, SUMS, OutputFile, sums, writing
from epctx.files.regular import open_regular
from epctx.lockfile.types import Lock, LockedFile
from epctx.parsing import document
from epctx.signing import oms
from epctx.signing.keys import Refused


class Record(Struct, frozen=True, kw_only=True):
    """Record of the outputs of one name.

    Attributes:
        manifest: path of the manifest from the output folder, with `/`; on Windows absolute if it
            is on another drive.
        released: archive, attestation and package beside `dist/<name>/`, by name; a package has the
            digest of its SHA256SUMS.
        of: outputs that the released files describe: SHA-256 of SHA256SUMS of each published
            folder, by `<target>/<group or composition>`.
    """

    manifest: str = ""
    released: Mapping[str, LockedFile] = field(default_factory=dict)
    of: Mapping[str, str] = field(default_factory=dict)


def read(place: OutputPaths) -> Record:
    """Read the record; return an empty one if there is none, or if it cannot be read."""
    try:
        with open_entry(place.record) as stream:
            return codec.decode(stream.read(limits.RECORD_BYTES.value), Record)
    except (OSError, msgspec.MsgspecError):
        return Record()


def write(
    place: OutputPaths, manifest: Path, released: Mapping[str, LockedFile], of: Mapping[str, str]
) -> None:
    """Write the record if it changes.

    Args:
        manifest: path of the manifest of the outputs.
        released, of: as in `Record`.

    Raises:
        StorageError: the system refuses.
    """
    new = Record(manifest=_relative(manifest, place.out), released=released, of=of)
    if new != read(place):
        atomic.replace(place.record, codec.encode(new, indent=2) + b"\n")


def add(place: OutputPaths, manifest: Path, name: str, file: LockedFile, lock: Lock) -> None:
    """Add a released file of the outputs of a lock. Raises StorageError as `write`."""
    folders = lock.folders.items()
    of = {folder: lockfile.sums_file(files).sha256 for folder, files in folders}
    write(place, manifest, {**read(place).released, name: file}, of)


def is_stale(recorded: Record, outputs: Mapping[str, Sequence[OutputFile]], *, whole: bool) -> bool:
    """Tell whether released files describe other outputs than the new ones.

    Args:
        outputs: files of each folder to publish, without SHA256SUMS.
        whole: whether there will be no other folder.
    """
    if not recorded.released:
        return False
    if whole and recorded.of.keys() != outputs.keys():
        return True
    return any(
        recorded.of.get(folder) != digest.of_bytes(sums(files), "sha256").hex
        for folder, files in outputs.items()
    )


def refuse_another_manifest(place: OutputPaths, manifest: Path) -> None:
    """Refuse outputs of another manifest with the same name that still exists.

    A moved manifest or a copied output folder is accepted, since then no manifest of that name lies
    at the recorded path.

    Raises:
        UsageError: another manifest of the same name has its outputs there; nothing was changed.
    """
    recorded = read(place)
    if not recorded.manifest:
        return
    other = Path(os.path.normpath(place.out / recorded.manifest))
    if _name(other) != fold(place.name) or _same(other, manifest):
        return
    raise UsageError(
        f"has the name of another manifest, {_shown(other)}, whose outputs are in {place.out}",
        file=manifest.as_posix(),
        why=f"both are called {place.name}: each would replace the outputs of the other",
        remedy="give one of them another `name`, or another folder with --out",
        code=Code.IN_THE_WAY,
    )


def refuse_edited(place: OutputPaths, released: Mapping[str, LockedFile]) -> None:
    """Refuse to remove released files that somebody changed.

    Raises:
        StorageError: a file was changed; nothing was removed.
    """
    for path, file in _there(place, released):
        if not _is(path, file):
            raise StorageError(
                "belongs to earlier outputs, and was changed since",
                file=path.as_posix(),
                why="this build replaces these outputs, and never removes a changed file",
                remedy="move or remove it, and build again",
                code=Code.OUTPUT_CHANGED,
            )


def remove(place: OutputPaths, released: Mapping[str, LockedFile]) -> list[str]:
    """Remove stale released files, and return their names.

    Raises:
        StorageError: the system refuses.
    """
    removed = []
    for path, _ in _there(place, released):
        with writing(path):
            discard(path)
        removed.append(path.name)
    return removed


def unknown(place: OutputPaths, released: Mapping[str, LockedFile]) -> list[str]:
    """List files that lie at the paths of releases, but are not in the record."""
    return [p.name for p in place.releases if os.path.lexists(p) and p.name not in released]


def of_package(place: OutputPaths) -> LockedFile:
    """Return the record's entry of a package.

    Raises:
        StorageError: it cannot be read.
    """
    path = place.package / SUMS
    with StorageError.if_refused("cannot be read", file=str(path), remedy="package it again"):
        return LockedFile(sha256=digest.of_file(path, "sha256").hex, size=path.stat().st_size)


def _there(
    place: OutputPaths, released: Mapping[str, LockedFile]
) -> Iterator[tuple[Path, LockedFile]]:
    for path in place.releases:
        if path.name in released and os.path.lexists(path):
            yield path, released[path.name]


def _is(path: Path, file: LockedFile) -> bool:
    try:
        if not path.is_dir():
            return _hash(path) == file.sha256
        names = [name for name in paths.entries(path) if name not in (SUMS, SIGNATURE)]
        digests = hashing.of_each(lambda name: digest.Digest("sha256", _hash(path / name)), names)
        return digest.of_folder(digests).hex == file.sha256
    except (OSError, ModelError):
        return False


def _hash(path: Path) -> str:
    _, descriptor = open_regular(path, where=path.name)
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        return digest.of_stream(stream, "sha256").hex


def _relative(path: Path, folder: Path) -> str:
    try:
        return Path(os.path.relpath(path.resolve(), folder)).as_posix()
    except ValueError:  # Windows: on another drive
        return path.resolve().as_posix()


def _shown(path: Path) -> str:
    try:
        return Path(os.path.relpath(path)).as_posix()
    except ValueError:
        return path.as_posix()


def _name(path: Path) -> str | None:
    """Return the name in a manifest, without case; None if the file is no manifest."""
    try:
        with open_entry(path) as stream:
            data = stream.read(limits.MANIFEST_BYTES.value + 1)
        name = document.parse(data, file=path.as_posix(), path=path).root.get("name")
    except (OSError, EpctxError):
        return None
    return None if name is None or name.string is None else fold(name.string)


def _same(one: Path, other: Path) -> bool:
    """Tell whether two paths are one manifest, or copies of one in checkouts that share outputs."""
    try:
        return one.samefile(other) or one.read_bytes() == other.read_bytes()
    except OSError:
        return False


def withdraw_signature(
    place: OutputPaths, outputs: Mapping[str, Sequence[OutputFile]], *, whole: bool
) -> bool:
    """Remove the signature of the outputs, unless it is valid for the new ones. Return whether it
    was removed.

    Args:
        outputs: files of each folder to publish, without SHA256SUMS.
        whole: whether there will be no other folder.

    Raises:
        StorageError: the system refuses.
    """
    try:
        with open_entry(place.signature) as stream:
            signed = oms.unverified_files(stream.read(limits.SIGNATURE_BYTES.value))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, Refused):
        signed = {}
    new = {
        f"{folder}/{file.name}": file.sha256.hex for folder, fs in outputs.items() for file in fs
    }
    folders = {name: "/".join(name.split("/")[:2]) for name in signed}
    old = {
        name: sha256
        for name, sha256 in signed.items()
        if folders[name] in outputs and Path(name).name != SUMS
    }
    if new == old and (not whole or {*folders.values()} == outputs.keys()):
        return False
    with writing(place.signature):
        discard(place.signature)
    return True


def withdraw(
    place: OutputPaths,
    manifest: Path,
    groups: Sequence[GroupState],
    composed: Sequence[CompositionState],
    notice: Callable[[str], None],
    *,
    whole: bool,
) -> None:
    """Remove archives, packages, attestations and signatures of outputs that will be replaced.

    Args:
        groups: states of built and failed groups.
        notice: receives text for people.
        whole: whether the whole manifest was built.

    Raises:
        StorageError: somebody changed such a file; or the system refuses.
    """
    outputs = {
        f"{each.planned.target}/{each.planned.group.name}": each.files
        for each in groups
        if each.failure is None and (each.progress is not None or each.up_to_date)
    }
    outputs |= {
        f"{each.planned.target}/{each.planned.composition.name}": each.files
        for each in composed
        if each.failure is None and each.result is not None
    }
    if not outputs:
        return
    recorded = read(place)
    stale: Mapping[str, LockedFile] = {}
    if is_stale(recorded, outputs, whole=whole):
        stale = recorded.released
        refuse_edited(place, stale)
        recorded = replace(recorded, released={}, of={})
    write(place, manifest, recorded.released, recorded.of)
    if withdraw_signature(place, outputs, whole=whole):
        notice("removed model.sig, which belonged to earlier outputs")
    for name in remove(place, stale):
        notice(f"removed {name}, which belonged to earlier outputs")
    changed = any(not each.up_to_date for each in groups)
    if changed or any(not each.up_to_date for each in composed):
        for name in unknown(place, recorded.released):
            notice(f"kept {name}, which may not belong to these outputs: no build has recorded it")
