import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from epctx import codec
from epctx.machines import local
from epctx.machines.cluster import Cluster
from epctx.machines.local import Start

pytestmark = pytest.mark.needs("module distributed", "the extra [dask]")


def test_a_worker_that_ends_is_replaced_and_all_end_with_the_cluster() -> None:
    with local.cluster(1) as (contact, tls, workers, store):
        cluster = Cluster(contact, tls, failure=lambda: workers.failure)
        (first,) = cluster.members()
        assert first.facts.name == "local-1" and contact.startswith("tls://127.0.0.1:")
        (process,) = workers._running
        process.kill()
        deadline = time.monotonic() + 300
        while [each.facts.name for each in cluster.workers()] != ["local-2"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert workers.failure is None and store.startswith("file:///")
        cluster.close()
        (process,) = workers._running
    assert not psutil.pid_exists(process.pid) or process.poll() is not None


def test_two_clusters_at_a_time_do_not_get_into_each_others_way_and_leave_no_files(
    recwarn: pytest.WarningsRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with local.cluster(1) as (one, tls, workers, _), local.cluster(1) as (other, *_):
        assert one != other
        cluster = Cluster(one, tls, failure=lambda: workers.failure)
        assert cluster.members()
        cluster.close()
    assert not list(tmp_path.iterdir())
    assert not [str(each.message) for each in recwarn if "Port" in str(each.message)]


def test_a_worker_ends_with_what_started_it(tmp_path: Path) -> None:
    start = Start(
        contact="tls://127.0.0.1:1",
        store=tmp_path.as_uri(),
        name="w",
        jobs=1,
        ca="",
        cert="",
        key="",
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "epctx.machines.local"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    process.stdin.write(codec.encode(start) + b"\n")
    process.stdin.close()
    process.wait(timeout=300)
