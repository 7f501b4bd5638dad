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
    """Listener of a build that counts events and shows nothing.

    Attributes:
        tally: progress of the build.
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


def far(snapshot: Snapshot) -> Iterator[str]:
    """Yield the progress of a build in words."""
    if snapshot.groups is not None and snapshot.groups > 1:
        yield f"{snapshot.done} of {snapshot.groups} groups"
    for state, count in snapshot.states.items():
        if snapshot.groups is None or state in ("failed", "skipped"):
            yield f"{count} {state}"
    yield time_words(snapshot.seconds)
    if snapshot.left is not None:
        yield f"about {_roughly(snapshot.left)} left"


def _roughly(seconds: float) -> str:
    if seconds <= 55:
        return time_words(5 * math.ceil(seconds / 5))
    minutes = math.ceil(seconds / 60)
    return time_words(60 * minutes) if minutes >= 60 else f"{minutes} min"


def count(snapshot: Snapshot) -> str:
    """Return the progress to append to a group's line; empty if the build has one group."""
    return f" ({', '.join(far(snapshot))})" if (snapshot.groups or 0) > 1 else ""


def heartbeat(snapshot: Snapshot) -> Text:
    """Return a line with the running stages, for a log after a long silence."""
    text = f"still at work: {', '.join(far(snapshot))}"
    if snapshot.running:
        slowest, *others = snapshot.running
        detail = f", {slowest.detail}" if slowest.detail else ""
        more = f"; and {len(others)} more" if others else ""
        text += f"; {name(slowest)} for {time_words(slowest.seconds)}{detail}{more}"
    return Text(text)


def line(event: Event) -> Text:
    """Return the line of an event."""
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
        unrun, _, _ = event.detail.partition(":")  # the reason is printed once, at the end
        return Text(f"{event.group}: built, {unrun}", style="yellow")
    text = Text(f"{event.group}: {event.state}", style=STATE_STYLES[event.state])
    if event.state == "verified" and event.detail:
        text.append(f" {event.detail}")
    return text
