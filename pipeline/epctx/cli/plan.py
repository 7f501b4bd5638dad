"""`epctx plan`: what a build would do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epctx.cli.render import UI

if TYPE_CHECKING:
    from rich.tree import Tree

    from epctx.planning import Plan
    from epctx.preview import GroupPreview


def plan(
    ui: UI,
    manifest: Annotated[Path, typer.Argument(help="The manifest.")],
    *,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP[@TARGET]", help="Plan this group only; may be repeated."),
    ] = None,
    partition: Annotated[
        bool, typer.Option("--partition", help="Show who takes which node, without compiling.")
    ] = False,
    allow_outside: Annotated[
        bool, typer.Option("--allow-outside", help="Let paths lead out of the manifest's folder.")
    ] = False,
) -> None:
    """Show what a build of the manifest would do, without doing it."""
    from epctx import verbs

    planned = verbs.plan(manifest, only=only or (), allow_outside=allow_outside)
    if partition:
        from epctx import preview

        previews = preview.partitions(planned)
        ui.emit(previews)
        ui.print(*(_partitions(each, every=ui.verbose > 0) for each in previews))
    else:
        ui.emit(planned)
        ui.print(_groups(planned))


def _groups(planned: Plan) -> Tree:
    from rich.tree import Tree

    root = Tree(planned.manifest.name)
    for item in planned.groups:
        eps = ", ".join(spec.alias for spec in item.group.execution_providers) or "default EP only"
        branch = root.add(f"{item.label}  [{eps}]")
        for session_group in item.session_groups:
            names = ", ".join(model.name for model in session_group.models)
            shared = f"sharing {session_group.sharing}: " if session_group.sharing else ""
            branch.add(f"{shared}{names}")
    return root


def _partitions(preview: GroupPreview, *, every: bool) -> Tree:
    """A group's models: their partitions, then the default EP's nodes, by reason or (-v) each."""
    from collections import Counter

    from rich.tree import Tree

    root = Tree(f"{preview.group}@{preview.target}")
    for model in preview.models:
        branch = root.add(f"{model.name}: {model.coverage:.1%} of {model.nodes} nodes on EPs")
        for part in model.partitions:
            nodes = f"{part.nodes} node{'s' if part.nodes != 1 else ''}"
            branch.add(
                f"{part.provider}: {nodes}, {' '.join(part.inputs)} -> {' '.join(part.outputs)}"
            )
        left = branch.add(f"default EP: {len(model.declined)} nodes") if model.declined else None
        reasons: Counter[str] = Counter()
        for node in model.declined:
            said = "; ".join(f"{ep}: {why}" for ep, why in node.reasons) or "no EP was asked"
            kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            reasons[f"{node.node} ({kind}): {said}" if every else f"{kind}: {said}"] += 1
        for reason, count in reasons.most_common() if left is not None else ():
            assert left is not None
            left.add(reason if every else f"{count} x {reason}")
    return root
