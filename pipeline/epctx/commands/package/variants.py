"""What was built, as the variants of a package tell it: EP, device, compatibility, options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from epctx.commands.package.items import Item
from epctx.errors import ModelError
from epctx.files.outputs import context_file
from epctx.manifest import DEFAULT_EP
from epctx.providers import hooks, registry

if TYPE_CHECKING:
    from epctx.engine.report import GroupReport
    from epctx.lockfile.types import LockedGroup
    from epctx.manifest import ModelGroup
    from epctx.providers.base import ExecutionProvider
    from epctx.verification.folder import ContextModel


@dataclass(frozen=True, kw_only=True)
class BuiltModel:
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


@dataclass(frozen=True, kw_only=True)
class BuiltGroup:
    """A group that was built for a target. `files`: every output but SHA256SUMS, by name."""

    target: str
    name: str
    models: tuple[BuiltModel, ...]
    files: Mapping[str, Item]
    locked: LockedGroup


def of_group(
    group: ModelGroup, report: GroupReport, locked: LockedGroup, folder: Path
) -> BuiltGroup:
    """A built group.

    Args:
        folder: where it was published.

    Raises:
        ProviderUnavailable: an EP of it is not installed.
        ModelError: a model cannot be read back.
    """
    providers = [registry.create(spec) for spec in group.execution_providers]
    sharing = {name for members in group.sharing_groups.values() for name in members}
    models = tuple(
        _model(model.name, _read(folder / context_file(model.name)), providers, sharing)
        for model in group.models
    )
    files = {
        file.name: Item(
            size=file.size, sha256=file.sha256, blake3=file.blake3, source=folder / file.name
        )
        for file in report.files
    }
    return BuiltGroup(
        target=report.target, name=group.name, models=models, files=files, locked=locked
    )


def _read(path: Path) -> ContextModel:
    from epctx.verification.folder import Unreadable, read_proto, summarize

    try:
        return summarize(path.name, read_proto(path))
    except Unreadable as error:
        raise ModelError(
            "cannot be read back",
            file=path.as_posix(),
            why=str(error),
            remedy="run the command again; something changes the outputs meanwhile",
        ) from error


def _model(
    name: str,
    model: ContextModel,
    providers: Sequence[ExecutionProvider],
    sharing: set[str],
) -> BuiltModel:
    from epctx.graph.epcontext import COMPATIBILITY

    used = [p for p in providers if p.sources & set(model.sources)]
    first = used[0] if used else None
    described = first if isinstance(first, hooks.DescribesSessions) else None
    return BuiltModel(
        name=name,
        file=model.file,
        ep=first.name if first is not None else DEFAULT_EP,
        others=tuple(provider.name for provider in used[1:]),
        device=described.device_kind() if described is not None else None,
        compatibility=model.metadata.get(COMPATIBILITY + first.name) if first is not None else None,
        options=described.inference_options() if described is not None else {},
        sharing=name in sharing and bool(used),
        data=model.data,
        native=first is None or first.native,
        contexts=bool(model.contexts),
    )
