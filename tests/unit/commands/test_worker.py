import pytest

from epctx.commands import worker
from epctx.errors import UsageError
from epctx.machines.address import Tls


def serve(url: str) -> None:
    worker.serve(url, Tls(), name=None, jobs=0, notify=print)


def test_nothing_is_served_in_the_clear_or_without_a_shared_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("EPCTX_REMOTE_CACHE", raising=False)
    with pytest.raises(UsageError, match="whoever reaches farm"):
        serve("dask://farm:1")
    with pytest.raises(UsageError, match="other machines need a shared cache"):
        serve("dask://127.0.0.1:1")
