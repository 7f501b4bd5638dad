"""`epctx sign`: sign a package, or what a build wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from epctx import api
from epctx.cli.options import Cert, Chain
from epctx.cli.paths import Existing
from epctx.cli.render import UI


def sign(
    ui: UI,
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="A package, dist/NAME, or any folder to be shipped."),
        Existing(),
    ],
    *,
    key: Annotated[
        Path,
        typer.Option(
            metavar="PEM", help="The private key: ECDSA on P-256, P-384 or P-521, no password."
        ),
        Existing(),
    ],
    cert: Cert = None,
    chain: Chain = None,
) -> None:
    """Sign every file of a folder by OpenSSF Model Signing, in FOLDER/model.sig.

    `epctx verify --trusted-key` and `model_signing verify` hold the folder to it.
    """

    def waiting() -> None:
        ui.note(Text("waiting, a build holds the outputs", style="yellow"))

    report = api.sign(folder, key=key, cert=cert, chain=chain, waiting=waiting)
    ui.emit(report)
    words = f"  {report.files} file{'s' * (report.files != 1)}, signed by {report.signer}"
    ui.print(Text.assemble((report.path, "bold"), words))
