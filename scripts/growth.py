"""Measure how whole commands grow with what a manifest or a model has much of: docs/growth.md.

    python -m scripts.growth

Processor time of the process and of all that it starts, which a busy machine changes least; each
command with a cache of its own, but those that look at what was built: they look at the same.
Run it while nothing else runs; it takes some minutes.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.kit import growing
from tests.kit.growing import Dimension

DOCS = Path(__file__).parent.parent / "docs"
PICTURE = "images/growth.svg"
MEASURED = (
    ("groups, each of a model of its own", "build", 50),
    ("models of a group", "build", 50),
    ("targets", "build", 100),
    ("nodes", "build", 2000),
    ("times 16 KiB of weights", "build", 4000),
    ("groups that were built", "build, again", 200),
    ("groups that were built", "build --locked", 200),
    ("groups that were built", "report", 200),
    ("groups", "plan", 1000),
    ("nodes", "validate", 20_000),
    ("misspelt names, of as many", "validate", 2000),
    ("lines of SHA256SUMS", "verify", 10_000),
)
"""What grows, for which command, and the least there is of it; then there is twice and four times
as much."""
TIMES = (1, 2, 4)
ATTEMPTS = 3
"""So often a command is run for one, of which the quickest counts: all others are held to it."""
_FLAT = 0.2
"""Seconds above those for one; of less the measurement says nothing of how they grow."""
COLUMNS = 4
WIDTH, HEIGHT, MARGIN = 220, 150, 34
_INTRODUCTION = """\
# How commands grow

Processor time of whole processes, those of workers with them, for one and for once, twice and four
times as much of something. `python -m scripts.growth` writes this page. The last column is the time
for 4n over the time for 2n, both without the time for one, which is mostly start-up: 2 where a
command is linear, 4 where it is quadratic, `flat` where 2n takes less than 0.2 s more than one.
`make bench` fails where many more of such dimensions grow much faster than linear.

![Seconds over how much there is, and a line from one through 2n](images/growth.svg)

| what there is so much of | command | n | seconds for one | n | 2n | 4n | steepness |
|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """A dimension as it was measured: `n`, and seconds for one, and for n, 2n and 4n."""

    what: str
    command: str
    n: int
    one: float
    seconds: Sequence[float]

    @property
    def steepness(self) -> str:
        """What 4n costs above one, over what 2n does; `flat` where that is little."""
        _, two, four = self.seconds
        above = two - self.one
        return f"{(four - self.one) / above:.1f}" if above >= _FLAT else "flat"


def main() -> None:
    found = list(measure())
    rows = "".join(map(_row, found))
    (DOCS / "growth.md").write_text(_INTRODUCTION + rows, encoding="utf-8")
    (DOCS / PICTURE).write_text("".join(drawn(found)), encoding="utf-8")


def measure() -> Iterator[Growth]:
    """Carry out the commands, one after the other."""
    known = {(each.what, each.command): each for each in growing.DIMENSIONS}
    with tempfile.TemporaryDirectory() as name:
        for what, command, n in MEASURED:
            of = partial(_seconds, known[what, command])
            one = min(of(Path(name) / f"{what}-{i}", 1) for i in range(ATTEMPTS))
            seconds = [of(Path(name) / f"{what}-{times * n}", times * n) for times in TIMES]
            growth = Growth(what=what, command=command, n=n, one=one, seconds=seconds)
            print(_row(growth), end="", flush=True)
            yield growth


def _seconds(dimension: Dimension, folder: Path, n: int) -> float:
    folder.mkdir(exist_ok=True)
    command = dimension.make(folder, n)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before = _spent()
    ended = subprocess.run(
        [sys.executable, "-m", "epctx", *command],
        cwd=folder,
        env={**environment, "EPCTX_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
    )
    assert ended.returncode in (0, dimension.code), ended.stderr
    return _spent() - before


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _row(growth: Growth) -> str:
    seconds = " | ".join(f"{each:.2f}" for each in (growth.one, *growth.seconds))
    return (
        f"| {growth.what} | `{growth.command}` | {growth.n:,} | {seconds} | {growth.steepness} |\n"
    )


def drawn(found: Sequence[Growth]) -> Iterator[str]:
    """An SVG with a plot of each."""
    rows = -(-len(found) // COLUMNS)
    width, height = WIDTH * COLUMNS, HEIGHT * rows
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    yield ' font-family="sans-serif" font-size="9" fill="#777">\n'
    for number, growth in enumerate(found):
        row, column = divmod(number, COLUMNS)
        yield f'<g transform="translate({column * WIDTH} {row * HEIGHT})">\n'
        yield from _plot(growth)
        yield "</g>\n"
    yield "</svg>\n"


def _plot(growth: Growth) -> Iterator[str]:
    _, two, _ = growth.seconds
    straight = [growth.one + (two - growth.one) * times / 2 for times in TIMES]
    most = max(*growth.seconds, *straight) * 1.1
    bottom = HEIGHT - MARGIN
    yield f'<text x="{MARGIN}" y="12">{growth.command}: {growth.what}</text>\n'
    yield f'<path d="M{MARGIN} 20V{bottom}H{WIDTH - 10}" stroke="#777" fill="none"/>\n'
    yield f'<path d="{_line(straight, most)}" stroke="#999" stroke-dasharray="3" fill="none"/>\n'
    yield f'<path d="{_line(growth.seconds, most)}" stroke="#2a78d6" fill="none"/>\n'
    for times, seconds in zip(TIMES, growth.seconds, strict=True):
        x, y = _point(times, seconds, most)
        yield f'<circle cx="{x:.0f}" cy="{y:.0f}" r="2.5" fill="#2a78d6"/>'
        yield f'<text x="{x:.0f}" y="{y - 5:.0f}" text-anchor="end">{seconds:.1f} s</text>'
        yield f'<text x="{x:.0f}" y="{bottom + 12}" text-anchor="middle">'
        yield f"{times * growth.n:,}</text>\n"


def _line(seconds: Iterable[float], most: float) -> str:
    points = (_point(times, each, most) for times, each in zip(TIMES, seconds, strict=True))
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _point(times: int, seconds: float, most: float) -> tuple[float, float]:
    x = MARGIN + (WIDTH - MARGIN - 20) * times / TIMES[-1]
    return x, HEIGHT - MARGIN - (HEIGHT - MARGIN - 20) * seconds / most


if __name__ == "__main__":
    main()
