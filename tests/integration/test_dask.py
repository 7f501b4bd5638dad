"""Builds on other machines: the bytes of a local build, whoever dies meanwhile; or a clear end."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import psutil
import pytest

from epctx import api
from tests.faults import full_disk
from tests.kit.command_line import epctx
from tests.kit.machines import ENDING, Machines, ends, left, machines
from tests.kit.projects import Project, make

pytestmark = [
    pytest.mark.needs("POSIX", "needs SIGKILL"),
    pytest.mark.needs("module distributed", "the extra [dask]"),
]
LOCAL = ("--on", "dask://local?workers=2")
GROUPS = {"one": ["a", "b"], "two": ["c"], "three": ["d"]}
STAGES = ("load", "optimize", "partition", "compile", "dump", "verify")


def project(folder: Path, **settings: object) -> Project:
    return make(folder, GROUPS, verify={"inputs": {"count": 1}}, **settings)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], bytes]:
    made = project(tmp_path_factory.mktemp("expected") / "p")
    made.build(cache=False)
    return made.files(), made.lock.read_bytes()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with machines(tmp_path_factory.mktemp("machines"), 2) as made:
        yield made


def ran(made: Project, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return epctx("build", "m.yaml", *options, cwd=made.folder, **variables)


def report(made: Project) -> dict[str, Any]:
    text = (made.folder / "dist" / "m.build.json").read_text(encoding="utf-8")
    return {each["group"]: each for each in json.loads(text)["groups"]}


def own(folder: Path) -> dict[str, str]:
    """Variables of a build whose processes can be told from others'."""
    (folder / "tmp").mkdir(exist_ok=True)
    return {"TMPDIR": str(folder / "tmp"), "EPCTX_CACHE_DIR": str(folder / "cache")}


@pytest.mark.soak
def test_a_cluster_of_this_machine_gives_the_bytes_of_a_local_build(
    tmp_path: Path, expected: tuple[dict[str, bytes], bytes]
) -> None:
    made = project(tmp_path / "p")
    done = ran(made, *LOCAL, **own(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (made.files(), made.lock.read_bytes()) == expected
    assert left(tmp_path) == []
    again = ran(made, *LOCAL, "--no-cache", "--locked", **own(tmp_path))
    assert again.returncode == 0, again.stderr
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    "stage",
    [pytest.param(each, marks=() if each == "compile" else pytest.mark.soak) for each in STAGES],
)
def test_a_machine_that_dies_in_a_stage_costs_no_byte(
    tmp_path: Path, stage: str, expected: tuple[dict[str, bytes], bytes]
) -> None:
    made = project(tmp_path / "p")
    ends(tmp_path, stage)
    done = ran(made, *LOCAL, **own(tmp_path), PYTHONPATH=str(ENDING))
    assert not list((tmp_path / "tmp" / "ends").iterdir())  # one has died
    assert done.returncode == 0, done.stderr
    assert (made.files(), made.lock.read_bytes()) == expected
    assert left(tmp_path) == []
    names = {s["machine"] for g in report(made).values() for s in g["stages"]}
    assert names <= {"local-1", "local-2", "local-3"}


@pytest.mark.soak
def test_a_job_with_which_all_machines_die_is_a_failed_group(tmp_path: Path) -> None:
    made = make(tmp_path / "p", {"only": ["a"]}, verify={"inputs": {"count": 1}})
    ends(tmp_path, *["compile"] * 8)
    done = ran(made, *LOCAL, **own(tmp_path), PYTHONPATH=str(ENDING))
    assert done.returncode == 6, done.stderr
    assert "at least 4 workers were lost while they ran it" in done.stderr
    assert "local-" in done.stderr and "Traceback" not in done.stderr
    assert not made.published.exists() and left(tmp_path) == []


def test_workers_that_share_a_folder_give_the_bytes_of_a_local_build(
    tmp_path: Path,
    two: Machines,
    expected: tuple[dict[str, bytes], bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = project(tmp_path / "p")
    for name, text in two.variables.items():
        monkeypatch.setenv(name, text)
    api.build(made.manifest, out=made.folder / "dist", on=two.url)
    assert (made.files(), made.lock.read_bytes()) == expected
    assert two.idle()
    actions = [action for each in report(made).values() for action in each["actions"]]
    assert {each["machine"] for each in actions} <= set(two.names)


def test_pieces_on_two_machines_give_the_bytes_of_a_local_build(
    tmp_path: Path, two: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(tmp_path / "p", {"one": ["a"]}, partition={"pieces": {"count": 4}})

    def transposed(model: onnx.ModelProto) -> None:
        """A weight that a pass makes: pieces refer to a file of the optimized model."""
        (first,) = (each for each in model.graph.initializer if each.name == "w0")
        first.name = "turned"
        turn = onnx.helper.make_node("Transpose", ["turned"], ["w0"], perm=[1, 0])
        model.graph.node.insert(0, turn)

    made.edit("a", transposed)
    made.build(cache=False)
    local = made.files()
    shutil.rmtree(made.folder / "dist")
    for name, text in two.variables.items():
        monkeypatch.setenv(name, text)
    api.build(made.manifest, out=made.folder / "dist", on=two.url)
    assert made.files() == local and two.idle()


@pytest.mark.soak
@pytest.mark.needs("a C compiler", "needs Linux and a C compiler")
def test_a_machine_whose_disk_gets_full_leaves_its_jobs_to_the_others(
    tmp_path: Path, expected: tuple[dict[str, bytes], bytes]
) -> None:
    disk, count = tmp_path / "disk", tmp_path / "count"
    disk.mkdir()
    full_disk.full_from(count, 0)
    variables = full_disk.variables(str(disk), count, full_disk.library(tmp_path))
    made = project(tmp_path / "p")

    def build() -> str:
        process = all_of_them.build(made.folder, "--no-cache")
        said, _ = process.communicate(timeout=120)
        return f"exit {process.returncode}: {said}"

    with machines(tmp_path / "machines", 0) as all_of_them:
        all_of_them.worker(**variables, TMPDIR=str(disk))
        assert build().startswith("exit 0"), "there is room"
        some = full_disk.calls(count) // 5
        full_disk.full_from(count, some)
        other = all_of_them.worker()
        shutil.rmtree(made.folder / "dist")
        assert build().startswith("exit 0")
        assert (made.files(), made.lock.read_bytes()) == expected
        assert full_disk.calls(count) > some
        actions = [action for each in report(made).values() for action in each["actions"]]
        assert "w1" in {each["machine"] for each in actions}
        other.terminate()
        other.wait()
        full_disk.full_from(count, 1)
        alone = build()
    assert alone.startswith("exit 9"), alone
    assert "w0: " in alone and "No space left on device" in alone


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.soak),
        pytest.param(signal.SIGKILL, marks=pytest.mark.soak),
    ],
)
def test_whatever_ends_a_build_ends_its_processes_everywhere(
    tmp_path: Path, number: signal.Signals, two: Machines
) -> None:
    made = project(tmp_path / "p")
    build = at_work(two, made)
    build.send_signal(number)
    output, _ = build.communicate(timeout=300)
    if number is not signal.SIGKILL:
        assert build.returncode == 130, output
        assert "interrupted" in output and "Traceback" not in output
    assert not made.published.exists()
    assert two.idle()


def test_a_scheduler_that_is_lost_ends_the_build_and_workers_find_the_next(
    tmp_path: Path, two: Machines, expected: tuple[dict[str, bytes], bytes]
) -> None:
    made = project(tmp_path / "p")
    build = at_work(two, made)
    two.scheduler.kill()
    output, _ = build.communicate(timeout=300)
    two.scheduler.wait()
    assert build.returncode == 5, output
    assert "the connection to the scheduler is lost" in output and "Traceback" not in output
    assert not made.published.exists() and two.idle()
    served = [two.log(name).count("serves ") for name in two.names]
    two.scheduler_again()
    for name, times in zip(two.names, served, strict=True):
        two.wait_for(name, "serves ", times=times + 1)
    again = two.build(made.folder, "--no-cache")
    output, _ = again.communicate(timeout=120)
    assert again.returncode == 0, output
    assert (made.files(), made.lock.read_bytes()) == expected


def test_the_child_of_a_worker_that_is_killed_dies_with_it(tmp_path: Path, two: Machines) -> None:
    build = at_work(two, project(tmp_path / "p"))
    children = two.children()
    killed = two.kill(of=children[0])
    deadline = time.monotonic() + 300
    while psutil.pid_exists(children[0].pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(children[0].pid)
    output, _ = build.communicate(timeout=120)
    assert build.returncode == 0, output
    two.worker()
    assert killed not in two.names


def at_work(two: Machines, made: Project) -> subprocess.Popen[str]:
    """A build for which a worker has started a process."""
    build = two.build(made.folder, "--no-cache")
    deadline = time.monotonic() + 300
    while not two.children() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert two.children()
    return build
