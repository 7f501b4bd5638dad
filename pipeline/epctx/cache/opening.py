"""The cache as a command finds it: where the user's is, and the shared one behind it, if any."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from epctx.cache.location import locate
from epctx.cache.quarantine import Notice
from epctx.cache.remote.signing import Voucher
from epctx.cache.remote.tier import Tier
from epctx.cache.store import Cache

REMOTE_VARIABLE: Final = "EPCTX_REMOTE_CACHE"
_KEYS: Final = ("EPCTX_CACHE_SIGNING_KEY", "EPCTX_CACHE_TRUST")


class Shared(Struct, frozen=True, kw_only=True):
    """Shared cache as a command line names it; None for what the environment says.

    Attributes:
        url: of the store; empty: there is none.
        trust: a file with the public keys of those who are believed.
        jobs: the environment names it for the jobs of other machines, too: that nobody is believed
            is no mistake then, and goes without saying.
    """

    url: str | None = None
    trust: Path | None = None
    jobs: bool = False


def opened(
    notice: Notice,
    shared: Shared | None = None,
    *,
    signed: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> Cache:
    """The user's cache. Of the shared one nothing is imported, asked or read before it is needed.

    Args:
        notice: hears of what was found corrupt, or not signed.
        signed: use nothing that nobody who is trusted has signed.

    Raises:
        UsageError: an environment variable that names the cache is no good.
        StorageError: others can write to it.
    """
    shared, location = shared or Shared(), locate(environment)
    url = shared.url if shared.url is not None else environment.get(REMOTE_VARIABLE, "").strip()
    if not (url or shared.trust or any(environment.get(name) for name in _KEYS)):
        return Cache(location, notice, signed=signed)

    voucher = Voucher(shared.trust, environment)
    silent = shared.jobs and shared.url is None
    remote = Tier(url, voucher, notice, silent=silent) if url else None
    return Cache(location, notice, voucher=voucher, remote=remote, signed=signed)
