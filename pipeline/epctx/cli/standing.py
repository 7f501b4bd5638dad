"""Progress and events of a build, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from rich.text import Text

from epctx.engine.events import Event, Running, Snapshot, Tally
from epctx.text import time_words

STATE_STYLES = {
    "verified": "green",
    "built": "green",
    "up to date": "green",
    "failed": "bold red",
    "skipped": "yellow",
    "waiting": "yellow",
    "notice": "yellow",
}


class Shown:
    """Listener of a build that shows nothing.

    Attributes:
        tally: what is known of it.
    """

    def __init__(self) -> None:
        self.tally = Tally()

    def expect(self, groups: Mapping[str, float | None]) -> None:
        """Take the groups that will be built."""
        self.tally.expect(groups)

    def __call__(self, event: Event) -> None:
        """Take an event."""
        self.tally.hear(event)


def name(running: Running) -> str:
    """Return a running stage in words."""
    subject = f" {running.subject}" if running.subject else ""
    return f"{running.group}{subject}: {running.stage}"


def far(standing: Snapshot) -> Iterator[str]:
    """Yield the progress of a build in words."""
    if standing.groups is not None and standing.groups > 1:
        yield f"{standing.done} of {standing.groups} groups"
    for state, count in standing.states.items():
        if standing.groups is None or state in ("failed", "skipped"):
            yield f"{count} {state}"
    yield time_words(standing.seconds)
    if standing.left is not None:
        yield f"about {_roughly(standing.left)} left"


def _roughly(seconds: float) -> str:
    if seconds <= 55:
        return time_words(5 * math.ceil(seconds / 5))
    minutes = math.ceil(seconds / 60)
    return time_words(60 * minutes) if minutes >= 60 else f"{minutes} min"


def count(standing: Snapshot) -> str:
    """Return the progress to append to a group's line; empty if the build has one group."""
    return f" ({', '.join(far(standing))})" if (standing.groups or 0) > 1 else ""


def heartbeat(standing: Snapshot) -> Text:
    """Return the line that says what runs, for a log that was silent for long."""
    text = f"still at work: {', '.join(far(standing))}"
    if standing.running:
        slowest, *others = standing.running
        detail = f", {slowest.detail}" if slowest.detail else ""
        more = f"; and {len(others)} more" if others else ""
        text += f"; {name(slowest)} for {time_words(slowest.seconds)}{detail}{more}"
    return Text(text)


def line(event: Event) -> Text:
    """Return an event in one line."""
    if event.state == "running":
        subject = f"{event.subject}: " if event.subject else ""
        detail = f", {event.detail}" if event.detail else ""
        return Text(f"{event.group}: {subject}{event.stage}{detail}")
    if event.state == "waiting":
        subject = f"{event.subject}: " if event.subject else ""
        return Text(f"{event.group}: {subject}waiting, {event.detail}", style="yellow")
    if event.state == "notice":
        return Text(f"{event.group}: {event.detail}", style="yellow")
    if event.state == "verified" and event.detail and not event.detail.startswith("on "):
        unrun, _, _ = event.detail.partition(":")  # why is told once, at the end
        return Text(f"{event.group}: built, {unrun}", style="yellow")
    text = Text(f"{event.group}: {event.state}", style=STATE_STYLES[event.state])
    if event.state == "verified" and event.detail:
        text.append(f" {event.detail}")
    return text
