"""`epctx worker`: run the jobs of builds on other machines."""

from __future__ import annotations

import os
from collections.abc import Callable

from epctx.commands.doctor import command as doctor
from epctx.commands.doctor import probe
from epctx.machines import address
from epctx.machines.address import Tls
from epctx.machines.portable import VARIABLE, shared
from epctx.providers import registry


def serve(
    url: str, tls: Tls, *, name: str | None, jobs: int, notify: Callable[[str], None]
) -> None:
    """Serve the scheduler at `dask://HOST:PORT` until a signal ends it.

    Args:
        name: name of this machine in messages; None for the host name with the process id.
        jobs: number of jobs at a time; 0 for one per core.
        notify: receives messages for the user.

    Raises:
        UsageError: the address is invalid or would be used without encryption, or there is no
            shared cache.
        ProviderUnavailable: dask is not installed, or there is no scheduler.
    """
    where = address.parsed(url, where="epctx worker")
    contact, security = address.contact(where, tls)
    store = os.environ.get(VARIABLE)
    shared(store)  # refuses an invalid cache URL at once
    with doctor.asking((probe.BUILT_IN, *registry.names())) as answers:
        failures = {each.name: each.failure for each in answers if each.failure is not None}
    from epctx.machines import serving

    serving.serve(contact, security, store, failures=failures, name=name, jobs=jobs, notify=notify)
