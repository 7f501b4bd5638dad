"""`epctx worker`: run jobs of builds on other machines."""

from __future__ import annotations

from collections.abc import Callable

from epctx import api
from epctx.cli import declared
from epctx.cli.options import Insecure, TlsCa, TlsCert, TlsKey, tls
from epctx.cli.render import UI


@declared.by(api.worker)
def worker(
    ui: UI,
    call: Callable[..., None],
    *,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure: Insecure = False,
) -> None:
    call(tls=tls(tls_ca, tls_cert, tls_key, insecure), notify=ui.note)
