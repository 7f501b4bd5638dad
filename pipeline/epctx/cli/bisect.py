"""`epctx bisect`: the first wrong node of a model, the cause, and a repair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from epctx import api
from epctx.cli import declared, progress
from epctx.cli.render import UI, table
from epctx.commands.bisect.result import Bisection, Reading
from epctx.errors import VerificationError
from epctx.lockfile import yaml_text

_ENDED: Final = {
    "budget": "the budget is used up: raise --budget",
    "vanished": "the fault disappears as soon as values are read: the EP computes nodes together",
    "crashed": "the model does not compile, or cannot be run",
}


@declared.by(api.bisect)
def bisect(ui: UI, call: Callable[..., tuple[Bisection, Path]]) -> int:
    with progress.live(ui) as listener:
        result, page = call(listener=listener)
    ui.emit(result)
    took = f"{result.builds} build{'s' * (result.builds != 1)}, {result.seconds:.0f} s"
    if result.ended == "nothing wrong":
        ui.print(Text(f"nothing is wrong: all outputs are within the tolerance ({took})", "green"))
        return 0
    ui.print(*_words(result, took), Text.assemble(("page: ", "bold"), page.as_posix()))
    return VerificationError.exit_code


def _words(result: Bisection, took: str) -> Iterator[RenderableType]:
    if result.readings:
        yield _readings(result.readings)
        yield Text(f"on {result.input_set}, {result.nodes} nodes, {took}", "dim")
    elif result.nodes:
        yield Text(f"{result.nodes} nodes, {took}", "dim")
    if result.ended in _ENDED:
        yield Text(_ENDED[result.ended], "bold red")
    for each in result.first:
        which = "known wrong node" if result.suspects else "wrong node"
        inputs = (
            f"{result.suspects} nodes before it were not checked"
            if result.suspects
            else "all its inputs are right"
        )
        words = f"{each.node or each.value!r} ({each.op_type}); {inputs}"
        yield Text.assemble((f"first {which}: ", "bold"), words)
    if result.cause is None:
        return
    yield Text.assemble(("cause: ", "bold"), f"{result.cause.kind}: {result.cause.why}")
    for name, (least, greatest) in result.cause.ranges.items():
        yield Text(f"  {name}: {least:.4g} to {greatest:.4g}", "dim")
    if result.cause.remedy:
        yield Text(f"  -> {result.cause.remedy}", "cyan")
    for tried in result.tried:
        yield Text(f"tried: {tried.what}: {tried.failure or 'its numbers pass'}")
    if result.repair is None:
        if result.tried:
            yield Text("none of the tried repairs works", "bold red")
    else:
        yield Text("this change of the manifest repairs it:", "bold green")
        yield Text(yaml_text.text(result.repair.manifest).rstrip())


def _readings(readings: tuple[Reading, ...]) -> RenderableType:
    readings_table = table(
        "place", "node", "op type", "SQNR", "error", "", right=("place", "SQNR", "error")
    )
    for each in readings:
        state = Text("right", "green") if each.passed else Text("WRONG", "bold red")
        sqnr, error = each.comparison.sqnr, each.comparison.max_rel
        readings_table.add_row(
            str(each.place),
            Text(each.node or each.value),
            each.op_type,
            "" if sqnr is None else f"{sqnr:.1f} dB",
            Text(each.comparison.problem or ("" if error is None else f"{error:.2g}")),
            state,
        )
    return readings_table
