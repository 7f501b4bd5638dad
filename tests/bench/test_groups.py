"""Manifests of many groups, each of a tiny model of its own (design section 12)."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.bench import measuring
from tests.bench.measuring import Row, cpu, held, ratio, wall
from tests.bench.projects import write_manifest, write_mlp
from tests.kit.command_line import PROGRAM

pytestmark = pytest.mark.bench
BUILD = [*PROGRAM, "build", "m.yaml"]
MACHINES = ["--on", "dask://local?workers=2"]
IMPORTS = [sys.executable, "-c", "import yaml, typer"]
RUNS = 3


def project(folder: Path, groups: int) -> Path:
    """A new project; what was built is in its `dist`, in a cache of its own."""
    folder.mkdir(parents=True)
    names = [f"m{number}" for number in range(groups)]
    for seed, name in enumerate(names):
        write_mlp(folder / f"{name}.onnx", 1, 16, seed)
    write_manifest(folder, names, "ReferenceExecutionProvider")
    return folder


def run(command: Sequence[str], folder: Path) -> float:
    """Seconds of a command in a project, with the project's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPCTX_CACHE_DIR", str(folder / "cache"))
        return wall(command, folder)


def each(row: Row, seconds: Callable[[int], float], groups: int) -> None:
    """Hold what a group costs: of pairs of a run with many and a run with one, the median."""
    seconds(1)
    pairs = [(seconds(groups), seconds(1)) for _ in range(RUNS)]
    listed = ", ".join(f"{many:.2f}/{one:.2f}" for many, one in pairs)
    costs = [1000 * (many - one) / (groups - 1) for many, one in pairs]
    held(row, statistics.median(costs), f"seconds: {listed}")


@pytest.mark.parametrize(
    ("row", "groups", "options"),
    [
        (measuring.GROUPS_COLD, 200, []),
        (measuring.GROUPS_COLD_UNVERIFIED, 200, ["--no-verify"]),
        (measuring.GROUPS_MANY, 1000, []),
    ],
    ids=["200", "200 unverified", "1000"],
)
def test_a_group_of_many_costs_little(
    tmp_path: Path, row: Row, groups: int, options: list[str]
) -> None:
    def cold(n: int) -> float:
        return run([*BUILD, *options], project(tmp_path / f"{n}-{time.monotonic_ns()}", n))

    each(row, cold, groups)


@pytest.mark.needs("module distributed", "the extra [dask]")
@pytest.mark.parametrize(
    ("row", "groups"),
    [(measuring.GROUPS_MACHINES, 200), (measuring.GROUPS_MACHINES_MANY, 1000)],
    ids=["200", "1000"],
)
def test_a_group_of_many_costs_little_more_on_machines(
    tmp_path: Path, row: Row, groups: int
) -> None:
    """What a cluster of this machine takes to start is not counted."""

    def cold(n: int, *options: str) -> float:
        return run([*BUILD, *options], project(tmp_path / f"{n}-{time.monotonic_ns()}", n))

    cold(1)
    runs = [
        [cold(groups, *MACHINES), cold(groups), cold(1, *MACHINES), cold(1)] for _ in range(RUNS)
    ]
    ratios = ", ".join(f"{many:.1f}/{here:.1f}" for many, here, _, _ in runs)
    more = [1000 * (many - here - one + own) / (groups - 1) for many, here, one, own in runs]
    held(row, statistics.median(more), f"seconds there/here: {ratios}")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Projects of so many groups that were built, and of which nothing has changed since."""
    root = tmp_path_factory.mktemp("groups")
    folders = {groups: project(root / str(groups), groups) for groups in (1000, 1)}
    for folder in folders.values():
        run(BUILD, folder)
        time.sleep(2.5)  # until what was just written may be believed unread
        run(BUILD, folder)
    return folders


def test_a_thousand_groups_need_little_memory(tmp_path: Path) -> None:
    most = resident_megabytes(project(tmp_path / "many", 1000))
    held(measuring.GROUPS_MEMORY, most, "the most that it had")


@pytest.mark.needs("module distributed", "the extra [dask]")
def test_a_thousand_groups_on_machines_need_little_memory(tmp_path: Path) -> None:
    most = resident_megabytes(project(tmp_path / "many", 1000), *MACHINES)
    held(measuring.GROUPS_MACHINES_MEMORY, most, "the most that it had")


@pytest.mark.needs("file systems that tell of each write")
def test_a_group_of_which_nothing_changed_costs_little(built: dict[int, Path]) -> None:
    def again(groups: int) -> float:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("EPCTX_CACHE_DIR", str(built[groups] / "cache"))
            return cpu(BUILD, built[groups])

    each(measuring.GROUPS_AGAIN, again, groups=1000)


@pytest.mark.needs("file systems that tell of each write")
@pytest.mark.parametrize(
    ("row", "command"),
    [
        (measuring.GROUPS_PLAN, [*PROGRAM, "plan", "m.yaml"]),
        (measuring.GROUPS_VALIDATE, [*PROGRAM, "validate", "m.yaml"]),
    ],
    ids=["plan", "validate"],
)
def test_a_command_on_a_thousand_groups(
    built: dict[int, Path], row: Row, command: list[str]
) -> None:
    many = built[1000]
    ratio(row, lambda: run(command, many), lambda: run(IMPORTS, many), runs=RUNS)


def resident_megabytes(folder: Path, *options: str) -> float:
    """The most memory that the main process of a cold build had (Linux)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPCTX_CACHE_DIR", str(folder / "cache"))
        process = subprocess.Popen(
            [*BUILD, *options], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    status, most = Path(f"/proc/{process.pid}/status"), 0
    while process.poll() is None:
        lines = status.read_text(encoding="ascii").splitlines()
        most = max([most, *(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))])
        time.sleep(0.05)
    assert process.returncode == 0
    return most * 1024 / 1e6
