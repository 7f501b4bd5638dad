"""Checks of `--locked`: compare a build with its lock (design section 9)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from epctx import lockfile
from epctx.engine.lock import writer
from epctx.engine.lookup import Lookup
from epctx.engine.output.place import OutputPaths, is_apart
from epctx.engine.plan import Plan, PlannedGroup, SessionGroup
from epctx.engine.state import SessionState
from epctx.error_codes import Code
from epctx.errors import LockError, ModelError, UsageError
from epctx.files import digest, hashing
from epctx.files.digest import Digest
from epctx.files.outputs import SUMS
from epctx.lockfile import hosts
from epctx.lockfile import place as lock_place
from epctx.lockfile.differences import (
    Difference,
    between_locks,
    causes_between,
    file_difference,
    part_of,
)
from epctx.lockfile.types import Lock, LockedFile
from epctx.providers import registry

T = TypeVar("T")
_LOCK_DIFFERS = f"agrees with {SUMS} beside it: the lock was changed"
_TOLD = 20
"""Number of differences that the error lists."""


def refuse_other_causes(old: Lock, plan: Plan, lookup: Lookup) -> Lock:
    """Refuse sources, a toolchain or settings that differ from the lock, before anything runs.
    Return the lock's part for this kind of host.

    Raises:
        LockError: something differs (the error lists all differences); or the lock has no outputs
            for this kind of host.
        ProviderUnavailable: an EP is not installed, or its package is broken.
        ManifestError: an EP refuses its options.
    """
    missing: list[Difference] = []
    groups = []
    for planned in plan.groups:
        sessions = []
        for session in planned.session_groups:
            models = []
            for source in session.models:
                try:
                    model = lookup.model(source, planned.group.optimize)
                    if planned.group.quantize is not None:
                        quantized = lookup.quantized(model, planned.group)
                        model = replace(model, quantized=quantized)
                    models.append(model)
                except ModelError as error:
                    missing.append(_missing(error, plan))
            sessions.append(SessionState(session=session, models=tuple(models)))
        groups.append((planned, sessions))
    # A missing source is reported as missing, not as one that is no longer used.
    _refuse(tuple(dict.fromkeys(missing)), plan)
    compositions = [(planned, ()) for planned in plan.compositions]
    new = writer.make(
        plan.manifest,
        groups,
        lookup.toolchain,
        compositions,
        whole=plan.whole,
        ranges=lookup.ranges.present,
    )
    here = hosts.kind(new)
    view = hosts.on(old, here)
    _refuse(causes_between(_part(view, plan), new), plan)
    if not new.folders.keys().isdisjoint(hosts.lacking(old, here)):
        raise _of_other_hosts(old, here, plan)
    return view


def cut_alike(plan: Plan, lock: Lock) -> Plan:
    """Return the plan, with the cut points of the lock for session groups in pieces."""

    def at(planned: PlannedGroup, session: SessionGroup) -> SessionGroup:
        locked = lock.groups.get(f"{planned.target}/{planned.group.name}")
        pieces = None if locked is None else locked.pieces.get(session.models[0].name)
        return session if pieces is None else replace(session, at=pieces.at)

    groups = (
        replace(each, session_groups=tuple(at(each, session) for session in each.session_groups))
        for each in plan.groups
    )
    return replace(plan, groups=tuple(groups))


def _of_other_hosts(lock: Lock, here: hosts.Kind, plan: Plan) -> LockError:
    lines = [f"this host: {hosts.words(here)}"]
    lines += [f"the lock has: {hosts.words(kind, beside=here)}" for kind in hosts.kinds(lock)]
    return LockError(
        "has no entry for this kind of host",
        file=lock_place(plan.manifest.path).name,
        why="".join(f"\n  {each}" for each in lines),
        remedy="build on a host of the lock; or run `epctx build` here, which adds an entry to the "
        "lock, and check it in",
        code=Code.OTHER_HOST,
    )


def refuse_random_samples(plan: Plan) -> None:
    """Refuse models that are calibrated with random samples, before anything runs.

    Raises:
        LockError: samples are random.
    """
    for planned in plan.groups:
        settings = planned.group.quantize
        if settings is not None and settings.calibration.random:
            raise LockError(
                f"{planned.label} is quantized with random samples",
                file=lock_place(plan.manifest.path).name,
                why="random inputs give other ranges than real inputs",
                remedy="give real samples with `quantize.calibration.files`, and build",
                code=Code.LOCK_DIFFERS,
            )


def refuse_unknown_golden(old: Lock, plan: Plan) -> None:
    """Refuse to make golden files that the lock does not list, before anything runs.

    Raises:
        LockError: the lock has no golden files for a folder.
    """
    folders = [_name(planned) for planned in plan.groups]
    folders += [f"{each.target}/{each.composition.name}" for each in plan.compositions]
    lacking = [folder for folder in folders if folder not in old.golden]
    if lacking:
        raise LockError(
            f"lists no golden files of {', '.join(lacking)}",
            file=lock_place(plan.manifest.path).name,
            remedy="run `epctx build --golden`, and check in the lock that it writes",
            code=Code.LOCK_DIFFERS,
        )


def refuse_other_golden(
    folder: str, locked: Mapping[str, LockedFile], made: Mapping[str, LockedFile], plan: Plan
) -> None:
    """Refuse golden files that differ from the lock, before they are published.

    Args:
        folder: `<target>/<group or composition>`.
        locked: its golden files in the lock, by name.
        made: its new golden files, by name.

    Raises:
        LockError: they differ.
    """
    for name in sorted({*locked, *made}):
        change = file_difference(locked.get(name), made.get(name))
        if change is not None:
            raise LockError(
                f"golden/{name} of {folder} {change}",
                file=lock_place(plan.manifest.path).name,
                why="the default EP computes the expected outputs on this host's CPU: on another "
                "kind of CPU the last digits differ",
                remedy="make the release on a host like the one where the lock was written, or "
                "run `epctx build --golden`, and check in the lock that it writes",
                code=Code.LOCK_DIFFERS,
            )


def refuse_other_artifact(locked: Lock, made: Lock, plan: Plan) -> None:
    """Refuse a package whose artifact differs from the lock, if the lock has one.

    Raises:
        LockError: it differs.
    """
    for entry, content in made.oci.items():
        if locked.oci.get(entry, content) != content:
            raise LockError(
                f"the package's artifact is {content}, but the lock has {locked.oci[entry]}",
                file=lock_place(plan.manifest.path).name,
                remedy="undo the change; if it is intended, `epctx package` writes a new lock",
                code=Code.LOCK_DIFFERS,
            )


def refuse_sources_in_outputs(plan: Plan, place: OutputPaths) -> None:
    """Refuse inputs in output folders, which a build replaces.

    Raises:
        UsageError: an input lies there; nothing was changed.
    """
    places = [place.group(each.target, each.group.name) for each in plan.groups]
    places += [place.group(each.target, each.composition.name) for each in plan.compositions]
    inputs = [path for planned in plan.groups for path in _inputs(planned)]
    inputs += [path for each in plan.compositions for path in each.composition.verify.inputs.files]
    replaced = {*places, place.staging}
    for path in dict.fromkeys(inputs):
        resolved = path.resolve()
        if not replaced.isdisjoint((path, *path.parents, resolved, *resolved.parents)):
            raise UsageError(
                "is an input of the build, but lies in a folder that its outputs replace",
                file=str(path),
                remedy="move it, or give another folder with --out",
            )


def _inputs(planned: PlannedGroup) -> Iterator[Path]:
    for model in planned.group.models:
        further = (model.external_data_dir, model.custom_ops)
        yield from (model.path, *filter(None, further))
    yield from planned.group.verify.inputs.files
    if planned.group.quantize is not None:
        yield from planned.group.quantize.calibration.files


def refuse_edited_outputs(old: Lock, plan: Plan, place: OutputPaths, *others: Lock) -> None:
    """Refuse published folders that differ from the lock; unpublished groups do not count.

    Args:
        old: the lock's part for this kind of host.
        others: the lock's parts for other kinds of host, whose outputs may be published here.

    Raises:
        LockError: a file was changed, is missing, or does not belong there.
    """
    places = {_name(each): place.group(each.target, each.group.name) for each in plan.groups}
    places |= {
        f"{each.target}/{each.composition.name}": place.group(each.target, each.composition.name)
        for each in plan.compositions
    }
    folders_here, *other_folders = (lock.folders for lock in (old, *others))
    differences = [
        Difference(kind="output", where=f"{key}/{name}", what=what)
        for key, folder in places.items()
        if key in folders_here
        for name, what in _edits_of_all(
            folder, [folders_here[key], *(each[key] for each in other_folders)]
        )
    ]
    remedy = "restore the files, or run `epctx build` to write them again"
    if any(each.what == _LOCK_DIFFERS for each in differences):
        remedy = "restore the lock, or run `epctx build` to write a new one, and review its changes"
    _refuse(tuple(differences), plan, remedy=remedy)


def refuse_differences(old: Lock, new: Lock, plan: Plan) -> None:
    """Refuse a build that differs from the lock, before anything is published.

    Raises:
        LockError: something differs; the error lists all differences.
    """
    differences = between_locks(_part(old, plan), new)
    why, remedy = "", None
    # No other difference explains it.
    if all(difference.kind == "output" for difference in differences):
        folders = {difference.where.rpartition("/")[0] for difference in differences}
        why = "".join(f"\nknown about {each}" for each in unstable_eps(plan, folders))
        if why:
            remedy = "if nothing was changed, the execution provider is the reason: ship the files "
            remedy += "in the lock; else undo the change, or run `epctx build` for a new lock"
    _refuse(differences, plan, remedy=remedy, why=why)


def _name(planned: PlannedGroup) -> str:
    return f"{planned.target}/{planned.group.name}"


def _missing(error: ModelError, plan: Plan) -> Difference:
    path = Path(error.file or "")
    where = lockfile.relative(path, plan.manifest.path.parent)
    why = f": {error.why}" if error.why else ""
    return Difference(kind="source", where=where, what=f"{error.what}{why}")


def _part(lock: Lock, plan: Plan) -> Lock:
    """Return the lock's part about the groups of a plan; all of it, if the plan is whole."""
    if plan.whole:
        return lock
    groups = {_name(planned) for planned in plan.groups}
    compositions = {f"{c.target}/{c.composition.name}" for c in plan.compositions}
    return part_of(lock, groups, compositions)


def _edits_of_all(folder: Path, kinds: Sequence[Mapping[str, LockedFile]]) -> list[tuple[str, str]]:
    """List the differences of a folder from the lock; none if it agrees with one kind of host."""
    edits = [list(_edits(folder, expected)) for expected in kinds[:1]]
    edits += [list(_edits(folder, expected)) for expected in kinds[1:] if edits[0]]
    if not all(edits):
        return []
    # Imported here, since it loads onnx, which a build that agrees with its lock does not need.
    from epctx.verification.integrity import read_sums

    sums = {each.name: each.digest for each in read_sums(folder)[0]}
    # SHA256SUMS beside a file shows whether the lock was changed, or the file.
    return [
        (name, _LOCK_DIFFERS if sums and _is_listed(folder / name, sums.get(name)) else change)
        for name, change in edits[0]
    ]


def _is_listed(path: Path, content: Digest | None) -> bool:
    """Tell whether a file has this content; for None, whether the file does not exist."""
    try:
        return digest.of_file(path, "sha256") == content
    except OSError:
        return content is None and not os.path.lexists(path)


def _edits(folder: Path, expected: Mapping[str, LockedFile]) -> Iterator[tuple[str, str]]:
    """Yield the files of a published folder that differ from the lock, each with the difference."""
    if not folder.is_dir():
        return
    present = {entry.name for entry in folder.iterdir() if not is_apart(entry)} - {SUMS}
    for name in sorted(expected.keys() - present):
        yield name, "is missing"
    for name in sorted(present - expected.keys()):
        yield name, "does not belong there"
    both = sorted(expected.keys() & present)
    for name, same in hashing.of_each(lambda n: _is(folder / n, expected[n]), both).items():
        if not same:
            yield name, "was changed after it was built"


def _is(path: Path, file: LockedFile) -> bool:
    try:
        if path.stat().st_size != file.size:
            return False
        return digest.of_file(path, "sha256").hex == file.sha256
    except OSError:
        return False


def _refuse(
    differences: Sequence[Difference], plan: Plan, *, remedy: str | None = None, why: str = ""
) -> None:
    if not differences:
        return
    lines = [f"\n  {difference}" for difference in differences[:_TOLD]]
    if len(differences) > _TOLD:
        lines.append(f"\n  and {len(differences) - _TOLD} more")
    raise LockError(
        "the build differs from the lock",
        file=lock_place(plan.manifest.path).name,
        why="".join(lines) + why,
        remedy=remedy
        or "undo the change; if it is intended, `epctx build` writes a new lock to review",
        code=Code.LOCK_DIFFERS,
    )


def unstable_eps(plan: Plan, folders: Collection[str]) -> Iterator[str]:
    """Yield a line for each EP of some groups that is known to write different bytes each time.

    Args:
        folders: groups whose bytes differ, as `<target>/<group>`.
    """
    groups = [p.group for p in plan.groups if f"{p.target}/{p.group.name}" in folders]
    for spec in {spec.provider: spec for g in groups for spec in g.execution_providers}.values():
        provider = registry.create(spec)
        if provider.unstable:
            yield f"{provider.name}: {provider.unstable}"
