from pathlib import Path

import pytest

from epctx.errors import UsageError
from epctx.machines import opened
from epctx.machines.address import Tls

pytestmark = pytest.mark.needs("module distributed", "the extra [dask]")


def open_(url: str, **environment: str) -> None:
    with opened.opened(url, Tls(), None, lambda record: False, environment):
        pass


def test_a_remote_scheduler_without_a_shared_cache_is_refused_before_anything() -> None:
    with pytest.raises(UsageError, match="other machines need a shared cache"):
        open_("dask://127.0.0.1:1")


def test_what_names_no_machines_is_refused() -> None:
    with pytest.raises(UsageError, match="names no machines"):
        open_("farm:1")


def test_a_cluster_of_this_machine_starts_when_there_is_something_to_do(tmp_path: Path) -> None:
    with opened.opened("dask://local?workers=3", Tls(), None, lambda _: False) as found:
        assert found.eps is None and found.jobs is not None and found.jobs() >= 3
