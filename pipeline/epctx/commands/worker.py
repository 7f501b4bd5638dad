"""`epctx worker`: carry out what builds on other machines ask for."""

from __future__ import annotations

import os
from collections.abc import Callable

from epctx.commands.doctor import command as doctor
from epctx.commands.doctor import probe
from epctx.machines import address
from epctx.machines.address import Tls
from epctx.machines.portable import VARIABLE, shared
from epctx.providers import registry


def serve(url: str, tls: Tls, *, name: str | None, jobs: int, told: Callable[[str], None]) -> None:
    """Serve the scheduler at `dask://HOST:PORT` until a signal ends it.

    Args:
        name: of this machine, for people; None for the host name with the process's number.
        jobs: how many at a time; 0: one for each core.
        told: hears what is told to people.

    Raises:
        UsageError: the address is none, or would be used in the clear; there is no shared cache.
        ProviderUnavailable: dask is not installed; there is no scheduler.
    """
    where = address.parsed(url, where="epctx worker")
    contact, security = address.contact(where, tls)
    store = os.environ.get(VARIABLE)
    shared(store)  # refuses at once what is none
    with doctor.asking((probe.BUILT_IN, *registry.names())) as answers:
        failures = {each.name: each.failure for each in answers if each.failure is not None}
    from epctx.machines import serving

    serving.serve(contact, security, store, failures=failures, name=name, jobs=jobs, notify=told)
