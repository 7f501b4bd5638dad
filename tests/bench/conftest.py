"""What a run has measured, as one table at its end."""

from __future__ import annotations

import pytest

from tests.bench import measuring
from tests.bench.measuring import Found, Row

HEADINGS = ("what", "against", "hold", "found", "spread of the pairs", "our memory", "")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not measuring.found:
        return
    terminalreporter.section(f"measured on {measuring.machine()}")
    for line in table():
        terminalreporter.write_line(line)


def table() -> list[str]:
    """A line a row: those of the design, then the others that were measured."""
    beside = [row for row in measuring.found if row not in measuring.HELD]
    rows = (*measuring.HELD, *beside)
    lines = [HEADINGS, *(_cells(row, measuring.found.get(row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _cells(row: Row, found: Found | None) -> tuple[str, ...]:
    limit = "" if row.hold is None else f"≤ {row.hold:g}"
    if found is None:
        return (row.what, row.against, limit, "", "", "", "not measured")
    verdict = "" if row.hold is None else "ok" if row.holds(found.figure) else "does not hold"
    memory = "" if found.memory is None else f"{found.memory / 1e6:.0f} MB"
    return (row.what, row.against, limit, f"{found.figure:.3g}", found.spread, memory, verdict)
