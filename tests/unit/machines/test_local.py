from pathlib import Path

import psutil
import pytest

from epctx.machines import local
from epctx.machines.cluster import Cluster

pytestmark = pytest.mark.needs("module distributed", "the extra [dask]")


def test_a_worker_that_ends_is_replaced_and_all_end_with_the_cluster(tmp_path: Path) -> None:
    with local.cluster(1, tmp_path / "blobs") as (contact, tls, workers):
        cluster = Cluster(contact, tls, failure=lambda: workers.failure)
        (first,) = cluster.members()
        assert first.facts.name == "local-1" and contact.startswith("tls://127.0.0.1:")
        (process,) = workers._running
        process.kill()
        with cluster.changed:
            assert cluster.changed.wait_for(
                lambda: [m.facts.name for m in cluster._members.values()] == ["local-2"], 60
            )
        assert workers.failure is None
        cluster.close()
        (process,) = workers._running
    assert not psutil.pid_exists(process.pid) or process.poll() is not None
