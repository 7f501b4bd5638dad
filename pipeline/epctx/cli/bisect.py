"""`epctx bisect`: the first wrong node of a model, why it is wrong, and what repairs it."""

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
    "vanished": "the fault is gone as soon as values are read: the EP computes nodes together",
    "crashed": "it does not compile, or cannot be run",
}


@declared.by(api.bisect)
def bisect(ui: UI, call: Callable[..., tuple[Bisection, Path]]) -> int:
    with progress.live(ui) as listener:
        found, page = call(listener=listener)
    ui.emit(found)
    took = f"{found.builds} build{'s' * (found.builds != 1)}, {found.seconds:.0f} s"
    if found.ended == "nothing wrong":
        ui.print(Text(f"nothing is wrong: all outputs are within the tolerance ({took})", "green"))
        return 0
    ui.print(*_words(found, took), Text.assemble(("page: ", "bold"), page.as_posix()))
    return VerificationError.exit_code


def _words(found: Bisection, took: str) -> Iterator[RenderableType]:
    if found.readings:
        yield _readings(found.readings)
        yield Text(f"on {found.input_set}, {found.nodes} nodes, {took}", "dim")
    elif found.nodes:
        yield Text(f"{found.nodes} nodes, {took}", "dim")
    if found.ended in _ENDED:
        yield Text(_ENDED[found.ended], "bold red")
    for each in found.first:
        which = "wrong node that is known" if found.suspects else "wrong node"
        said = (
            f"{found.suspects} before it are not known"
            if found.suspects
            else "all it uses is right"
        )
        who = f"{each.node or each.value!r} ({each.op_type}); {said}"
        yield Text.assemble((f"first {which}: ", "bold"), who)
    if found.cause is None:
        return
    yield Text.assemble(("cause: ", "bold"), f"{found.cause.kind}: {found.cause.why}")
    for name, (least, greatest) in found.cause.ranges.items():
        yield Text(f"  {name}: {least:.4g} to {greatest:.4g}", "dim")
    if found.cause.remedy:
        yield Text(f"  -> {found.cause.remedy}", "cyan")
    for tried in found.tried:
        yield Text(f"tried: {tried.what}: {tried.failure or 'its numbers pass'}")
    if found.repair is None:
        if found.tried:
            yield Text("nothing that was tried repairs it", "bold red")
    else:
        yield Text("this in the manifest repairs it:", "bold green")
        yield Text(yaml_text.text(found.repair.manifest).rstrip())


def _readings(readings: tuple[Reading, ...]) -> RenderableType:
    shown = table("place", "node", "op type", "SQNR", "error", "", right=("place", "SQNR", "error"))
    for each in readings:
        state = Text("right", "green") if each.passed else Text("WRONG", "bold red")
        sqnr, error = each.comparison.sqnr, each.comparison.max_rel
        shown.add_row(
            str(each.place),
            Text(each.node or each.value),
            each.op_type,
            "" if sqnr is None else f"{sqnr:.1f} dB",
            Text(each.comparison.problem or ("" if error is None else f"{error:.2g}")),
            state,
        )
    return shown
