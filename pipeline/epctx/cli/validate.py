"""`epctx validate`: the schema and the rules, nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from epctx.cli import github, render
from epctx.cli.options import AllowOutside
from epctx.cli.render import UI
from epctx.errors import ManifestError, Violation


def validate(
    ui: UI,
    manifests: Annotated[list[Path], typer.Argument(help="The manifests.", metavar="MANIFEST")],
    *,
    allow_outside: AllowOutside = False,
) -> None:
    """Check manifests against the schema and the rules, and tell everything that is wrong."""
    from epctx.parsing import load

    found: dict[Path, tuple[Violation, ...]] = {}
    for path in manifests:
        try:
            found[path] = load.check(path, allow_outside=allow_outside)
        except ManifestError as error:
            found[path] = (_unreadable(path, error),)
    ui.emit(
        [{"manifest": path, "ok": not told, "violations": told} for path, told in found.items()]
    )
    for path, told in found.items():
        if not told:
            ui.print(Text(f"{path.as_posix()}: ok", style="green"))
        for violation in told if not ui.json else ():
            render.put(ui.out, render.violation(violation))
    github.violations(violation for told in found.values() for violation in told)
    if any(found.values()):
        raise typer.Exit(ManifestError.exit_code)


def _unreadable(path: Path, error: ManifestError) -> Violation:
    what = error.reason
    return Violation(
        file=path.as_posix(), line=0, column=0, path="", what=what, remedy=error.remedy
    )
