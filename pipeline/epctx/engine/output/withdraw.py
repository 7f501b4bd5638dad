"""Removes what was released of something else, before anything is published."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from epctx.engine.output import record, signature
from epctx.engine.output.place import OutputPaths
from epctx.engine.state import CompositionState, GroupState
from epctx.lockfile.types import LockedFile


def withdraw(
    place: OutputPaths,
    manifest: Path,
    groups: Sequence[GroupState],
    composed: Sequence[CompositionState],
    notice: Callable[[str], None],
    *,
    whole: bool,
) -> None:
    """Remove archives, packages, attestations and signatures of what is about to be replaced.

    Args:
        groups: what will be published, and what failed.
        notice: hears what is told to people.
        whole: everything of the manifest was made.

    Raises:
        StorageError: somebody wrote to such a file; or the system refuses.
    """
    made = {
        f"{each.planned.target}/{each.planned.group.name}": each.files
        for each in groups
        if each.failure is None and (each.progress is not None or each.up_to_date)
    }
    made |= {
        f"{each.planned.target}/{each.planned.composition.name}": each.files
        for each in composed
        if each.failure is None and each.result is not None
    }
    if not made:
        return
    known = record.read(place)
    stale: Mapping[str, LockedFile] = {}
    if record.is_stale(known, made, whole=whole):
        stale = known.released
        record.refuse_edited(place, stale)
        known = replace(known, released={}, of={})
    record.write(place, manifest, known.released, known.of)
    if signature.withdraw(place, made, whole=whole):
        notice("model.sig was of what was published before: it is removed")
    for name in record.remove(place, stale):
        notice(f"{name} was of what was published before: it is removed")
    changed = any(not each.up_to_date for each in groups)
    if changed or any(not each.up_to_date for each in composed):
        for name in record.unknown(place, known.released):
            notice(f"nothing tells that {name} is of what is published: it is left")
