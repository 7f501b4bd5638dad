"""Whoever is a machine of a cluster runs code where the build runs: docs/machines.md, SECURITY.md.

dask.distributed unpickles an answer before epctx sees it. If this fails with a new version of it,
epctx may promise more than these pages do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from epctx.cache import shared
from epctx.cache.remote.open import open_store
from epctx.files.digest import of_file
from epctx.machines.cluster import Cluster
from tests.kit.machines import LYING, Machines, machines
from tests.kit.projects import make
from tests.kit.vouching import key_pair

pytestmark = pytest.mark.needs("module distributed", "the extra [dask]")
ROOT = Path(__file__).parents[2]
HOSTILE = """
import asyncio, sys
from distributed import Scheduler, Worker
from distributed.protocol import to_serialize
from epctx.machines import serving
from epctx.machines.messages import FACTS, encoded

class Payload:
    def __reduce__(self):
        return eval, (sys.argv[1],)

async def answer(**asked):
    return {"status": "OK", "result": to_serialize(Payload())}

async def main():
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        told = {FACTS: lambda worker: encoded(serving.facts())}
        async with Worker(scheduler.address, startup_information=told, dashboard=False) as worker:
            worker.handlers["run"] = answer
            print(scheduler.address, flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""
"""A scheduler and a worker that answers with a pickle: its code runs where it is unpickled."""


def test_a_worker_can_run_code_in_the_process_that_builds(tmp_path: Path) -> None:
    from epctx.machines import serving

    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w').write(str(__import__('os').getpid()))"
    with subprocess.Popen(
        [sys.executable, "-c", HOSTILE, code],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as machine:
        assert machine.stdin is not None and machine.stdout is not None
        cluster = Cluster(machine.stdout.readline().strip(), None)
        try:
            cluster.ask(serving.describe, "", cluster.members())
        finally:
            cluster.close()
            machine.stdin.close()
    assert ran.read_text(encoding="utf-8") == str(os.getpid())


@pytest.mark.parametrize("page", ["docs/machines.md", "SECURITY.md"])
def test_the_pages_say_so(page: str) -> None:
    words = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert "every machine of the cluster, the building one included" in words


@pytest.fixture(scope="module")
def nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with machines(tmp_path_factory.mktemp("m"), 0) as made:
        yield made


@pytest.mark.parametrize(
    ("lie", "code", "told"),
    [
        ("flipped", 6, "listed digests differ from the written files"),
        ("another digest", 9, "did not come through the shared cache"),
        ("nothing made", 6, "invalid result: listed files do not exist"),
        ("elsewhere", 6, "another machine sent an invalid message: a file"),
        ("results of another", 6, "the worker sent an invalid message"),
        ("no answer", 9, "there is no answer"),
    ],
)
def test_a_worker_that_answers_wrongly_changes_no_byte_that_is_published(
    tmp_path: Path, nobody: Machines, lie: str, code: int, told: str
) -> None:
    made = make(tmp_path / "p", {"g": ["a"]}, verify={"inputs": {"count": 1}})
    worker = nobody.worker(PYTHONPATH=str(LYING), EPCTX_TEST_LIES=lie)
    output, _ = (build := nobody.build(made.folder)).communicate(timeout=300)
    worker.terminate()
    worker.wait(timeout=300)
    assert build.returncode == code and told in output, output
    assert "Traceback" not in output
    assert not made.published.exists() and not made.lock.exists()
    assert not list(tmp_path.rglob("evil"))


def test_the_machine_that_builds_signs_what_workers_without_a_key_have_made(
    tmp_path: Path, nobody: Machines
) -> None:
    made = make(tmp_path / "p", {"g": ["a"]}, verify={"inputs": {"count": 1}})
    private, line = key_pair(tmp_path, "ci-1")
    worker = nobody.worker()
    cache = {"EPCTX_CACHE_DIR": str(tmp_path / "cache"), "EPCTX_CACHE_TRUST": line}
    build = nobody.build(made.folder, EPCTX_CACHE_SIGNING_KEY=str(private), **cache)
    output, _ = build.communicate(timeout=300)
    worker.terminate()
    worker.wait(timeout=300)
    assert build.returncode == 0, output
    store = open_store(nobody.variables["EPCTX_REMOTE_CACHE"])
    records = shared.ls_remote(store)
    assert {each.signers for each in records} == {("ci-1",)}
    assert {each.kind for each in records} >= {"optimize", "compile", "verify"}
    held = {each.name.rpartition("/")[2] for each in store.list("v1/objects/")}
    contents = (
        of_file(path).hex for path in (nobody.folder / "shared" / "v1" / "objects").iterdir()
    )
    assert held == {*contents}, "no answer is left"
