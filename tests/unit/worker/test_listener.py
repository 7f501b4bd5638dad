"""A worker's own process: it listens until there is nobody to listen to."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("said", "code"), [("", 0), ("no message\n", 1), ('{"kind": "NoSuchJob"}\n', 0)]
)
def test_it_ends_with_who_it_listens_to(said: str, code: int) -> None:
    command = [sys.executable, "-P", "-m", "epctx.worker"]
    ended = subprocess.run(command, input=said, capture_output=True, text=True, timeout=60)
    assert ended.returncode == code
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    if "NoSuchJob" in said:
        assert answers[0]["error"]["why"] == "ValueError: no such job: NoSuchJob"
    else:
        assert answers == []
