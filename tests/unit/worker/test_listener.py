"""A worker's own process: it listens until there is nobody to listen to."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-P", "-m", "epctx.worker"]


@pytest.mark.parametrize(("said", "code"), [("", 0), ("no message\n", 1)])
def test_it_ends_with_who_it_listens_to(said: str, code: int) -> None:
    ended = subprocess.run(COMMAND, input=said, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (code, "")


def test_an_action_that_it_does_not_know_is_answered() -> None:
    with subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write('{"job": [{"kind": "NoSuch", "action": {}}]}\n')
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())  # who leaves before it wants no result
        process.stdin.close()
        assert process.wait(60) == 0
    assert answer["error"]["why"] == "ValueError: no such action: NoSuch"
