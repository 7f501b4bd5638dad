"""Whoever is a machine of a cluster runs code where the build runs: docs/machines.md, SECURITY.md.

dask.distributed unpickles an answer before epctx sees it. If this fails with a new version of it,
epctx may promise more than these pages do.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from epctx.machines.cluster import Cluster, Lost

pytestmark = pytest.mark.needs("module distributed", "the extra [dask]")
ROOT = Path(__file__).parents[2]
HOSTILE = """
import asyncio, sys
from distributed import Scheduler, Worker
from distributed.protocol import to_serialize
from distributed.protocol.serialize import ToPickle
from epctx import codec
from epctx.machines import serving
from epctx.machines.messages import FACTS, HANDLER

kind, code = sys.argv[1:]
facts = codec.encode(serving.facts(".", None)).decode()

class Payload:
    def __reduce__(self):
        return eval, (code,)

async def answer(what, text, key):
    return {"pickled": ToPickle, "serialized": to_serialize}[kind](Payload())

async def main():
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        told = {FACTS: lambda worker: facts}
        async with Worker(scheduler.address, startup_information=told, dashboard=False) as worker:
            worker.handlers[HANDLER] = answer
            print(scheduler.address, flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""
"""A scheduler and a worker that answers with a pickle: its code runs where it is unpickled."""


@pytest.mark.parametrize(
    ("kind", "direct", "deserializers"),
    [
        pytest.param("serialized", False, None, id="by the scheduler"),
        pytest.param("pickled", True, None, id="directly"),
        pytest.param("pickled", True, ["msgpack"], id="without pickle among the deserializers"),
    ],
)
def test_a_worker_can_run_code_in_the_process_that_builds(
    kind: str,
    direct: bool,
    deserializers: list[str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import distributed

    client = functools.partial(distributed.Client, deserializers=deserializers)
    monkeypatch.setattr(distributed, "Client", client)
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w').write(str(__import__('os').getpid()))"
    with subprocess.Popen(
        [sys.executable, "-c", HOSTILE, kind, code],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as machine:
        assert machine.stdin is not None and machine.stdout is not None
        cluster = Cluster(machine.stdout.readline().strip(), None, direct=direct)
        try:
            (member,) = cluster.members()
            call = cluster.call(member.address, "describe", "", cluster.number())
            with pytest.raises(Lost, match="it answered nothing"):
                call.wait()
        finally:
            cluster.close()
            machine.stdin.close()
    assert ran.read_text(encoding="utf-8") == str(os.getpid())


@pytest.mark.parametrize("page", ["docs/machines.md", "SECURITY.md"])
def test_the_pages_say_so(page: str) -> None:
    words = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert "every machine of the cluster, the building one included" in words
