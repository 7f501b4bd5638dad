"""What was built, as the variants of a package tell it: EP, device, compatibility, options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from epctx.errors import ModelError
from epctx.files.digest import Digest
from epctx.files.items import Item
from epctx.files.outputs import context_file
from epctx.graph.epcontext import COMPATIBILITY
from epctx.lockfile.types import Lock, LockedGroup, LockedPackage, LockedVariant
from epctx.manifest import DEFAULT_EP

if TYPE_CHECKING:
    from epctx.verification.folder import ContextModel


class BuiltModel(Struct, frozen=True, kw_only=True):
    """A compiled model.

    Attributes:
        name: the manifest's key; `file` its ONNX file.
        ep: ONNX Runtime's name of the first EP, in the group's order, that has nodes in it; the CPU
            EP if none has.
        others: the EPs after it.
        device: what that EP runs on; None: unknown, or the CPU EP, of which ONNX Runtime 1.31.1
            selects no variant that names a device.
        compatibility: what the EP wrote into the model; None: nothing.
        options: the provider options of a session.
        sharing: its context is others', too.
        data: its external data files.
        native: ONNX Runtime itself runs it.
        contexts: it has context binaries beside it.
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
        files: every output but SHA256SUMS, and what the manifest puts beside them, by name.
        locked: what the lock says of the group.
    """

    target: str
    name: str
    models: tuple[BuiltModel, ...]
    files: Mapping[str, Item]
    locked: LockedGroup


def of_lock(
    lock: Lock, package: LockedPackage, variant: LockedVariant, items: Mapping[Digest, Item]
) -> BuiltGroup:
    """A group as the lock has it.

    Args:
        items: files by SHA-256: all that the lock names of the group is among them.

    Raises:
        ModelError: a model cannot be read back.
    """
    locked = lock.groups[variant.group]
    target, _, name = variant.group.partition("/")
    held = {**locked.outputs, **variant.files}
    files = {file: items[Digest("sha256", each.sha256)] for file, each in held.items()}
    models = (_model(model, package, variant, locked, files) for model in variant.models)
    return BuiltGroup(target=target, name=name, models=tuple(models), files=files, locked=locked)


def _model(
    name: str,
    package: LockedPackage,
    variant: LockedVariant,
    locked: LockedGroup,
    files: Mapping[str, Item],
) -> BuiltModel:

    model = _read(files[context_file(name)], context_file(name))
    runtimes = [
        (each.partition("#")[0], package.execution_providers[each])
        for each in variant.execution_providers
    ]
    sharing = {m for s in locked.session_groups.values() if s.sharing is not None for m in s.models}
    used = [(ep, each) for ep, each in runtimes if set(each.sources) & set(model.sources)]
    ep, first = used[0] if used else (DEFAULT_EP, None)
    return BuiltModel(
        name=name,
        file=model.file,
        ep=ep,
        others=tuple(name for name, _ in used[1:]),
        device=first.device if first is not None else None,
        compatibility=model.metadata.get(COMPATIBILITY + ep) if used else None,
        options=first.options if first is not None else {},
        sharing=name in sharing and bool(used),
        data=model.data,
        native=first is None or first.native,
        contexts=bool(model.contexts),
    )


def _read(item: Item, name: str) -> ContextModel:
    from epctx.verification.folder import Unreadable, read_proto, summarize

    assert item.source is not None
    try:
        return summarize(name, read_proto(item.source))
    except Unreadable as error:
        raise ModelError(
            "cannot be read back",
            file=item.source.as_posix(),
            why=str(error),
            remedy="run the command again; something changes the outputs meanwhile",
        ) from error
