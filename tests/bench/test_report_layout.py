"""A drawing of 100,000 nodes laid out, against 10,000: near linear."""

import gc
import random
import time

import pytest

from epctx.commands.report import graphs
from epctx.commands.report.graphs import NODE
from tests.bench.measuring import LAYOUT, ratio


def model(count: int) -> list[list[int]]:
    """A chain in which every third node also needs one up to twenty before it."""
    generator = random.Random(0)
    return [
        sorted({node - 1, max(0, node - generator.randrange(1, 20 if node % 3 == 0 else 2))})
        if node
        else []
        for node in range(count)
    ]


def seconds(graph: list[list[int]]) -> float:
    gc.collect()
    gc.freeze()  # else each collection goes through what other measurements have left, too
    begun = time.process_time()
    graphs.lay_out(graph, NODE)
    return time.process_time() - begun


@pytest.mark.bench
def test_ten_times_the_nodes() -> None:
    small, large = model(10_000), model(100_000)
    ratio(LAYOUT, lambda: seconds(large), lambda: seconds(small), runs=3)
