"""Options of several commands that are not parameters of functions in `epctx.api`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epctx.commands.options import Existing, Written
from epctx.machines.address import Tls

Sarif = Annotated[
    Path | None,
    typer.Option("--sarif", metavar="FILE", help="Also write the findings as SARIF 2.1.0."),
    Written(),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Certificate of the other machines' authority; PEM."),
    Existing(),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Certificate that this machine shows to others; PEM."),
    Existing(),
]
TlsKey = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Key of that certificate; PEM."), Existing()
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Use no certificates: anybody who reaches the scheduler can run code here.",
    ),
]


def tls(ca: Path | None, cert: Path | None, key: Path | None, insecure: bool) -> Tls:
    """Return the certificates that the options name."""
    return Tls(ca=ca, cert=cert, key=key, insecure=insecure)
