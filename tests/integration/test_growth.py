"""How the work of a command grows with what a file can have any number of: a sample, counted.

`make bench` measures the same dimensions at a hundred times the size, by processor time.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest

import epctx
from tests.kit import growing
from tests.kit.growing import Dimension

OURS = str(Path(epctx.__file__).parent)
CHANCE = 20
"""So many steps more or less are no growth: of each sample one of each thing is more."""
STEEPEST = 4.0
"""(steps of 4n - of n) / (steps of 2n - of n): 3 where they are linear, 3.3 for n log n of these n,
5 where they are quadratic."""


@contextmanager
def counted(steps: list[int]) -> Iterator[None]:
    """Add the lines of epctx's own code that the body carries out, in all threads.

    A turn of a loop is a line each time, of one line too.
    """

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        steps[0] += event == "line"
        return local

    def entered(frame: FrameType, event: str, argument: Any) -> Any:
        return local if frame.f_code.co_filename.startswith(OURS) else None

    before, of_threads = sys.gettrace(), cast(Any, threading.gettrace())
    threading.settrace(entered)
    sys.settrace(entered)
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(of_threads)


def steepness(run: Callable[[int], object], n: int) -> float:
    """How steep the steps of a run grow from `n` to `4 * n`."""
    counts = []
    for size in (n, 2 * n, 4 * n):
        steps = [0]
        with counted(steps):
            run(size)
        counts.append(steps[0])
    return (counts[2] - counts[0]) / max(CHANCE, counts[1] - counts[0])


@pytest.mark.wide(3)
@pytest.mark.parametrize("dimension", growing.DIMENSIONS, ids=lambda d: f"{d.command}: {d.what}")
def test_work_grows_with_the_file(dimension: Dimension, tmp_path: Path) -> None:
    commands: dict[int, tuple[Sequence[str], Path]] = {}
    for size in (2, *(dimension.sample * times for times in (1, 2, 4))):
        folder = tmp_path / str(size)
        folder.mkdir()
        commands[size] = dimension.make(folder, size), folder
    growing.carry_out(
        *commands[2], dimension.code
    )  # what is imported and remembered once is no growth
    found = steepness(
        lambda size: growing.carry_out(*commands[size], dimension.code), dimension.sample
    )
    assert found < STEEPEST
