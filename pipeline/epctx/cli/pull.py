"""`epctx pull`: a package out of a registry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from epctx import api
from epctx.cli import progress
from epctx.cli.options import PlainHttp
from epctx.cli.paths import Written
from epctx.cli.render import UI, warning
from epctx.text import size_words


def pull(
    ui: UI,
    reference: Annotated[
        str,
        typer.Argument(metavar="oci://HOST/REPO[:TAG][@sha256:…]", help="What is pulled."),
    ],
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Where it goes: a folder that is not there yet."),
        Written(),
    ],
    *,
    insecure: PlainHttp = False,
) -> None:
    """Pull a package from an OCI registry, whole or not at all; every file is held to its digest.

    A signature comes with it, attestations beside it. Only `@sha256:…` tells what comes: a tag can
    be moved. `epctx verify` checks the rest.
    """
    with progress.live(ui) as shown:
        report = api.pull(reference, folder, insecure=insecure, listener=shown)
    ui.emit(report)
    if report.not_on_windows is not None:
        what = f"this package cannot be pulled on Windows: {report.not_on_windows}"
        ui.note(warning(what, "rename the files, and push the package anew"))
    words = [f"{report.files} files", size_words(report.size)]
    words += [f"with {', '.join(report.attached)}"] if report.attached else []
    ui.print(
        Text.assemble((f"{folder.as_posix()}/", "bold"), f"  {report.state}: {', '.join(words)}"),
        report.digest,
    )
