"""`epctx build`: make the plan, open the cache, run the build. Every build goes through `run`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from epctx import lockfile
from epctx.cache import Cache
from epctx.cache.store import Shared
from epctx.engine import build, plan
from epctx.engine.events import Listener
from epctx.engine.executor import Machines
from epctx.engine.options import BuildOptions
from epctx.engine.plan import Plan
from epctx.engine.report import BuildReport
from epctx.errors import EpctxError, UsageError
from epctx.keys.toolchain import ProviderRecord
from epctx.lockfile import hosts
from epctx.machines.address import Tls
from epctx.worker.pool import Pool


class On(Struct, frozen=True, kw_only=True):
    """Machines for a build; `url` is `dask://HOST:PORT` or, on this host, `dask://local?workers=N`."""

    url: str
    tls: Tls


class Done(Struct, frozen=True, kw_only=True):
    """Outcome of a build.

    Attributes:
        failure: first failure in manifest order; None if everything was built or up to date.
        cache: the cache that was used; None without a cache.
    """

    plan: Plan
    report: BuildReport
    failure: EpctxError | None
    cache: Cache | None


def run(
    manifest: Path,
    options: BuildOptions,
    *,
    listener: Listener,
    only: Sequence[str] = (),
    cached: bool = True,
    shared: Shared | None = None,
    allow_outside: bool = False,
    refuse: Callable[[Plan], None] = lambda planned: None,
    on: On | None = None,
) -> Done:
    """Build the groups of `manifest`; `api.build` describes the other arguments.

    Args:
        cached: read results from the cache, and store new results there.
        shared: settings of the shared cache; None to read them from the environment.
        refuse: called with the plan before any work; may raise to stop the build.
        on: machines that run the build; None for this host.

    Raises:
        EpctxError: raised by `engine.plan.read`, `engine.build.run` or `refuse`.
    """
    planned = plan.read(manifest, only=only, allow_outside=allow_outside)
    if not manifest.is_file():  # a pipe, such as `<(…)`, may be in no folder that has files
        with UsageError.if_refused(
            "no lock can be written beside it", file=manifest.as_posix(), remedy="name a file"
        ):
            tempfile.TemporaryFile(dir=manifest.absolute().parent).close()
    refuse(planned)
    shared_settings = replace(shared or Shared(), jobs=on is not None)
    cache = build.open_cache(listener, shared_settings, options) if cached else None
    with _machines(on, manifest) as machines:
        report, failure = build.run(
            planned, options, listener=listener, machines=machines, cache=cache
        )
    return Done(plan=planned, report=report, failure=failure, cache=cache)


@contextmanager
def _machines(on: On | None, manifest: Path) -> Iterator[Machines]:
    if on is None:
        yield Machines(Pool)
        return

    from epctx.machines import executor  # installed by the extra [dask]

    with executor.opened(on.url, on.tls, _decides(manifest)) as machines:
        yield machines


def _decides(manifest: Path) -> Callable[[ProviderRecord], bool]:
    """Return a test whether the manifest's lock has an EP; it is False without a lock."""
    lock = lockfile.find(lockfile.place(manifest))
    if lock is None:
        return lambda record: False
    views = hosts.views(lock)
    locked_eps = [
        (ep.toolchain, ep.host) for each in views for ep in each.execution_providers.values()
    ]
    return lambda record: (record.toolchain, record.host) in locked_eps
