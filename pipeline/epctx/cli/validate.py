"""`epctx validate`: check schema, rules, and the headers of existing models."""

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
            help="The manifests; if omitted epctx.yaml, or the only manifest in manifests/.",
        ),
        STARTER,
    ] = None,
    if_manifest: Annotated[
        bool,
        typer.Option("--if-manifest", help="Skip files that are not manifests of epctx."),
    ] = False,
    sarif: Sarif = None,
) -> int:
    named = manifests or [located(None)]
    chosen = [path for path in named if not if_manifest or reader.is_manifest(path)]
    validations = [_validate(path, call) for path in chosen]
    ui.emit([_fields(each) for each in validations])
    for each in validations:
        _print(ui, each)
    every = problems.of_violations(each for one in validations for each in one.violations)
    every += problems.of_violations(
        (each for one in validations for each in one.warnings), "warning"
    )
    if sarif is not None:
        atomic.replace(sarif, log.document(every))
    github.annotate(every)
    return next((each.exit_code for each in validations if each.exit_code), 0)


def _validate(path: Path, call: Callable[..., Validation]) -> Validation:
    try:
        return call(manifest=path)
    except ManifestError as error:
        violation = Violation(
            file=path.as_posix(),
            line=0,
            column=0,
            path="",
            what=error.reason,
            remedy=error.remedy,
            code=error.code,
        )
        return Validation(manifest=path, violations=(violation,), exit_code=error.exit_code)


def _fields(validation: Validation) -> dict[str, object]:
    return {
        "manifest": validation.manifest,
        "ok": not validation.violations,
        "violations": validation.violations,
        "warnings": validation.warnings,
    }


def _print(ui: UI, validation: Validation) -> None:
    if ui.json:
        return
    if validation.violations or validation.warnings:
        _print_problems(ui, validation)
    if not validation.violations:
        count = len(validation.warnings)
        more = f", {count} warning{'s' * (count != 1)}" if count else ""
        ui.print(Text(f"{validation.manifest.as_posix()}: ok{more}", style="green"))


def _print_problems(ui: UI, validation: Validation) -> None:
    every = bool(ui.verbose)
    ui.put(*problems.texts(problems.of_violations(validation.violations), every=every))
    ui.print(*problems.texts(problems.of_violations(validation.warnings, "warning"), every=every))
