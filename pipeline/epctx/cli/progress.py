"""How a build shows itself: live on a terminal, plain lines in a log, a summary at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from epctx.build_report import BuildReport, GroupReport
from epctx.cli.render import UI
from epctx.runner import Event, Listener

STATE_STYLES = {"built": "green", "failed": "bold red", "skipped": "yellow", "waiting": "yellow"}


@contextmanager
def live(ui: UI) -> Iterator[Listener]:
    """A listener that shows a build's events on stderr for as long as the context is open."""
    if ui.quiet:
        yield lambda event: None
    elif ui.err.is_terminal:
        board = _Board()
        with Live(board, console=ui.err, refresh_per_second=8, transient=True):
            yield board.hear
    else:
        yield lambda event: ui.note(_line(event))


class _Board:
    """What runs now, one line a subject, with the seconds that its stage has taken."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Spinner, str, float]] = {}
        self._ended: list[Text] = []

    def hear(self, event: Event) -> None:
        key = f"{event.group} {event.subject or ''}"
        if event.state == "running":
            line = f"{key}: {event.stage}"
            self._running[key] = (Spinner("dots"), line, time.monotonic())
        else:
            for running in [k for k in self._running if k.startswith(f"{event.group} ")]:
                del self._running[running]
            self._ended.append(_line(event))

    def __rich__(self) -> RenderableType:
        now = time.monotonic()
        table = Table.grid(padding=(0, 1))
        for spinner, line, since in list(self._running.values()):
            table.add_row(spinner, line, Text(f"{now - since:.0f} s", style="dim"))
        return Group(*self._ended, table)


def _line(event: Event) -> Text:
    if event.state == "running":
        subject = f"{event.subject}: " if event.subject else ""
        return Text(f"{event.group}: {subject}{event.stage}")
    if event.state == "waiting":
        return Text(f"{event.group}: another build holds the output, waiting", style="yellow")
    return Text(f"{event.group}: {event.state}", style=STATE_STYLES[event.state])


def summary(ui: UI, report: BuildReport, out: Path) -> None:
    """Print what was built and verified: a row a group, then where it is."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("group")
    table.add_column("state")
    for heading in ("models", "files", "size", "on EPs", "partitions"):
        table.add_column(heading, justify="right")
    table.add_column("verified")
    for group in report.groups:
        table.add_row(*_row(group))
    ui.print(table)
    for group in report.groups:
        if group.state == "failed" and group.failure is not None:
            ui.print(
                Text(f"{group.group}@{group.target} failed: {group.failure.what}", style="red")
            )
    if any(group.state == "built" for group in report.groups):
        where = (out / report.name).as_posix()
        ui.print(Text(f"{where}/  in {report.seconds:.1f} s", style="bold"))


def _row(group: GroupReport) -> list[RenderableType]:
    label = f"{group.group}@{group.target}"
    state = Text(group.state, style=STATE_STYLES[group.state])
    if group.state != "built":
        return [label, state]
    nodes = sum(model.nodes for model in group.models)
    taken = sum(p.nodes for model in group.models for p in model.partitions)
    return [
        label,
        state,
        str(len(group.models)),
        str(len(group.files)),
        size_words(sum(file.size for file in group.files)),
        f"{taken}/{nodes}",
        str(sum(len(model.partitions) for model in group.models)),
        _verified(group),
    ]


def _verified(group: GroupReport) -> Text:
    if group.verify is None:
        return Text("no", style="yellow")
    outcomes = [finding.outcome for finding in group.verify.findings]
    text = Text(f"{outcomes.count('pass')} checks", style="green")
    if worst := max((n.comparison.max_rel or 0.0 for n in group.verify.numbers), default=None):
        text.append(f", largest error {worst:.1e}")
    if unchecked := outcomes.count("not checkable"):
        text.append(f", {unchecked} not checkable", style="yellow")
    return text


def size_words(size: int) -> str:
    """A size in bytes for people, in powers of 1000."""
    value = float(size)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"
