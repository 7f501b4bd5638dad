"""Samples of processes, as a trace and as a table."""

from __future__ import annotations

import json
from pathlib import Path

from epctx.commands import profile

MAIN, OTHER = 7, 8
LINES = (
    ["worker", 42, 100.0, 100.05, MAIN],
    [100.05, MAIN, ["a.py:run", "<frozen importlib._bootstrap>:_find_and_load"]],
    [100.10, OTHER, ["queue.py:get", "threading.py:wait"]],
    [100.25, MAIN, ["a.py:run", "epctx/files/hashing.py:hash_all"]],
    [100.30, MAIN, ["a.py:run"]],
    [100.40, MAIN, []],
)


def test_a_trace_has_functions_one_in_the_other(tmp_path: Path) -> None:
    (tmp_path / "42.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    (spent,) = profile.write(tmp_path, tmp_path / "trace.json")
    assert spent.process == "worker"
    assert round(spent.seconds, 3) == 0.4
    assert {kind: round(seconds, 3) for kind, seconds in spent.on.items()} == {
        "imports": 0.2,
        "else": 0.1,
        "interpreter": 0.05,
        "hashing": 0.05,
    }
    trace = json.loads((tmp_path / "trace.json").read_text())
    lasting = {
        each["name"]: (round(each["ts"] / 1e6, 3), round(each["dur"] / 1e6, 3))
        for each in trace["traceEvents"]
        if each["ph"] == "X" and each["tid"] == MAIN
    }
    assert lasting == {
        "interpreter": (100.0, 0.05),
        "a.py:run": (100.05, 0.35),
        "<frozen importlib._bootstrap>:_find_and_load": (100.05, 0.2),
        "epctx/files/hashing.py:hash_all": (100.25, 0.05),
    }
    assert {each["pid"] for each in trace["traceEvents"]} == {42}
