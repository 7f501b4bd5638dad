"""Builds in which an SDK crashes, hangs, lies or is interrupted: one group fails, nothing leaks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import onnx
import psutil
import pytest
import yaml

from epctx import api
from epctx.engine import build_groups
from epctx.engine.events import Event
from epctx.engine.executor import Cancelled
from epctx.engine.lookup import Lookup
from epctx.engine.state import SessionState
from epctx.errors import CompileError
from tests.kit.building import mlp
from tests.kit.command_line import FAULTY, PROGRAM, environment, epctx
from tests.kit.inline import Inline


def write_manifest(folder: Path, faults: dict[str, str], **settings: object) -> Path:
    """One group a fault, each with a model of its own."""
    folder.mkdir(exist_ok=True)
    for seed, name in enumerate(faults):
        onnx.save(mlp(seed=seed), folder / f"{name}.onnx")
    manifest = {
        "schema_version": 1,
        "name": "m",
        "models": {name: {"path": f"{name}.onnx"} for name in faults},
        "execution_providers": {
            name: {
                "provider": "FaultyExecutionProvider",
                "options": {"fault": fault, "notes": str(folder / "children")},
            }
            for name, fault in faults.items()
        },
        "model_groups": {
            name: {"models": [name], "execution_providers": [name], **settings} for name in faults
        },
    }
    path = folder / "m.yaml"
    path.write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")
    return path


def build(manifest: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    given = {"PYTHONPATH": str(FAULTY), **variables}
    return epctx("build", manifest.name, *arguments, cwd=manifest.parent, **given)


def report(manifest: Path) -> dict[str, dict[str, Any]]:
    document = json.loads((manifest.parent / "dist" / "m.build.json").read_text(encoding="utf-8"))
    return {group["group"]: group for group in document["groups"]}


def leftovers(manifest: Path) -> list[str]:
    dist = manifest.parent / "dist"
    return sorted(p.name for p in dist.iterdir() if p.name not in ("m", "m.build.json", "m.logs"))


FAULTS = {
    "abort": (6, "SIGABRT", "SDK: assertion failed in graph prepare"),
    "exit": (6, "exit code 3", "SDK: native noise"),
    "after": (6, "crashed while exiting, with all work done, exit code 134", "native noise"),
    "native": (6, "crashed while exiting, with all work done, ended by SIGABRT", "native noise"),
    "flood": (6, "exit code 4", "SDK: end of the flood"),
    "endless": (6, "the SDK has said enough", "none"),
    "memory": (6, "MiB of private memory, and may use 600", "EPCTX_LIMIT_WORKER_MEMORY"),
    "protocol": (6, "the worker sent an invalid message", "JSON is malformed"),
    "quiet": (6, "crashed while compiling model quiet, exit code 0", "native noise"),
    "error": (6, "the SDK refuses the graph", "use another SDK"),
    "bug": (6, "FaultyExecutionProvider failed in `open_workspace`", "KeyError: 'surprise'"),
}


MACHINES = pytest.param(
    ("--on", "dask://local?workers=2"),
    id="machines",
    marks=[pytest.mark.needs("module distributed", "the extra [dask]"), pytest.mark.soak],
)


@pytest.fixture(scope="module", params=[pytest.param((), id="here"), MACHINES])
def all_faults(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Path, str]:
    """One build of a group for each fault, and a good one; and what it said on stderr."""
    folder = tmp_path_factory.mktemp("faults")
    faults = {fault: fault for fault in FAULTS} | {"good": "none", "fork": "fork"}
    manifest = write_manifest(folder, faults)
    limits = {"EPCTX_LIMIT_WORKER_MEMORY": str(600 << 20), "EPCTX_LIMIT_WORKER_LOG": str(5 << 20)}
    run = build(manifest, "--keep-going", *request.param, **limits)
    assert run.returncode == 6, run.stderr
    return manifest, run.stderr


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_its_group_in_words(all_faults: tuple[Path, str], fault: str) -> None:
    manifest, _ = all_faults
    code, what, more = FAULTS[fault]
    group = report(manifest)[fault]
    failure = group["failure"]
    assert group["state"] == "failed"
    assert failure["exit_code"] == code
    assert what in failure["what"]
    assert more in f"{failure['why']} {failure['remedy']}"


def test_the_groups_without_a_fault_are_built(all_faults: tuple[Path, str]) -> None:
    manifest, stderr = all_faults
    assert report(manifest)["good"]["state"] == "built"
    published = manifest.parent / "dist" / "m" / "default"
    assert sorted(p.name for p in published.iterdir()) == ["fork", "good"]
    assert leftovers(manifest) == [".m.lock", ".m.record.json"]
    assert "Traceback" not in stderr
    assert (
        "error[E0601]: abort@default: the worker process crashed while compiling model abort, "
        "ended by SIGABRT, an" in stderr
    )


def test_every_failure_names_its_log(all_faults: tuple[Path, str]) -> None:
    manifest, stderr = all_faults
    for name in FAULTS:
        remedy = report(manifest)[name]["failure"]["remedy"]
        log = Path(remedy.rpartition("log: ")[2])
        assert log.parent == manifest.parent / "dist" / "m.logs", remedy
        assert log.is_file() and log.name.startswith(name)
        assert log.relative_to(manifest.parent).as_posix() in stderr


def test_a_log_without_an_end_keeps_its_begin_and_its_end(all_faults: tuple[Path, str]) -> None:
    manifest, _ = all_faults
    (log,) = (manifest.parent / "dist" / "m.logs").glob("endless*.log")
    text = log.read_text(encoding="utf-8")
    assert len(text) < 10 << 20  # the limit, and what came between two looks
    assert "SDK: begin of the endless log" in text and "bytes left out ...]" in text


def test_the_log_has_the_traceback_of_what_an_ep_raises(all_faults: tuple[Path, str]) -> None:
    manifest, _ = all_faults
    (log,) = (manifest.parent / "dist" / "m.logs").glob("bug*.log")
    text = log.read_text(encoding="utf-8")
    assert "Traceback" in text and 'raise KeyError("surprise")' in text


@pytest.mark.needs("POSIX", "process groups are of POSIX systems")
def test_what_a_worker_started_ends_with_it(all_faults: tuple[Path, str]) -> None:
    manifest, _ = all_faults
    children = (manifest.parent / "children").read_text().split()
    assert len(children) == 3
    for child in children:
        assert not psutil.pid_exists(int(child)) or not runs(psutil.Process(int(child)))


def test_without_keep_going_nothing_is_published(tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path, {"bad": "error", "good": "none"})
    run = build(manifest)
    assert run.returncode == 6
    assert not (tmp_path / "dist" / "m").exists()
    assert report(manifest)["good"]["state"] == "skipped"


@pytest.mark.parametrize("options", [pytest.param((), id="here"), MACHINES])
def test_a_hang_ends_at_the_timeout_with_its_children(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    manifest = write_manifest(tmp_path, {"slow": "hang"}, timeout="5s")
    run = build(manifest, *options)
    assert run.returncode == 10
    assert "no result within 5 s" in run.stderr
    log = next((tmp_path / "dist" / "m.logs").glob("slow*.log")).read_text(encoding="utf-8")
    child = int(log.split("SDK: child ")[1].split()[0])
    assert not psutil.pid_exists(child) or not runs(psutil.Process(child))


@pytest.mark.needs("POSIX", "Windows ends a process without asking it")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_leaves_no_process_and_no_file(tmp_path: Path, number: int) -> None:
    manifest = write_manifest(tmp_path, {"slow": "hang"})
    process = subprocess.Popen(
        [*PROGRAM, "build", manifest.name],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(FAULTY)),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = wait_for_children(process, tmp_path)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130, stderr
    assert "interrupted" in stderr
    assert not any(runs(child) for child in children)
    assert leftovers(manifest) == [".m.lock"]


@pytest.mark.needs("POSIX", "Windows has no SIGCHLD")
def test_a_build_ends_as_its_workers_do_if_it_was_started_with_sigchld_ignored(
    tmp_path: Path,
) -> None:
    manifest = write_manifest(tmp_path, {"good": "none", "abort": "abort"})
    # A shell's `trap "" CHLD` does not reach what it starts.
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    run = subprocess.run(
        [sys.executable, "-c", ignoring, *PROGRAM, "build", "--keep-going", manifest.name],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(FAULTY)),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 6 and "ended by SIGABRT" in run.stderr
    assert report(manifest)["good"]["state"] == "built"


@pytest.mark.needs("POSIX", "needs SIGKILL")
def test_workers_die_with_a_killed_build_and_the_next_one_is_right(tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path, {"slow": "hang"})
    process = subprocess.Popen(
        [*PROGRAM, "build", manifest.name],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(FAULTY)),
        start_new_session=True,
    )
    children = wait_for_children(process, tmp_path)
    process.kill()
    process.wait()
    if sys.platform == "linux":
        psutil.wait_procs(children, timeout=300)
        assert not any(map(runs, children))
    else:  # there what the SDK itself started is not found
        worker, child = children
        psutil.wait_procs([worker], timeout=300)
        assert not runs(worker)
        child.kill()
    manifest = write_manifest(tmp_path, {"slow": "none"})
    assert build(manifest).returncode == 0
    assert leftovers(manifest) == [".m.lock", ".m.record.json"]
    assert not (tmp_path / "dist" / "m.logs").exists()


def runs(process: psutil.Process) -> bool:
    """Whether it runs; an orphan that ended may wait for whoever is process 1 to notice."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for_children(process: subprocess.Popen[Any], folder: Path) -> list[psutil.Process]:
    """Wait until the SDK's own child runs; return the worker, then that child."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for log in folder.glob("dist/m.logs/slow*.log"):
            if "SDK: child" in log.read_text(encoding="utf-8"):
                (child,) = (
                    c
                    for c in psutil.Process(process.pid).children(recursive=True)
                    if c.cmdline()[-1].startswith("import time")
                )
                worker = child.parent()
                assert worker is not None
                return [worker, child]
        time.sleep(0.1)
    raise AssertionError("the SDK never started its child")


def test_peak_memory_and_stages_are_in_the_report(tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path, {"good": "none"})
    assert build(manifest).returncode == 0
    group = report(manifest)["good"]
    assert group["peak_memory"] > 30_000_000
    stages = [stage["stage"] for stage in group["stages"]]
    assert stages.count("source") == 1, "it runs beside the others"
    stages.remove("source")
    assert stages == ["load", "optimize", "partition", "compile", "dump", "verify"]
    assert all(stage["end"] >= stage["start"] >= 0 for stage in group["stages"])


def write_mlp() -> None:
    """A model and its manifest, for the reference EP, in the current folder."""
    onnx.save(mlp(), "m.onnx")
    document = {
        "schema_version": 1,
        "name": "m",
        "models": {"m": {"path": "m.onnx"}},
        "execution_providers": {"ep": {"provider": "ReferenceExecutionProvider"}},
        "model_groups": {"g": {"models": ["m"], "execution_providers": ["ep"]}},
    }
    Path("m.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")


def test_what_an_ep_was_given_goes_before_the_build_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs are carried out in this process: another one does not wait until somebody has looked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("epctx.worker.pool.Worker", Inline)
    write_mlp()
    left: dict[str, list[Path]] = {}

    def listen(event: Event) -> None:
        scratch = Path("dist/m.staging/work").glob("s*/session_group")
        left[event.stage or event.state] = list(scratch)

    api.build("m.yaml", cache=False, listener=listen)
    assert left["dump"], "looked for in the wrong place"
    assert left["verified"] == []


@pytest.mark.parametrize("cache", [False, True])
def test_a_compile_waits_for_its_key_only_where_there_is_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: bool
) -> None:
    """Jobs are carried out in this process, so that what happens has one order."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("epctx.worker.pool.Worker", Inline)
    happened: list[str | None] = []
    make = Lookup.session

    def session(self: Lookup, *asked: Any) -> SessionState:
        happened.append("key")
        return make(self, *asked)

    monkeypatch.setattr(Lookup, "session", session)
    write_mlp()
    api.build("m.yaml", cache=cache, listener=lambda event: happened.append(event.stage))
    assert (happened.index("key") < happened.index("compile")) is cache


def test_json_is_alone_on_stdout(tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path, {"good": "none"})
    run = build(manifest, "--format", "json", "-v")
    assert json.loads(run.stdout)["groups"][0]["state"] == "built"
    assert "good@default: good: compile" in run.stderr
    manifest = write_manifest(tmp_path, {"bad": "error"})
    run = build(manifest, "--format", "json")
    (group,) = json.loads(run.stdout)["groups"]
    assert group["failure"]["exit_code"] == run.returncode == 6


def test_what_failed_is_told_not_what_was_ended_for_it() -> None:
    """Of one group's session groups the one that was ended may come first in the order."""
    ended: Future[SessionState] = Future()
    ended.set_exception(Cancelled("another group failed", remedy="see its error"))
    crashed: Future[SessionState] = Future()
    crashed.set_exception(CompileError("crashed", remedy="see its log"))
    with pytest.raises(CompileError, match="crashed"):
        build_groups._raise_first([ended, crashed])
    build_groups._raise_first([ended])
