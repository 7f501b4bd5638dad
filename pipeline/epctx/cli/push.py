"""`epctx push`: a package into a registry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from epctx import api
from epctx.cli import progress
from epctx.cli.options import PlainHttp
from epctx.cli.paths import Existing
from epctx.cli.render import UI
from epctx.text import size_words


def push(
    ui: UI,
    package: Annotated[
        Path,
        typer.Argument(metavar="PACKAGE", help="A model package, or a folder of built groups."),
        Existing(otherwise="name dist/<name>.ortpackage, which `epctx package` writes"),
    ],
    reference: Annotated[
        str, typer.Argument(metavar="oci://HOST/REPO[:TAG]", help="Where it goes.")
    ],
    *,
    mount: Annotated[
        str | None,
        typer.Option(metavar="REPO", help="A repository of the registry that has files of it."),
    ] = None,
    insecure: PlainHttp = False,
) -> None:
    """Push a package to an OCI registry, with the signature in it and the attestation beside it.

    It is a CNCF ModelPack, always of the same digest. What is there is not sent again.
    """
    with progress.live(ui) as shown:
        report = api.push(
            package,
            reference,
            insecure=insecure,
            mount=mount,
            listener=shown,
            waiting=lambda: ui.note(Text("waiting, a build holds the outputs", style="yellow")),
        )
    ui.emit(report)
    sent = f"{size_words(report.sent)} sent"
    words = [f"{report.files} files", size_words(report.size)]
    words += [sent] if report.state == "pushed" else []
    words += [f"{size_words(report.mounted)} mounted"] if report.mounted else []
    words += [f"with {', '.join(report.attached)}"] if report.attached else []
    ui.print(
        Text.assemble((report.reference, "bold"), f"  {report.state}: {', '.join(words)}"),
        report.digest,
    )
