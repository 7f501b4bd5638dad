"""Machines for one build: from `--on` to what the engine is given."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock

from epctx.cache import Cache
from epctx.engine.executor import Machines
from epctx.keys.records import ProviderRecord
from epctx.machines import address as addresses
from epctx.machines import blobs, local
from epctx.machines.address import Address, Tls
from epctx.machines.blobs import Blobs
from epctx.machines.cluster import Cluster, Member
from epctx.machines.eps import WorkersEps
from epctx.machines.executor import Remote
from epctx.machines.portable import Packing
from epctx.manifest import ProviderSpec


@contextmanager
def opened(
    url: str,
    tls: Tls,
    cache: Cache | None,
    decides: Callable[[ProviderRecord], bool],
    environment: Mapping[str, str] = os.environ,
) -> Iterator[Machines]:
    """The machines that `--on` names, for one build.

    Args:
        cache: of the build; None: none.
        decides: whether the lock was made with an EP.

    Raises:
        UsageError: what is named is none, or not to be used so.
        ProviderUnavailable: dask is not installed; nobody is there.
    """
    where = addresses.parsed(url)
    addresses.refuse_without_dask()
    with ExitStack() as stack:
        if where.workers is not None:
            own = _Local(where, cache, stack)
            yield Machines(executors=own.executor, jobs=own.jobs)
            return
        contact, security = addresses.contact(where, tls)
        shared = blobs.shared(environment.get(blobs.VARIABLE))
        cluster = Cluster(contact, security)
        stack.callback(cluster.close)
        packing = Packing(shared)
        eps = WorkersEps(cluster, packing, decides)

        def executor(
            *, work: Path, logs: Path, variables: Mapping[str, str] | None = None
        ) -> Remote:
            return Remote(cluster, eps.able, shared, packing, logs)

        def jobs() -> int:
            return sum(member.facts.jobs for member in cluster.members())

        yield Machines(executors=executor, eps=eps, jobs=jobs)


class _Local:
    """A cluster of this machine, which starts when there is something to do."""

    def __init__(self, where: Address, cache: Cache | None, stack: ExitStack) -> None:
        self._where = where
        self._cache = cache
        self._stack = stack
        self._lock = Lock()
        self._started: tuple[Cluster, Blobs, Packing] | None = None

    def jobs(self) -> int:
        """As many as there are workers, or cores."""
        assert self._where.workers is not None
        return max(self._where.workers, os.cpu_count() or 1)

    def executor(
        self, *, work: Path, logs: Path, variables: Mapping[str, str] | None = None
    ) -> Remote:
        """Its workers have this machine's EPs, whatever a job needs."""
        cluster, shared, packing = self._running()

        def able(eps: Sequence[ProviderSpec]) -> Sequence[Member]:
            return cluster.members()

        return Remote(cluster, able, shared, packing, logs)

    def _running(self) -> tuple[Cluster, Blobs, Packing]:
        with self._lock:
            if self._started is None:
                self._started = self._start()
            return self._started

    def _start(self) -> tuple[Cluster, Blobs, Packing]:
        count = self._where.workers or 1
        shared, folder = self._stack.enter_context(blobs.local(self._cache))
        contact, tls, workers = self._stack.enter_context(local.cluster(count, folder))
        cluster = Cluster(contact, tls, direct=True, failure=lambda: workers.failure)
        self._stack.callback(cluster.close)
        return cluster, shared, Packing(shared)
