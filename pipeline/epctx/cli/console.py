"""Rich consoles in which text from models and manifests cannot move the cursor."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from epctx.cli.streams import colours_forced
from epctx.text import visible


class _Console(Console):
    """A console that shows control characters of texts instead of obeying them."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def console(*, stderr: bool, color: str) -> Console:
    """Return the console of stdout or stderr; `color` is `auto`, `always` or `never`."""
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    system: Literal["auto", "standard"] | None = "auto" if terminal else None
    if not terminal and colours_forced(color):
        system = "standard"
    return _Console(
        stderr=stderr,
        # Only a terminal has a cursor; a log has none, even with colours.
        force_terminal=terminal,
        color_system=None if color == "never" else system,
        # The lines of a log are not wrapped, so that they can be searched.
        width=None if terminal else 10_000 if system else 1_000_000,
        height=None if terminal else 25,  # Rich uses the width only together with a height
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=not terminal,
    )


def write(console: Console, renderable: RenderableType) -> None:
    """Print a renderable; in a log, without the blanks at the ends of a table's lines."""
    if console.is_terminal:
        console.print(renderable)
        return
    with console.capture() as captured:
        console.print(renderable)  # escapes control characters, except colour codes
    lines = captured.get().removesuffix("\n").split("\n")
    console.file.write("".join(f"{line.rstrip()}\n" for line in lines))
    console.file.flush()
