"""Fuzz all targets, one after the other or several at a time, and tell what came of it.

    python -m tests.fuzz.campaign [--seconds N] [--jobs N] [--keep DIR] [TARGET...]

`--seconds` is for each target. What is found is in the folder of `--keep`, which also has the grown
corpora, by which another campaign goes on. Limits: 2 GiB of memory, 25 s an input.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
SEEDS: Final = HERE / "corpus"
MEMORY_MB: Final = 2048
TIMEOUT: Final = 25
"""Seconds that one input may take: a hang beyond it."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What fuzzing one target came to.

    Attributes:
        executions: inputs that were tried.
        coverage: branches of epctx that were taken.
        memory: largest resident size, in MB.
        slowest: seconds of the slowest input.
        found: files of inputs that crashed, hung or took too much memory.
        said: the end of what the fuzzer printed, where it found something or broke.
    """

    target: str
    seconds: int
    executions: int
    coverage: int
    memory: int
    slowest: int
    found: tuple[Path, ...]
    said: str

    def __str__(self) -> str:
        line = (
            f"{self.target:17} {self.executions:10,} executions in {self.seconds} s, "
            f"{self.coverage:5} branches, {self.memory:4} MB, slowest {self.slowest} s"
        )
        return (
            f"{line}: FOUND {', '.join(map(str, self.found))}\n{self.said}" if self.said else line
        )


def fuzz(target: str, seconds: int, keep: Path) -> Outcome:
    """Fuzz one target in a process of its own; what it finds goes to `keep`."""
    grown, found = keep / "corpus" / target, keep / "found" / target
    grown.mkdir(parents=True, exist_ok=True)
    found.mkdir(parents=True, exist_ok=True)
    process = subprocess.run(
        [
            sys.executable, "-m", "tests.fuzz", target,
            f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY_MB}", f"-timeout={TIMEOUT}",
            "-max_len=16384", "-print_final_stats=1", f"-artifact_prefix={found}/",
            str(grown), str(SEEDS / target),
        ],
        cwd=HERE.parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=seconds * 2 + 300,
        check=False,
    )  # fmt: skip
    text = process.stdout.decode(errors="replace")
    return Outcome(
        target=target,
        seconds=seconds,
        executions=_number(r"number_of_executed_units: (\d+)", text),
        coverage=_number(r"cov: (\d+)", text),
        memory=_number(r"peak_rss_mb:\s+(\d+)", text),
        slowest=_number(r"slowest_unit_time_sec:\s+(\d+)", text),
        found=tuple(sorted(found.iterdir())),
        said=text[text.rfind("INFO: seed corpus") :][-6000:] if process.returncode else "",
    )


def campaign(targets: Iterable[str], seconds: int, *, jobs: int, keep: Path) -> tuple[Outcome, ...]:
    """Fuzz the targets, each for so many seconds; prints each outcome when it is there."""

    def one(target: str) -> Outcome:
        outcome = fuzz(target, seconds, keep)
        print(outcome, flush=True)
        return outcome

    with ThreadPoolExecutor(max_workers=jobs) as threads:
        return tuple(threads.map(one, targets))


def _number(pattern: str, text: str) -> int:
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def main() -> int:
    """1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    known = sorted(path.name for path in SEEDS.iterdir())
    parser.add_argument("targets", nargs="*", default=known, metavar="TARGET", help=f"of {known}")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    keep = options.keep or Path(tempfile.mkdtemp(prefix="epctx-fuzzing-"))
    outcomes = campaign(options.targets, options.seconds, jobs=options.jobs, keep=keep)
    total = sum(outcome.executions for outcome in outcomes)
    print(f"{total:,} executions in {options.seconds * len(outcomes)} s; kept in {keep}")
    return int(any(outcome.said for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
