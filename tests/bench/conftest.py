"""What a run has measured, as one table at its end."""

from __future__ import annotations

import pytest

from tests.bench import measuring


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not measuring.found:
        return
    beside = [row for row in measuring.found if row not in measuring.DESIGN]
    lines = [("what", "against", "hold", "found", "")]
    for row in (*measuring.DESIGN, *beside):
        figure = measuring.found.get(row)
        limit = "" if row.hold is None else f"{'≥' if row.least else '≤'} {row.hold:g}"
        if figure is None:
            lines.append((row.what, row.against, limit, "", "not measured"))
        else:
            verdict = "" if row.hold is None else "ok" if row.holds(figure) else "does not hold"
            lines.append((row.what, row.against, limit, f"{figure:.3g}", verdict))
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    terminalreporter.section("measured")
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        terminalreporter.write_line("  ".join(cells).rstrip())
