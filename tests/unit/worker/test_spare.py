"""A worker that was started early: taken once, where it fits; ended where nobody wants it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from epctx.worker import spare
from epctx.worker.environment import environment
from epctx.worker.process import Worker


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    monkeypatch.setattr(spare, "_waiting", None)
    spare.start()
    assert spare._waiting is not None
    process = spare._waiting[0]
    yield process
    process.kill()
    process.wait()


def test_the_first_worker_is_the_one_that_was_started(
    started: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    first = Worker(tmp_path / "one", tmp_path / "one.log", 3, variables={})
    assert first._process is started
    second = Worker(tmp_path / "two", tmp_path / "two.log", None, variables={})
    assert second._process is not started
    second.close()
    # What it prints is in its log, and it is where it was sent: as if it had been started there.
    assert first.log.read_bytes() == b""
    pipe = first._process.stdin
    assert pipe is not None
    pipe.write(b"no message\n")
    pipe.flush()
    assert first._process.wait(timeout=60) != 0
    assert "DecodeError" in first.log_tail()
    first.kill()


def test_it_is_where_it_was_sent(started: subprocess.Popen[bytes], tmp_path: Path) -> None:
    worker = Worker(tmp_path / "one", tmp_path / "one.log", 0, variables={})
    process = psutil.Process(worker._process.pid)
    deadline = time.monotonic() + 60
    while not any(each.cwd() == str(tmp_path / "one") for each in (process, *process.children())):
        assert started.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    worker.close()


def test_another_environment_or_an_end_is_not_taken(started: subprocess.Popen[bytes]) -> None:
    assert spare.take(environment({"TZ": "GMT-14"})) is None
    started.kill()
    started.wait()
    assert spare.take(environment({})) is None


def test_who_needs_none_leaves_none(tmp_path: Path) -> None:
    script = "from epctx.worker import spare\nspare.start()\nprint(spare._waiting[0].pid)"
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert not psutil.pid_exists(int(run.stdout))
