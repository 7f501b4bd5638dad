"""`epctx plan`: what a build would do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epctx.cli.render import UI


def plan(
    ui: UI,
    manifest: Annotated[Path, typer.Argument(help="The manifest.")],
    *,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP[@TARGET]", help="Plan this group only; may be repeated."),
    ] = None,
    allow_outside: Annotated[
        bool, typer.Option("--allow-outside", help="Let paths lead out of the manifest's folder.")
    ] = False,
) -> None:
    """Show what a build of the manifest would do, without doing it."""
    from rich.tree import Tree

    from epctx import verbs

    planned = verbs.plan(manifest, only=only or (), allow_outside=allow_outside)
    ui.emit(planned)
    root = Tree(planned.manifest.name)
    for item in planned.groups:
        eps = ", ".join(spec.alias for spec in item.group.execution_providers) or "default EP only"
        branch = root.add(f"{item.label}  [{eps}]")
        for session_group in item.session_groups:
            names = ", ".join(model.name for model in session_group.models)
            shared = f"sharing {session_group.sharing}: " if session_group.sharing else ""
            branch.add(f"{shared}{names}")
    ui.print(root)
