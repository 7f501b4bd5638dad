"""Optimize random models by the thousand, and tell what came of it.

    python -m tests.fuzz.graphs.campaign [--first SEED] [--count N] [--jobs N]

A seed decides a model; the same seed makes the same one with the same versions of onnx and
onnxruntime. Where a level changes what a model computes, the smallest part of it that shows it is
printed, with its inputs.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

import onnx

from epctx.inference.values import to_python
from tests.fuzz.graphs import levels
from tests.fuzz.graphs.models import MOST, RandomModel, draw_model, outputs
from tests.fuzz.graphs.shrinking import shrunk

CHUNK = 25
"""Seeds that a process is given at once."""


@dataclass(kw_only=True)
class Tally:
    """What came of models.

    Attributes:
        counts: "models", "nodes", "not run" (ONNX Runtime refuses the source as a whole, though it
            took each node), "refused" (by epctx alone, at a level: a fault), "declared how" (shapes
            of values), "opset N", "op X", "type X", "explained: reason".
        faults: the differences without an explanation, each with its reproduction.
    """

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add what came of other models."""
        self.counts += other.counts
        self.faults += other.faults

    def lines(self) -> Iterator[str]:
        """What to print."""
        for first in (
            *("models", "nodes", "not run", "refused", "explained"),
            *("declared", "opset", "type", "op"),
        ):
            found = {
                key.removeprefix(first).strip(" :"): count
                for key, count in self.counts.items()
                if key.split(":")[0] == first or key.split(" ")[0] == first
            }
            order = sorted(found, key=lambda key: (int(key) if key.isdecimal() else 0, -found[key]))
            listed = ", ".join(f"{key} {found[key]:,}".strip() for key in order)
            yield f"{first}: {listed or 0}"
        yield from self.faults


def check(seeds: Sequence[int], most: int = MOST) -> Tally:
    """Each seed's model, of `most` nodes at most, at every level."""
    logging.disable(logging.WARNING)
    tally = Tally()
    for seed in seeds:
        random = draw_model(seed, most)
        tally.counts += random.counts
        tally.counts.update({"models": 1, "nodes": len(random.proto.graph.node)})
        tally.counts[f"opset {random.opset}"] += 1
        try:
            expected = outputs(random.proto, random.feeds)
        except Exception:  # onnxruntime's errors have no common class
            tally.counts["not run"] += 1
            continue
        for level in levels.LEVELS:
            found = levels.difference(random.proto, random.feeds, level, expected)
            if found is None:
                continue
            refused = f"{level}: {levels.REFUSED}" in found
            tally.counts["refused"] += refused
            reason = levels.explanation(random.proto, random.feeds, level) if not refused else None
            if reason is None:
                tally.faults.append(f"seed {seed}, {found}\n{reproduction(random, level)}")
            else:
                tally.counts[f"explained: {reason}"] += 1
    return tally


def reproduction(random: RandomModel, level: str) -> str:
    """The smallest part of a model that a level changes, as text."""
    model, feeds = shrunk(random, level)
    given = {info.name: to_python(feeds[info.name]).tolist() for info in model.graph.input}
    text = onnx.printer.to_text(model)
    return f"{text}\ninputs: {given}"


def run(first: int, count: int, jobs: int) -> Tally:
    """A campaign over seeds, in several processes."""
    seeds = range(first, first + count)
    chunks = [seeds[start : start + CHUNK] for start in range(0, count, CHUNK)]
    tally = Tally()
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed({pool.submit(check, chunk) for chunk in chunks}):
            tally.add(done.result())
    return tally


def main() -> int:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    tally = run(given.first, given.count, given.jobs)
    print("\n".join(tally.lines()))
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
