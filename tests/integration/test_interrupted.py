"""Signals in every stage: exit 130, no process and no file left, what was there intact.

A worker that reaches the stage says so, in a file, and waits for its end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from epctx.cache import Cache, locate
from epctx.cache.locks import alone
from epctx.cache.maintenance import check
from tests.kit.command_line import PROGRAM
from tests.kit.projects import Project, make

pytestmark = pytest.mark.needs("POSIX", "Windows ends a process without asking it")
WAITING = Path(__file__).parents[1] / "faults" / "waiting"
STAGES = ("load", "optimize", "partition", "compile", "dump", "verify")


def project(folder: Path) -> tuple[Project, dict[str, bytes], bytes]:
    """One that was built, and then edited; its published files, and its lock."""
    made = make(folder, {"g": ["a", "b"]}, verify={"inputs": {"count": 1}})
    made.build()
    made.edit("a", lambda model: setattr(model.graph.node[-1], "op_type", "Sigmoid"))
    return made, made.files(), made.lock.read_bytes()


def interrupt(made: Project, stage: str, number: int) -> tuple[int, str]:
    """Start a build, send the signal when a worker is in the stage; exit code and stderr."""
    reached = made.folder / "reached"
    reached.unlink(missing_ok=True)
    process = subprocess.Popen(
        [*PROGRAM, "build", "m.yaml"],
        cwd=made.folder,
        env=os.environ
        | {
            "PYTHONPATH": str(WAITING),
            "EPCTX_LIMIT_LOG_BYTES": str(1000 + STAGES.index(stage)),  # reaches the workers
        },
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while not reached.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert reached.exists() and workers
    process.send_signal(number)
    _, stderr = process.communicate(timeout=300)
    assert not [each for each in workers if each.is_running() and each.status() != "zombie"]
    return process.returncode, stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, dict[str, bytes], bytes]:
    return project(tmp_path_factory.mktemp("interrupted") / "p")


CASES = [(signal.SIGTERM, "compile"), (signal.SIGINT, "verify"), (signal.SIGHUP, "optimize")]
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MORE = [(n, s) for s in STAGES for n in ENDING if (n, s) not in CASES]


@pytest.mark.parametrize(
    ("number", "stage"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.soak) for case in MORE)],
)
def test_nothing_is_left_and_nothing_is_lost(
    built: tuple[Project, dict[str, bytes], bytes], number: int, stage: str
) -> None:
    made, files, lock = built
    code, stderr = interrupt(made, stage, number)
    assert code == 130, stderr
    assert "interrupted" in stderr and "\n  -> run the command again" in stderr
    assert "Traceback" not in stderr and "a bug in epctx" not in stderr
    assert made.files() == files and made.lock.read_bytes() == lock
    left = sorted(path.name for path in (made.folder / "dist").iterdir())
    assert left == [".m.lock", ".m.record.json", "m", "m.build.json"]
    checked = check(Cache(locate(), print))
    assert (checked.corrupt, checked.incomplete) == ((), 0)


def test_the_build_after_them_is_whole(built: tuple[Project, dict[str, bytes], bytes]) -> None:
    made, files, _ = built
    made.build()
    assert made.files().keys() == files.keys() and made.files() != files


@pytest.mark.parametrize("held", ["output", "cache"])
@pytest.mark.parametrize("number", ENDING)
def test_a_wait_for_a_lock_says_so_and_ends(
    built: tuple[Project, dict[str, bytes], bytes], number: int, held: str
) -> None:
    made, _, _ = built
    output = FileLock(made.folder / "dist" / ".m.lock")
    with output if held == "output" else alone(locate(), lambda: None):
        process = subprocess.Popen(
            [*PROGRAM, "build", "m.yaml"],
            cwd=made.folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        said = iter(process.stderr.readline, "")
        assert any("waiting" in line and held in line for line in said)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130 and "interrupted" in stderr
