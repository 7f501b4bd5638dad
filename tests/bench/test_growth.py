"""Processor time of commands at n, 2n and 4n of what a small file can have any number of."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest

from tests.kit import growing
from tests.kit.growing import Dimension

STEEPEST = 3.4
"""Times the time of 2n that 4n may take: 2 where it is linear, 4 where it is quadratic."""


def seconds(dimension: Dimension, folder: Path, n: int) -> float:
    folder.mkdir()
    command = dimension.make(folder, n)
    gc.collect()
    begun = time.process_time()
    growing.carry_out(command, folder, dimension.code)
    return time.process_time() - begun


@pytest.mark.bench
def test_the_table(tmp_path: Path) -> None:
    print("\n| what there is so much of | command | n | seconds at n | 2n | 4n |")
    print("|---|---|---|---|---|---|")
    steep = []
    for number, dimension in enumerate(growing.DIMENSIONS):
        seconds(dimension, tmp_path / f"{number}-first", 2)
        found = [
            seconds(dimension, tmp_path / f"{number}-{times}", times * dimension.full)
            for times in (1, 2, 4)
        ]
        shown = " | ".join(f"{each:.2f}" for each in found)
        print(f"| {dimension.what} | `{dimension.command}` | {dimension.full:,} | {shown} |")
        if found[2] > STEEPEST * found[1]:
            steep.append(dimension.what)
    assert not steep
