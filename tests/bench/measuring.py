"""Whole processes, timed side by side: A B A B ..., so that a drift of the machine hits both."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

Prepare = Callable[[], None]


def wall(command: Sequence[str], cwd: Path) -> float:
    """Seconds of one run of a command that must do well."""
    begun = time.perf_counter()
    run = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=os.environ)
    seconds = time.perf_counter() - begun
    assert run.returncode == 0, run.stderr
    return seconds


def ratio(
    name: str,
    hold: float,
    ours: Callable[[], float],
    theirs: Callable[[], float],
    *,
    runs: int = 3,
) -> float:
    """Run both in turn and print the median of the pairs' ratios beside the figure to hold."""
    pairs = [(ours(), theirs()) for _ in range(runs)]
    found = statistics.median(a / b for a, b in pairs)
    listed = ", ".join(f"{a:.2f}/{b:.2f}" for a, b in pairs)
    print(f"\n{name}: {found:.2f} (hold {hold}); seconds: {listed}")
    return found
