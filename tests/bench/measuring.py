"""Whole processes, timed side by side: A B A B ..., so that a drift of the machine hits both."""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of design section 12, or one that is shown beside them.

    Attributes:
        what: is measured.
        against: what it is divided by, or a unit.
        hold: the figure to hold.
        least: `hold` is the least that will do, not the most.
    """

    what: str
    against: str
    hold: float | None = None
    least: bool = False

    def holds(self, found: float) -> bool:
        """Whether a figure will do."""
        if self.hold is None:
            return True
        return found >= self.hold if self.least else found <= self.hold


NO_OP = Row(
    what="nothing changed, 50 models, 5 GB", against="python -c 'import yaml, typer'", hold=4
)
QNN_160 = Row(what="cold QNN build, 160x1024^2 MLP", against="bare script that hashes", hold=1.15)
QNN_48 = Row(what="cold QNN build, 48x1024^2 MLP", against="bare script that hashes", hold=1.4)
LARGE = Row(what="2 GB through the reference EP", against="cp, then sha256sum", hold=2)
MEMORY = Row(what="2 GB through the reference EP, anonymous memory", against="MB", hold=400)
PARTITION = Row(what="100,000 nodes partitioned", against="10,000 nodes", hold=12)
JOBS = Row(
    what="speed-up by two jobs, two groups", against="speed-up of two scripts", hold=0.9, least=True
)
DESIGN = (NO_OP, QNN_160, QNN_48, LARGE, MEMORY, PARTITION, JOBS)
"""Design section 12, whole: what is missing at the end of a run was not measured."""

NO_OP_JSON = Row(what="nothing changed, --format json", against="python -c 'import yaml, typer'")
NO_OP_FULL = Row(what="nothing changed, every key made anew", against=NO_OP.against)
RECOMPILED = Row(what="nothing changed", against="bare script that compiles all again")
LAYOUT = Row(what="100,000 nodes laid out for the report", against="10,000 nodes", hold=12)

_GROUP = "ms a group: (n groups - 1 group) / (n - 1)"
GROUPS_COLD = Row(what="200 tiny groups, cold", against=_GROUP, hold=20)
GROUPS_COLD_UNVERIFIED = Row(what="the same, --no-verify", against=_GROUP, hold=20)
GROUPS_MANY = Row(what="1,000 tiny groups, cold", against=_GROUP, hold=20)
GROUPS_MEMORY = Row(what="1,000 tiny groups, cold, main process", against="MB resident", hold=150)
GROUPS_AGAIN = Row(what="1,000 groups, nothing changed, keys made anew", against=_GROUP, hold=2)
GROUPS_REMEMBERED = Row(
    what="1,000 groups, nothing changed, remembered", against=NO_OP.against, hold=1.7
)
GROUPS_PLAN = Row(what="plan of 1,000 groups", against=NO_OP.against, hold=8)
GROUPS_VALIDATE = Row(what="validate of 1,000 groups", against=NO_OP.against, hold=8)

found: dict[Row, float] = {}
"""What this run has measured."""


def held(row: Row, figure: float, note: str) -> None:
    """Note and print a figure; fail where it does not hold."""
    found[row] = figure
    print(f"\n{row.what} / {row.against}: {figure:.3g}; {note}")
    assert row.holds(figure), f"{row.what}: {figure:.3g} does not hold {row.hold}"


def wall(command: Sequence[str], cwd: Path) -> float:
    """Seconds of one run of a command that must do well.

    It may keep the bytecode of what it imports, as an installation has it: where the environment
    forbids that, Python compiles every module of a source tree anew each time. What was written
    before is on the disk, and is not written while it runs.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    if hasattr(os, "sync"):
        os.sync()
    begun = time.perf_counter()
    run = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment)
    seconds = time.perf_counter() - begun
    assert run.returncode == 0, run.stderr
    return seconds


def ratio(row: Row, ours: Callable[[], float], theirs: Callable[[], float], *, runs: int) -> None:
    """Run both in turn; the median of the pairs' ratios is to hold.

    A pair before them does not count: it finds bytecode, libraries and memory cold, of which each
    side has another share.
    """
    ours(), theirs()
    pairs = [(ours(), theirs()) for _ in range(runs)]
    listed = ", ".join(f"{a:.2f}/{b:.2f}" for a, b in pairs)
    held(row, statistics.median(a / b for a, b in pairs), f"seconds: {listed}")


def anonymous_megabytes(command: Sequence[str], cwd: Path) -> float:
    """The most anonymous memory that a command and all its children had at one time (Linux)."""
    process = psutil.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    most = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.02):
            most = max(most, _anonymous(process))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert process.wait() == 0
    finally:
        ended.set()
        watcher.join()
    return most / 1e6


def _anonymous(process: psutil.Process) -> int:
    total = 0
    try:
        for each in (process, *process.children(recursive=True)):
            for line in Path(f"/proc/{each.pid}/status").read_text(encoding="ascii").splitlines():
                if line.startswith("RssAnon:"):
                    total += int(line.split()[1]) * 1024
    except (OSError, psutil.Error):  # one of them has just ended
        return total
    return total
