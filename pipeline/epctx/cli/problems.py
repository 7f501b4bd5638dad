"""What is wrong in manifests, as people are shown it: the first of much, and how much there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from rich.text import Text

from epctx.cli.visible import visible
from epctx.error_codes import Code
from epctx.errors import Violation

_SHOWN: Final = 20
"""Of one manifest, without -v."""


def texts(
    told: Sequence[Violation], *, every: bool, kind: Literal["error", "warning"] = "error"
) -> Iterator[Text]:
    """A text for each; where there are many, the first and a count.

    Args:
        told: what is wrong, in the file's order.
        every: show all of it.
        kind: whether it is wrong, or only looks as if.
    """
    shown = told if every else told[:_SHOWN]
    for each in shown:
        yield text(each, kind=kind)
    if len(told) > len(shown):
        more = f"and {len(told) - len(shown):,} more in {told[0].file}: -v shows all"
        yield Text(more, style="dim")


def text(told: Violation, *, kind: Literal["error", "warning"] = "error") -> Text:
    """One thing that is wrong in a manifest."""
    return Text.assemble(
        head(told.code, kind=kind),
        (visible(f"{told.where}: "), "bold"),
        (visible(f"{told.path}: ") if told.path else "", "magenta"),
        visible(told.what),
        (visible(f"\n  -> {told.remedy}"), "cyan"),
    )


def head(code: Code, *, kind: Literal["error", "warning"] = "error") -> tuple[str, str]:
    """How each error and each warning begins, and its style; what may be meant has no code."""
    if kind == "warning" and code is Code.MANIFEST:
        return "warning: ", "yellow"
    return f"{kind}[{code}]: ", "bold red" if kind == "error" else "yellow"
