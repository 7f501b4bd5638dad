"""Whole processes, timed side by side: A B A B ..., so that a drift of the machine hits both."""

from __future__ import annotations

import math
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of `HELD`, or one that is shown beside them.

    Attributes:
        what: is measured.
        against: what it is divided by, or a unit.
        hold: the most that will do.
    """

    what: str
    against: str
    hold: float | None = None

    def holds(self, found: float) -> bool:
        """Whether a figure will do."""
        return self.hold is None or found <= self.hold


IMPORTS = "python -c 'import yaml, typer'"
NO_OP = Row(what="nothing changed, two groups", against="seconds of CPU", hold=0.6)
HELP = Row(what="epctx --help", against="seconds", hold=0.6)
QNN_160 = Row(what="cold QNN build, 160x1024^2 MLP", against="bare script that hashes", hold=1.15)
QNN_48 = Row(what="cold QNN build, 48x1024^2 MLP", against="bare script that hashes", hold=1.15)
LARGE = Row(what="2 GB through the reference EP", against="cp, then sha256sum", hold=2)
MEMORY = Row(what="2 GB through the reference EP, anonymous memory", against="MB", hold=400)
PARTITION = Row(what="100,000 nodes partitioned", against="10,000 nodes", hold=12)
JOBS = Row(what="two groups, two jobs", against="two bare scripts side by side", hold=1.3)
"""What a user waits for. The speed-up by a second job, which stood here, falls when a build with
one job gets quicker, though nobody waits longer for two."""

RECOMPILED = Row(
    what="nothing changed, 50 models, 5 GB", against="bare script that compiles all again"
)
LAYOUT = Row(what="100,000 nodes laid out for the report", against="10,000 nodes", hold=12)

_GROUP = "ms a group: (n groups - 1 group) / (n - 1)"
GROUPS_COLD = Row(what="200 tiny groups, cold", against=_GROUP, hold=25)
GROUPS_COLD_UNVERIFIED = Row(what="the same, --no-verify", against=_GROUP, hold=20)
GROUPS_MANY = Row(what="1,000 tiny groups, cold", against=_GROUP, hold=25)
GROUPS_MEMORY = Row(what="1,000 tiny groups, cold, main process", against="MB resident", hold=150)
GROUPS_MACHINES = Row(
    what="200 tiny groups, cold, --on dask://local?workers=2",
    against="ms a group more than a build on this machine",
    hold=80,
)
GROUPS_MACHINES_MANY = Row(
    what="1,000 tiny groups, cold, --on dask://local?workers=2",
    against=GROUPS_MACHINES.against,
    hold=GROUPS_MACHINES.hold,
)
GROUPS_MACHINES_MEMORY = Row(
    what="1,000 tiny groups, --on dask://local?workers=2, main process",
    against="MB resident",
    hold=300,
)
GROUPS_AGAIN = Row(what="1,000 groups, nothing changed", against=f"{_GROUP}, CPU", hold=2)
GROUPS_PLAN = Row(what="plan of 1,000 groups", against=IMPORTS)
GROUPS_VALIDATE = Row(what="validate of 1,000 groups", against=IMPORTS)

MLP = Row(what="cold QNN build, 3-layer MLP", against=QNN_160.against, hold=2.6)
MOBILENET = Row(what="cold QNN build, MobileNetV3-small", against=QNN_160.against)
RESNET = Row(what="cold QNN build, ResNet-50", against=QNN_160.against, hold=1.3)

_BARE_CNNS = "bare script, a process for each, two at a time"
CNNS_CPU = Row(what="20 small CNNs on QNN, processor time", against=_BARE_CNNS, hold=1.6)
CNNS = Row(what="20 small CNNs on QNN", against=_BARE_CNNS, hold=1.6)
CNNS_UNVERIFIED_CPU = Row(
    what="20 small CNNs on QNN, --no-verify, processor time", against=_BARE_CNNS, hold=1.4
)
CNNS_UNVERIFIED = Row(what="20 small CNNs on QNN, --no-verify", against=_BARE_CNNS, hold=1.4)

LLM = Row(
    what="Llama of 134 M parameters, a pair, QNN, with numbers",
    against="bare script that compiles both and runs each",
    hold=1.1,
)
LLM_MEMORY = Row(
    what="large decoder pair, QNN, --no-verify, memory", against="bare script's", hold=1.1
)
LLM_WRITTEN = Row(what="the same, bytes written", against="outputs and weights", hold=1.05)
DEIT = Row(
    what="DeiT-tiny, QNN, with numbers",
    against="bare script that compiles and runs each input set",
    hold=1.15,
)
BUDGET = Row(what="numbers of a UNet, verify.budget: 20", against="seconds", hold=22)

_WHOLE = "bare script that compiles it whole"
PIECES_4_BIT = Row(
    what="block of 243 M weights in 4 bits, four pieces, two jobs, --no-verify",
    against=_WHOLE,
    hold=0.75,
)
PIECES_FLOAT16 = Row(what="the same in float16", against=_WHOLE)
_ALONE = "a build of one piece alone, --no-verify"
PIECES_MEMORY_4_BIT = Row(
    what="the block in 4 bits, four pieces, one job, with numbers: memory",
    against=_ALONE,
    hold=1.3,
)
PIECES_MEMORY_FLOAT16 = Row(what="the same in float16: memory", against=_ALONE, hold=1.3)

REMOTE_UP = Row(what="2 GB to a shared cache", against="bare obstore", hold=1.25)
REMOTE_DOWN = Row(what="2 GB from a shared cache, hashed", against=REMOTE_UP.against, hold=1.25)

HELD = (
    *(NO_OP, HELP, QNN_160, QNN_48, LARGE, MEMORY, PARTITION, JOBS),
    *(MLP, RESNET),
    *(CNNS_CPU, CNNS, CNNS_UNVERIFIED_CPU, CNNS_UNVERIFIED),
    *(GROUPS_COLD, GROUPS_COLD_UNVERIFIED, GROUPS_MANY, GROUPS_MEMORY, GROUPS_AGAIN),
    *(GROUPS_MACHINES, GROUPS_MACHINES_MANY, GROUPS_MACHINES_MEMORY),
    *(LLM, LLM_MEMORY, LLM_WRITTEN, DEIT, BUDGET),
    *(PIECES_4_BIT, PIECES_MEMORY_4_BIT, PIECES_MEMORY_FLOAT16),
    *(REMOTE_UP, REMOTE_DOWN),
)
"""What is to hold, whole: what is missing at the end of a run was not measured."""

TELLS: Final = 0.05
"""A change that a row should tell from noise; one that cannot says so."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was measured of a row.

    Attributes:
        figure: the median of the pairs, or the only one.
        pairs: the figure of each pair, in order; empty: it was measured once.
        memory: the most that our command and all its children held, in bytes, what several of them
            share counted once; None: nobody looked.
    """

    figure: float
    pairs: tuple[float, ...] = ()
    memory: int | None = None

    @property
    def noise(self) -> float | None:
        """How far the median may be off, as a part of it: what nine of ten such runs stay within.

        That is told by ranks alone, whatever makes a machine slow for a while. Of less than five
        pairs it is all that was seen.
        """
        count, ordered = len(self.pairs), sorted(self.pairs)
        if count < 2:
            return None
        outside = 0
        while 2 * _share(count, outside) < 0.1:
            outside += 1
        cut = max(0, outside - 1)
        return (ordered[count - 1 - cut] - ordered[cut]) / 2 / self.figure

    @property
    def spread(self) -> str:
        """The least and the greatest, and the noise."""
        if self.noise is None:
            return "once"
        words = f"{min(self.pairs):.3g}..{max(self.pairs):.3g}, noise {100 * self.noise:.0f} %"
        return f"{words}: no verdict on less" if self.noise > TELLS else words


def _share(count: int, most: int) -> float:
    """How often at most so many of `count` pairs lie on one given side of the true median."""
    return sum(math.comb(count, each) for each in range(most + 1)) / float(1 << count)


found: dict[Row, Found] = {}
"""What this run has measured."""


def held(
    row: Row, figure: float, note: str, *, pairs: Sequence[float] = (), memory: int | None = None
) -> None:
    """Note and print a figure, or the median of pairs; fail where it does not hold."""
    _note(row, figure, note, pairs=pairs, memory=memory)
    _require(row)


def _note(
    row: Row, figure: float, note: str, *, pairs: Sequence[float] = (), memory: int | None = None
) -> None:
    found[row] = Found(figure=figure, pairs=tuple(pairs), memory=memory)
    spread = f" ({found[row].spread})" if pairs else ""
    print(f"\n{row.what} / {row.against}: {figure:.3g}{spread}; {note}")


def _require(row: Row) -> None:
    figure = found[row].figure
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
    process = psutil.Popen(
        command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    )
    with nullcontext([0]) if _peaks is None else _watched(process, _proportional) as most:
        told: bytes = process.communicate()[1]
    seconds = time.perf_counter() - begun
    assert process.returncode == 0, told.decode()
    if _peaks is not None:
        _peaks.append(most[0])
    return seconds


def cpu(command: Sequence[str], cwd: Path) -> float:
    """Seconds of processor time of one run of a command, and of all that it starts."""
    return cpu_and_wall(command, cwd)[0]


def cpu_and_wall(command: Sequence[str], cwd: Path) -> tuple[float, float]:
    """Seconds of processor time, as `cpu`, and of the clock, of the same run of a command."""
    before = os.times()
    seconds = wall(command, cwd)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4]), seconds


def ratio(row: Row, ours: Callable[[], float], theirs: Callable[[], float], *, runs: int) -> None:
    """Run both in turn; the median of the pairs' ratios is to hold."""
    ratios([row], lambda: (ours(),), lambda: (theirs(),), runs=runs)


def ratios(
    rows: Sequence[Row],
    ours: Callable[[], Sequence[float]],
    theirs: Callable[[], Sequence[float]],
    *,
    runs: int,
) -> None:
    """Run both in turn, each run with a figure for each row; the medians of the pairs' ratios are
    to hold.

    A pair before them does not count: it finds bytecode, libraries and memory cold, of which each
    side has another share. In that pair our memory is looked at, which takes time.
    """
    memory = _peak(ours)
    theirs()
    runs_of_both = [(ours(), theirs()) for _ in range(runs)]
    for number, row in enumerate(rows):
        pairs = [(our[number], their[number]) for our, their in runs_of_both]
        listed = ", ".join(f"{a:.2f}/{b:.2f}" for a, b in pairs)
        quotients = [a / b for a, b in pairs]
        median = statistics.median(quotients)
        _note(row, median, f"seconds: {listed}", pairs=quotients, memory=memory)
    for row in rows:
        _require(row)


_peaks: list[int] | None = None
"""Of the commands that are run now; None: their memory is not looked at."""


def _peak(run: Callable[[], object]) -> int | None:
    """The most memory of the commands that `run` runs; None: it runs none, or it cannot be told."""
    global _peaks
    seen: list[int] = []
    _peaks = seen if sys.platform == "linux" else None
    try:
        run()
    finally:
        _peaks = None
    return max(seen, default=None)


def anonymous_megabytes(command: Sequence[str], cwd: Path) -> float:
    """The most anonymous memory that a command and all its children had at one time (Linux)."""
    return _megabytes(command, cwd, _anonymous)


def megabytes(command: Sequence[str], cwd: Path) -> float:
    """The most memory that a command and all its children had at one time, what several of them
    share counted once (Linux).
    """
    return _megabytes(command, cwd, _proportional)


def _megabytes(command: Sequence[str], cwd: Path, of: Callable[[int], int]) -> float:
    process = psutil.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with _watched(process, of) as most:
        assert process.wait() == 0
    return most[0] / 1e6


@contextmanager
def _watched(process: psutil.Process, of: Callable[[int], int]) -> Iterator[list[int]]:
    """The most bytes of a process and all its children together, in a list of one."""
    most = [0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            most[0] = max(most[0], _together(process, of))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        ended.set()
        watcher.join()


def _together(process: psutil.Process, of: Callable[[int], int]) -> int:
    total = 0
    try:
        for each in (process, *process.children(recursive=True)):
            total += of(each.pid)
    except (OSError, psutil.Error):  # one of them has just ended
        return total
    return total


def _anonymous(pid: int) -> int:
    return _kilobytes(Path(f"/proc/{pid}/status"), "RssAnon:")


def _proportional(pid: int) -> int:
    return _kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")


def _kilobytes(path: Path, name: str) -> int:
    lines = path.read_text(encoding="ascii").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


def machine() -> str:
    """What it was measured on."""
    model = platform.processor() or platform.machine()
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        named = (line.partition(": ")[2] for line in lines if line.startswith("model name"))
        model = next(named, model)
    return f"{model}, {os.cpu_count()} cores, {platform.system()}"
