"""What a process did, as its samples tell it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from epctx.worker import sampling


def long_wait(seconds: float) -> None:
    """Found in the samples by its name."""
    time.sleep(seconds)


def test_what_a_thread_did_is_noted_when_it_changes(tmp_path: Path) -> None:
    sampling.start(str(tmp_path), "this")
    assert sampling.folder() == tmp_path
    assert sampling.variables() == {"EPCTX_SAMPLES": str(tmp_path)}
    begun = time.time()
    long_wait(0.2)
    ended = time.time()
    assert sampling.end() == tmp_path
    assert (sampling.folder(), sampling.variables()) == (None, {})
    head, *lines = map(json.loads, (tmp_path / f"{os.getpid()}.jsonl").read_text().splitlines())
    assert head[:2] == ["this", os.getpid()] and head[4] == threading.main_thread().ident
    assert head[2] < head[3] <= begun
    own = [(at, stack) for at, thread, stack in lines if thread == head[4]]
    found = next(i for i, (_, stack) in enumerate(own) if "long_wait" in str(stack))
    assert own[found][0] == pytest.approx(begun, abs=0.1)
    assert own[found + 1][0] == pytest.approx(ended, abs=0.1)


@pytest.mark.needs("POSIX", "there are no forks")
def test_a_process_that_becomes_two_is_sampled_twice(tmp_path: Path) -> None:
    code = (
        "import os, sys; from epctx.worker import sampling; sampling.start(sys.argv[1], 'one'); "
        "child = os.fork(); child and os.waitpid(child, 0); sampling.end()"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
