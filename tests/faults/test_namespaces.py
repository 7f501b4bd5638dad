"""Two machines, as containers are two, on one cache and one output: processes have the same numbers
there, and neither sees the other's."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from epctx.cache import Cache, locate
from epctx.cache.maintenance import check
from tests.kit.command_line import PROGRAM, environment
from tests.kit.host import APART
from tests.kit.projects import Project, actions, builds_that_wait, make

pytestmark = pytest.mark.needs("namespaces", "unshare makes them, where the kernel lets it")


def start(project: Project, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*APART, *PROGRAM, *command],
        cwd=project.folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ends(processes: list[subprocess.Popen[str]]) -> list[str]:
    said = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), said
    return said


def test_on_one_cache_each_action_is_carried_out_once(tmp_path: Path) -> None:
    first = make(tmp_path / "0", {"g": ["a", "b"]})
    shutil.copytree(first.folder, tmp_path / "1")
    second = Project(folder=tmp_path / "1", document=first.document)
    ends([start(each, "build", "m.yaml") for each in (first, second)])
    done = Counter([*actions(first), *actions(second)])
    assert len(done) == 4 and set(done.values()) == {1}
    assert first.files() == second.files()
    checked = check(Cache(locate(), print))
    assert (checked.corrupt, checked.incomplete) == ((), 0)
    assert not any((locate().root / "temporary").iterdir())


def test_on_one_output_they_wait_for_each_other(tmp_path: Path) -> None:
    project = make(tmp_path / "p", {"g": ["a"]})
    processes = builds_that_wait(project, lambda: start(project, "build", "m.yaml"))
    ends(processes)
    ends([start(project, "verify", "dist", "--lock", "m.lock.yaml")])
    left = {path.name for path in (project.folder / "dist").iterdir()}
    assert left == {".m.lock", ".m.record.json", "m", "m.build.json"}


def test_what_a_killed_machine_left_is_in_nobodys_way(tmp_path: Path) -> None:
    project = make(tmp_path / "p", {"g": ["a"], "h": ["b"]})
    process = start(project, "build", "m.yaml", "--jobs", "1", "-v")
    assert process.stderr is not None
    for line in process.stderr:
        if "compile" in line:
            break
    process.kill()  # and with it, its namespace and all in it
    process.communicate(timeout=300)
    ends([start(project, "build", "m.yaml")])
    assert not any((locate().root / "temporary").iterdir())
    assert (project.published / "g" / "a_ctx.onnx").is_file()
