"""`epctx plan`: what a build would do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from epctx import api
from epctx.cli import declared, summary
from epctx.cli.render import UI, filled, warning
from epctx.commands import plan as matrix
from epctx.commands.options import located
from epctx.commands.plan import GroupPreview, PlanReport
from epctx.commands.report import figures
from epctx.engine import plan as planning
from epctx.engine.plan import Plan
from epctx.engine.staleness import GroupPlan
from epctx.text import size_words


class PlanFormat(StrEnum):
    """Form of a plan on stdout."""

    text = "text"
    json = "json"
    jsonl = "jsonl"
    matrix = "matrix"


@declared.by(api.plan)
def plan(
    ui: UI,
    call: Callable[..., PlanReport],
    manifest: Path | None,
    only: Sequence[str],
    allow_outside: bool,
    *,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show each cache key, and which of its fields changed."),
    ] = False,
    partition: Annotated[
        bool,
        typer.Option(
            "--partition",
            help="Show which EP takes which node and where models are cut, without compiling.",
        ),
    ] = False,
    shards: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Maximum number of jobs in the matrix; 0: one per group."
        ),
    ] = 0,
    format: Annotated[
        PlanFormat,
        typer.Option(
            help="Form of the result on stdout; matrix: the jobs of a CI matrix, with their hosts."
        ),
    ] = PlanFormat.text,
) -> int:
    if format is PlanFormat.matrix or partition:
        planned = planning.read(located(manifest), only=only, allow_outside=allow_outside)
        if format is PlanFormat.matrix:
            _matrix(ui, planned, shards)
            return 0
        previews = matrix.partitions(planned)
        ui.emit(previews)
        for each in previews:
            ui.print(_partitions(each), *_left(each, every=ui.verbose > 0))
        return 0
    return show(ui, call(listener=ui.listener), explain=explain)


def show(ui: UI, report: PlanReport, *, explain: bool = False) -> int:
    """Print a plan; return the exit code that the build would have."""
    ui.emit(report)
    ui.print(*(_group(each, explain=explain) for each in report.groups))
    failed = [(f"{g.group}@{g.target}", g.failure) for g in report.groups if g.failure is not None]
    for error in summary.distinct(failed):
        ui.error(error)
    return failed[0][1].exit_code if failed else 0


def _matrix(ui: UI, planned: Plan, shards: int) -> None:
    jobs = matrix.matrix(planned, shards=shards)
    ui.emit_line(jobs)
    if len(jobs.include) > matrix.MOST_JOBS:
        ui.note(
            warning(
                f"the matrix has {len(jobs.include)} jobs; GitHub allows 256, GitLab 200",
                "add --shards 100, so that groups for the same host share a job",
            )
        )


STYLES = {"up to date": "green", "publishes": "yellow", "runs": "yellow", "depends": "dim"}
WORDS = {"publishes": "publishes from the cache", "depends": "depends on what runs before it"}


def _group(group: GroupPlan, *, explain: bool) -> Tree:
    """Render a group: state, reasons and actions; with `explain` their keys and changes."""
    eps = ", ".join(group.eps) or "default EP only"
    head = Text(f"{group.group}@{group.target} [{eps}]: ").append(_state(group.state))
    if group.failure is not None:
        head.append(", and fails here", style="red")
    root = Tree(head)
    if not explain:
        for why in group.because:
            root.add(Text(why))
    if group.fetches:
        root.add(Text(f"{size_words(group.fetches)} come from the shared cache"))
    for words in group.cost:
        root.add(Text(words))
    for action in group.actions if explain or group.state == "runs" else ():
        branch = root.add(Text(f"{action.action} {action.subject}: ").append(_state(action.state)))
        if not explain:
            continue
        if action.key is not None:
            branch.add(Text(f"key {action.key}", style="dim"))
        for change in action.changes:
            branch.add(Text(str(change)))
        for why in action.because if not action.changes else ():
            branch.add(Text(why))
    return root


def _state(state: str) -> Text:
    return Text(WORDS.get(state, state), style=STYLES[state])


def _partitions(preview: GroupPreview) -> Tree:
    """Render a group's models: partitions, and the number of nodes on the default EP."""
    root = Tree(f"{preview.group}@{preview.target}")
    for model in preview.models:
        branch = root.add(f"{model.name}: {model.coverage:.1%} of {model.nodes} nodes on EPs")
        for part in model.partitions:
            nodes = f"{part.nodes} node{'s' if part.nodes != 1 else ''}"
            offered = ", offered (the EP decides in the compile)"
            suffix = offered if part.provider in preview.silent else ""
            edges = f"{' '.join(part.inputs)} -> {' '.join(part.outputs)}"
            branch.add(f"{part.provider}: {nodes}{suffix}, {edges}")
        count = len(model.declined)
        if count:
            branch.add(f"default EP: {count} node{'s' * (count != 1)}")
        for line in model.piece_lines:
            branch.add(Text(line))
    return root


def _left(preview: GroupPreview, *, every: bool) -> Iterator[Table]:
    """Render the nodes that no EP took, with reasons; equal nodes share a row unless `every`."""
    several = len(preview.models) > 1
    rows = [
        (
            *(str(row.count), model.name * several, row.names[0], row.op_type, row.location),
            *(row.ep, row.refusal.why, row.refusal.op, row.refusal.operands, row.refusal.remedy),
        )
        for model in preview.models
        for row in figures.left_rows(model, every=every)
    ]
    if rows:
        yield filled(_LEFT, rows, right={"count"})


_LEFT: Final = (
    *("count", "model", "first node", "op", "in the source"),
    *("left by", "why", "its op", "types and sizes", "what would change it"),
)
