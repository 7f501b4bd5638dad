"""Machines that die at any moment, many of them: each build is right, or says why it is not."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from epctx.machines import cluster
from tests.kit.command_line import PROGRAM, environment
from tests.kit.machines import left
from tests.kit.machines import machines as cluster_of
from tests.kit.projects import make
from tests.kit.store_servers import Servers

pytestmark = [
    pytest.mark.needs("POSIX", "needs SIGKILL"),
    pytest.mark.needs("module distributed", "the extra [dask]"),
    pytest.mark.soak,
]
KILLS = 50


def machines(build: int) -> list[psutil.Process]:
    """The worker processes of a local cluster."""
    try:
        children = psutil.Process(build).children()
    except psutil.NoSuchProcess:
        return []
    return [each for each in children if "epctx.machines" in " ".join(each.cmdline())]


def test_fifty_machines_that_die_at_random_cost_no_byte(tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(6)]
    made = make(tmp_path / "p", {name: [name] for name in names}, verify={"inputs": {"count": 1}})
    made.build(cache=False)
    expected, lock = made.files(), made.lock.read_bytes()
    (tmp_path / "tmp").mkdir()
    chance, killed, whole = random.Random(0), 0, 0
    while killed < KILLS:
        build = subprocess.Popen(
            [*PROGRAM, "build", "m.yaml", "--no-cache", "--on", "dask://local?workers=3"],
            cwd=made.folder,
            env=environment(TMPDIR=str(tmp_path / "tmp")),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while build.poll() is None and killed < KILLS:
            time.sleep(chance.uniform(0.5, 3))
            found = machines(build.pid)
            if found:
                os.kill(chance.choice(found).pid, signal.SIGKILL)
                killed += 1
        output, _ = build.communicate(timeout=300)
        assert "Traceback" not in output, output
        assert build.returncode in (0, 6), output
        whole += build.returncode == 0
        assert (made.files(), made.lock.read_bytes()) == (expected, lock)
        assert left(tmp_path) == []
    assert whole and cluster.SILENT


def test_a_network_that_is_cut_for_a_minute_is_told_or_waited_for(tmp_path: Path) -> None:
    """A scheduler that is stopped answers nobody: as a cut does, to both sides."""
    with cluster_of(tmp_path / "m", 2) as found:
        made = make(tmp_path / "p", {"g": ["a"], "h": ["b"]}, verify={"inputs": {"count": 1}})
        build = found.build(made.folder, "--no-cache")
        deadline = time.monotonic() + 300
        while not found.children() and time.monotonic() < deadline:
            time.sleep(0.01)
        found.scheduler.send_signal(signal.SIGSTOP)
        time.sleep(60)
        found.scheduler.send_signal(signal.SIGCONT)
        output, _ = build.communicate(timeout=180)
        assert build.returncode in (0, 5) and "Traceback" not in output, output
        assert found.idle()
        assert made.published.exists() == (build.returncode == 0)


def test_sixty_groups_of_two_users_and_twenty_kills_give_the_bytes_of_a_local_build(
    tmp_path: Path, store_servers: Servers
) -> None:
    """The users have homes and caches of their own, and share an S3 server and two workers."""
    names = [f"m{number}" for number in range(60)]
    users = [
        make(tmp_path / user, {name: [name] for name in names}, verify={"inputs": {"count": 1}})
        for user in ("ada", "ben")
    ]
    users[0].build(cache=False)
    expected, lock = users[0].files(), users[0].lock.read_bytes()
    shutil.rmtree(users[0].folder / "dist")
    users[0].lock.unlink()
    server = store_servers["s3"]
    shared = {"EPCTX_REMOTE_CACHE": server.url(), **server.environment()}
    chance, killed = random.Random(0), 0
    with cluster_of(tmp_path / "m", 2, **shared) as found:
        builds = []
        for made in users:
            home = tmp_path / f"home-{made.folder.name}"
            home.mkdir()
            own = {"HOME": str(home), "EPCTX_CACHE_DIR": str(home / "cache")}
            builds.append(found.build(made.folder, **own))
        while any(build.poll() is None for build in builds) and killed < 20:
            time.sleep(chance.uniform(0.2, 1))
            worker = chance.choice([each for each in found.workers if each.poll() is None])
            worker.kill()
            worker.wait()
            killed += 1
            found.worker()
        for made, build in zip(users, builds, strict=True):
            output, _ = build.communicate(timeout=600)
            assert build.returncode == 0 and "Traceback" not in output, output
            assert (made.files(), made.lock.read_bytes()) == (expected, lock)
        assert found.idle()
    assert left(tmp_path / "m") == []
    print(f"killed {killed} workers")
    assert killed == 20, "the builds were too short"
