"""`epctx worker`: carry out what builds on other machines ask for."""

from __future__ import annotations

from typing import Annotated

import typer

from epctx.cli.options import Insecure, Jobs, TlsCa, TlsCert, TlsKey, tls
from epctx.cli.render import UI
from epctx.commands import worker as command


def worker(
    ui: UI,
    scheduler: Annotated[
        str, typer.Argument(metavar="dask://HOST:PORT", help="The scheduler that is served.")
    ],
    *,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What this machine is called in reports.")
    ] = None,
    jobs: Jobs = 0,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure: Insecure = False,
) -> None:
    """Carry out what `epctx build --on` asks for, on this machine, until it is ended."""
    command.serve(
        scheduler,
        tls(tls_ca, tls_cert, tls_key, insecure),
        name=name,
        jobs=jobs,
        told=ui.note,
    )
