"""What is wrong in manifests, as people are shown it: the first of much, and how much there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text

from epctx.errors import Violation

_SHOWN: Final = 20
"""Of one manifest, without -v."""


def texts(told: Sequence[Violation], *, every: bool, head: Text | None = None) -> Iterator[Text]:
    """A text for each, `head` before it; where there are many, the first and a count.

    Args:
        told: what is wrong, in the file's order.
        every: show all of it.
        head: what each begins with, such as `warning: `.
    """
    shown = told if every else told[:_SHOWN]
    for each in shown:
        yield Text.assemble(head or "", text(each))
    if len(told) > len(shown):
        more = f"and {len(told) - len(shown):,} more in {told[0].file}: -v shows all"
        yield Text.assemble(head or "", (more, "dim"))


def text(told: Violation) -> Text:
    """One thing that is wrong in a manifest."""
    return Text.assemble(
        (f"{told.where}: ", "bold"),
        (f"{told.path}: " if told.path else "", "magenta"),
        told.what,
        (f"\n  -> {told.remedy}", "cyan"),
    )
