"""One worker process: its jobs, crashes and environment."""

from __future__ import annotations

import math
import queue
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import msgspec
import onnx
import pytest

from epctx import codec
from epctx.actions.action import StageStarted
from epctx.actions.run_models import RunSource, SourceResult
from epctx.actions.verify import Check
from epctx.errors import TimedOut
from epctx.manifest import ModelSource, VerifyInputs
from epctx.providers.onnxruntime import plugins
from epctx.verification.findings import FolderReport
from epctx.verification.request import VerifyRequest
from epctx.worker import process
from epctx.worker.process import Worker, _Job, environment
from epctx.worker.protocol import Message
from tests.kit import folders, onnx_text
from tests.kit.building import mlp
from tests.kit.inline import Inline

ENDLESS = """
g (float[3] x) => (float[3] y) <int64 n = {9000000000000000000}, bool go = {1}> {
  y = Loop (n, go, x) <body = b (int64 i, bool c, float[3] s) => (bool d, float[3] t) {
    d = Identity (c) t = Neg (s)
  }>
}"""


def source(folder: Path, model: onnx.ModelProto, name: str, index: int = 0) -> RunSource:
    onnx.save(model, folder / f"{name}.onnx")
    return RunSource(
        source=ModelSource(name=name, path=folder / f"{name}.onnx"),
        index=index,
        settings=VerifyInputs(),
        folder=folder / "kept",
    )


@pytest.mark.parametrize(("budget", "ended"), [(0.0, 1), (60.0, 3), (None, 3)])
def test_who_has_no_time_left_is_not_heard_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: float | None, ended: int
) -> None:
    """Whatever it has said by then: else its speed decides what a budget of nothing gives.

    All its lines are there at once, which no process can be made to do.
    """
    worker: Any = Worker.__new__(Worker)
    worker._lines, worker.expired = queue.SimpleQueue(), False
    worker._next_check = math.inf  # no process is there to watch
    report = FolderReport(folder="f", models=(), findings=(), numbers=())
    said = [report, SourceResult(ran=True), SourceResult(ran=False)]
    for each in said:
        worker._lines.put(msgspec.json.encode(Message(result=msgspec.Raw(codec.encode(each)))))
    worker._lines.put(msgspec.json.encode(Message(done=7)))
    monkeypatch.setattr(Worker, "kill", lambda worker: None)
    runs = [source(tmp_path, mlp(), "m", index) for index in range(2)]
    heard: list[Any] = []
    results = worker._answer(
        [Check(), *runs],
        lambda stage: None,
        lambda *result: heard.append(result),
        (None, None),
        budget,
    )
    assert (results, worker.expired) == (said[:ended], budget == 0)
    assert heard == list(enumerate(results))


def test_a_worker_that_never_pauses_is_held_to_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Any = Worker.__new__(Worker)
    worker._lines, worker._next_check = queue.SimpleQueue(), math.inf
    worker._job = SimpleNamespace(where="g@t")
    worker._lines.put(msgspec.json.encode(Message(done=7)))
    killed: list[object] = []
    monkeypatch.setattr(Worker, "kill", lambda worker: killed.append(worker))
    with pytest.raises(TimedOut, match="no result within 3 s"):
        worker._receive(time.monotonic() - 1, 3.0, None)
    assert killed == [worker]


@pytest.mark.parametrize("kind", [Worker, Inline])
def test_a_budget_of_nothing_leaves_out_what_is_bounded(
    tmp_path: Path, kind: type[Worker] | type[Inline]
) -> None:
    worker = kind(tmp_path / "w", tmp_path / "log", None, variables={})
    check = Check(request=VerifyRequest(folder=folders.write(tmp_path / "out"), label="g"))
    run = source(tmp_path, mlp(), "m")
    results = worker.run([check, run, check], started=lambda stage: None, budget=0.0)
    assert [type(each) for each in results] == [FolderReport] and worker.expired
    assert worker.alive, "nothing was begun that had to be ended"
    worker.close()
    assert not (tmp_path / "kept").exists()


def test_an_action_that_does_not_end_is_ended_and_what_was_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0])
    monkeypatch.setattr(process, "time", clock)
    endless = source(tmp_path, onnx_text.proto(ENDLESS), "endless")
    job = [source(tmp_path, mlp(), "m"), source(tmp_path, mlp(), "m", 1), endless]

    def started(stage: StageStarted) -> None:
        ahead[0] += 1000 * (stage.model == "endless (source)")

    worker = Worker(tmp_path / "w", tmp_path / "log", None, variables={})
    heard: list[int] = []
    results = worker.run(
        job, started=started, finished=lambda number, _: heard.append(number), budget=900.0
    )
    assert [each.ran for each in results] == [True, True] and heard == [0, 1]
    assert worker.expired and not worker.alive
    worker.close()
    assert len(list((tmp_path / "kept" / "m").glob("*/output_0.pb"))) == 2
    assert not list((tmp_path / "kept").glob("endless/*/output_0.pb"))


def test_a_crash_in_any_stage_is_told_by_what_was_done(tmp_path: Path) -> None:
    """Each that is announced has its word: a worker may crash in it."""
    (tmp_path / "w.log").touch()
    for stage in get_args(get_type_hints(StageStarted)["stage"]):
        job = _Job(tmp_path / "w.log")
        job.stage = StageStarted(stage=stage, model="m")
        error = job.crashed(-6, None)
        assert "crashed while " in error.what and "model m" in error.what


def test_it_is_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TZ", "GMT-14")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    found = environment({})
    assert "OMP_NUM_THREADS" not in found
    assert (found["TZ"], found["PYTHONHASHSEED"], found["LC_ALL"]) == ("UTC", "0", "C.UTF-8")


def test_what_is_varied_gets_through() -> None:
    found = environment({"TZ": "GMT-14", "CAPTURE": "me"})
    assert (found["TZ"], found["CAPTURE"]) == ("GMT-14", "me")
    assert found["PYTHONHASHSEED"] == "0"


def test_hidden_devices_are_hidden_from_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugins.HIDE, "QNNExecutionProvider")
    assert environment({})[plugins.HIDE] == "QNNExecutionProvider"
