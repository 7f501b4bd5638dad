"""Builds that are killed at any moment, and many at once on one cache."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from epctx.cache import Cache, locate
from epctx.cache.maintenance import check
from tests.kit.command_line import PROGRAM
from tests.kit.projects import Project, actions, builds_that_wait, make


def command(*arguments: str) -> list[str]:
    return [*PROGRAM, "build", "m.yaml", *arguments]


def start(project: Project, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments),
        cwd=project.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processor_seconds() -> float:
    """What ended children have used: unlike a clock, it does not tell what else goes on here."""
    spent = os.times()
    return spent.children_user + spent.children_system


def build(project: Project, *arguments: str) -> float:
    """Build in a process of its own; return the seconds of processors that it took."""
    begun = processor_seconds()
    run = subprocess.run(
        command(*arguments), cwd=project.folder, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return processor_seconds() - begun


def copy(project: Project, folder: Path) -> Project:
    shutil.copytree(project.folder, folder)
    return Project(folder=folder, document=project.document)


GROUPS = {"one": ["a"], "two": ["b", "c"], "three": ["d"]}


def test_four_builds_at_once_carry_out_each_action_once(tmp_path: Path) -> None:
    project = make(tmp_path / "0", GROUPS)
    copies = [project, *(copy(project, tmp_path / str(n)) for n in range(1, 4))]
    processes = [start(each) for each in copies]
    for process in processes:
        _, stderr = process.communicate(timeout=240)
        assert process.returncode == 0, stderr
    done = Counter(action for each in copies for action in actions(each))
    assert Counter(kind for kind, _ in done) == {"optimize": 4, "compile": 3, "verify": 3}
    assert set(done.values()) == {1}
    assert all(each.files() == project.files() for each in copies)
    assert len({each.lock.read_bytes() for each in copies}) == 1
    checked = check(Cache(locate(), print))
    assert (checked.corrupt, checked.incomplete) == ((), 0)


def test_builds_of_one_output_wait_for_each_other(tmp_path: Path) -> None:
    project = make(tmp_path / "p", GROUPS)
    processes = builds_that_wait(project, lambda: start(project))
    said = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    assert sorted(p.name for p in (project.folder / "dist").iterdir()) == [
        ".m.lock", ".m.record.json", "m", "m.build.json",
    ]  # fmt: skip


def killed(project: Project, after: float) -> bool:
    """Start a build and kill it after some seconds; whether it was still running."""
    process = start(project)
    try:
        process.communicate(timeout=after)
        return False
    except subprocess.TimeoutExpired:
        workers = psutil.Process(process.pid).children(recursive=True)
        if os.name == "nt":
            process.kill()
        else:
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        # The workers end by themselves, as their parent is gone.
        _, alive = psutil.wait_procs(workers, timeout=300)
        assert not alive
        return True


def check_after(project: Project, clean: dict[str, bytes], lock: bytes) -> float:
    """Build after a kill; return the seconds that it took."""
    took = build(project)
    assert project.files() == clean
    assert project.lock.read_bytes() == lock
    assert sorted(p.name for p in (project.folder / "dist").iterdir()) == [
        ".m.lock", ".m.record.json", "m", "m.build.json",
    ]  # fmt: skip
    assert not any((locate().root / "temporary").iterdir())
    checked = check(Cache(locate(), print))
    assert (checked.corrupt, checked.incomplete) == ((), 0)
    return took


def forget(project: Project) -> None:
    """Remove all that builds have left."""
    shutil.rmtree(locate().folder)
    shutil.rmtree(project.folder / "dist")
    project.lock.unlink()


def kill_again_and_again(project: Project, times: int) -> list[float]:
    """Kill builds at random moments and build again; what that took, as `build` has it."""
    begun = time.monotonic()
    build(project)
    lasts = time.monotonic() - begun
    clean, lock = project.files(), project.lock.read_bytes()
    moments = random.Random(7)
    found: list[float] = []
    while len(found) < times:
        forget(project)
        was_running = killed(project, moments.uniform(0.1, lasts * 0.95))
        took = check_after(project, clean, lock)
        if was_running:
            found.append(took)
    return found


def test_a_killed_build_leaves_nothing_behind_and_is_never_in_the_way(tmp_path: Path) -> None:
    assert len(kill_again_and_again(make(tmp_path / "p", GROUPS), 2)) == 2


@pytest.mark.soak
def test_fifty_killed_builds(tmp_path: Path) -> None:
    project = make(tmp_path / "p", GROUPS)
    from_scratch = []
    for _ in range(9):
        from_scratch.append(build(project))
        forget(project)
    slowest = max(from_scratch)
    ratios = sorted(took / slowest for took in kill_again_and_again(project, 50))
    print(f"\nagainst the slowest from scratch: median {ratios[25]:.2f}, worst {ratios[-1]:.2f}")
    # Never slower by more than builds from scratch differ. Of models so small most is the start.
    assert ratios[25] < 1.0
    assert ratios[-1] < 1.25


def test_what_was_done_before_a_kill_is_not_done_again(tmp_path: Path) -> None:
    project = make(tmp_path / "p", GROUPS)
    process = start(project, "--jobs", "1", "-v")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("two@default: b: compile"):
            process.kill()
            break
    process.communicate()
    build(project)
    again = Counter(kind for kind, _ in actions(project))
    assert again["compile"] == 2
    assert again["optimize"] <= 2
