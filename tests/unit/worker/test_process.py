"""What a worker's answer is taken for, when it comes at the same moment as the end of its time."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from epctx import codec
from epctx.actions.action import StageStarted
from epctx.actions.numbers import RunSources, SourceResult
from epctx.manifest import VerifySettings
from epctx.worker.process import Worker, _Job
from epctx.worker.protocol import Interim, Message

JOB = RunSources(sources=(), settings=VerifySettings(), folder=Path("/nowhere"))


def raw(unfed: dict[str, str]) -> msgspec.Raw:
    return msgspec.Raw(codec.encode(SourceResult(unfed=unfed)))


@pytest.mark.parametrize(("left", "found"), [(0.0, {"a": "ended"}), (60.0, {}), (None, {})])
def test_who_has_no_time_left_is_not_heard_any_more(
    monkeypatch: pytest.MonkeyPatch, left: float | None, found: dict[str, str]
) -> None:
    """Whatever it has said by then: else its speed decides what a budget of nothing gives.

    All its lines are there at once, which no process can be made to do.
    """
    worker: Any = Worker.__new__(Worker)
    worker._lines, worker.expired = queue.SimpleQueue(), False
    interim = Interim(result=raw({"a": "ended"}), left=left)
    for message in (Message(interim=interim), Message(result=raw({})), Message(done=7)):
        worker._lines.put(msgspec.json.encode(message))
    monkeypatch.setattr(Worker, "kill", lambda worker: None)
    (result,) = worker._answer([JOB], lambda stage: None, None, None)
    assert (result.unfed, worker.expired) == (found, left == 0)


def test_a_crash_in_any_stage_is_told_by_what_was_done(tmp_path: Path) -> None:
    """Each that is announced has its word: a worker may crash in it."""
    (tmp_path / "w.log").touch()
    for stage in get_args(get_type_hints(StageStarted)["stage"]):
        job = _Job(tmp_path / "w.log")
        job.stage = StageStarted(stage=stage, model="m")
        error = job.crashed(-6, None)
        assert "crashed while " in error.what and "model m" in error.what
