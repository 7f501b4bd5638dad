"""`epctx validate`: schema, rules, and the headers of the models that are there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from epctx import api
from epctx.cli import declared, github, problems
from epctx.cli import sarif as log
from epctx.cli.options import Sarif
from epctx.cli.render import UI
from epctx.commands.options import STARTER, located
from epctx.commands.validate.command import Validation
from epctx.errors import ManifestError, Violation
from epctx.files import atomic
from epctx.parsing.document import reader


@declared.by(api.validate, without=("manifest",))
def validate(
    ui: UI,
    call: Callable[..., Validation],
    *,
    manifests: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[MANIFEST]",
            show_default=False,
            help="The manifests; else epctx.yaml, or the only one in manifests/.",
        ),
        STARTER,
    ] = None,
    if_manifest: Annotated[
        bool,
        typer.Option("--if-manifest", help="Pass over files that are no manifest of epctx."),
    ] = False,
    sarif: Sarif = None,
) -> int:
    named = manifests or [located(None)]
    chosen = [path for path in named if not if_manifest or reader.is_manifest(path)]
    found = [_validate(path, call) for path in chosen]
    ui.emit([_fields(each) for each in found])
    for each in found:
        _print(ui, each)
    every = problems.of_violations(each for one in found for each in one.violations)
    every += problems.of_violations((each for one in found for each in one.warnings), "warning")
    if sarif is not None:
        atomic.replace(sarif, log.document(every))
    github.annotate(every)
    return next((each.exit_code for each in found if each.exit_code), 0)


def _validate(path: Path, call: Callable[..., Validation]) -> Validation:
    try:
        return call(manifest=path)
    except ManifestError as error:
        told = Violation(
            file=path.as_posix(),
            line=0,
            column=0,
            path="",
            what=error.reason,
            remedy=error.remedy,
            code=error.code,
        )
        return Validation(manifest=path, violations=(told,), exit_code=error.exit_code)


def _fields(found: Validation) -> dict[str, object]:
    return {
        "manifest": found.manifest,
        "ok": not found.violations,
        "violations": found.violations,
        "warnings": found.warnings,
    }


def _print(ui: UI, found: Validation) -> None:
    if ui.json:
        return
    if found.violations or found.warnings:
        _print_problems(ui, found)
    if not found.violations:
        count = len(found.warnings)
        more = f", {count} warning{'s' * (count != 1)}" if count else ""
        ui.print(Text(f"{found.manifest.as_posix()}: ok{more}", style="green"))


def _print_problems(ui: UI, found: Validation) -> None:
    every = bool(ui.verbose)
    ui.put(*problems.texts(problems.of_violations(found.violations), every=every))
    ui.print(*problems.texts(problems.of_violations(found.warnings, "warning"), every=every))
