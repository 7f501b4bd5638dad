"""Where the time of a build went, in a sentence."""

from __future__ import annotations

from typing import Final

from epctx.commands.report.overview import duration
from epctx.commands.report.tables import label
from epctx.engine.report import BuildReport

DOING: Final = {
    "load": "loading",
    "optimize": "optimizing",
    "quantize": "quantizing",
    "source": "running the source models",
    "partition": "partitioning",
    "compile": "compiling",
    "dump": "writing",
    "verify": "verifying",
    "compose": "composing",
}
_TOLD: Final = 4
_LEAST: Final = 0.01
"""Share of the whole below which a stage is not named."""


def sentence(report: BuildReport) -> str:
    """How long each stage took of the build's time, the longest first.

    Stages of several groups that ran at the same time may take longer together than the build.
    """
    stages: dict[str, dict[str, float]] = {}
    for group in report.groups:
        for time in group.stages:
            took = stages.setdefault(time.stage, {})
            took[label(group)] = took.get(label(group), 0.0) + time.end - time.start
    longest = sorted(stages, key=lambda stage: -sum(stages[stage].values()))
    work, wall = sum(sum(took.values()) for took in stages.values()), report.seconds
    if not work:
        return f"{duration(wall)}: no stage had to run."
    whole = max(work, wall)
    large = [s for s in longest[:_TOLD] if sum(stages[s].values()) >= _LEAST * whole]
    told = [_doing(stage, stages[stage], whole, len(report.groups)) for stage in large]
    rest = whole - sum(sum(stages[stage].values()) for stage in large)
    if rest >= _LEAST * whole:
        told.append(f"{duration(rest)} for the rest")
    head = duration(wall)
    if work > wall:
        head += f" in which {duration(work)} of work was done, several stages at a time"
    return f"{head}: {', '.join(told)}."


def _doing(stage: str, groups: dict[str, float], whole: float, of: int) -> str:
    """A stage in words, its share of the time, and the group that took most of it."""
    seconds = sum(groups.values())
    words, share = (
        f"{duration(seconds)} {DOING.get(stage, stage)}",
        f"{100 * seconds / whole:.0f} %",
    )
    name = max(groups, key=lambda group: groups[group])
    if of > 1 and len(groups) == 1:
        return f"{words} {name} ({share})"
    most = f", most of it {name}" if of > 1 and 2 * groups[name] > seconds else ""
    return f"{words} ({share}{most})"
