"""`epctx bisect`: the first wrong node of a model, why it is wrong, and what repairs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from epctx import api
from epctx.cli import completion, progress
from epctx.cli.options import STARTER, AllowOutside, Out
from epctx.cli.render import UI, table
from epctx.commands.bisect.result import Bisection, Reading
from epctx.error_codes import Code
from epctx.errors import UsageError, VerificationError
from epctx.lockfile import yaml_text
from epctx.parsing import load

_ENDED: Final = {
    "budget": "the budget is used up: raise --budget",
    "vanished": "the fault is gone as soon as values are read: the EP computes nodes together",
    "crashed": "it does not compile, or cannot be run",
}
Group = Annotated[
    str,
    typer.Argument(
        metavar="GROUP[@TARGET]",
        help="The model group; of several targets the first.",
        autocompletion=completion.groups,
    ),
]


def bisect(
    ui: UI,
    manifest: Annotated[
        Path, typer.Argument(metavar="MANIFEST", help="The manifest, whose build fails."), STARTER
    ],
    group: Group,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model of the group.")],
    *,
    cuts: Annotated[
        int, typer.Option(min=1, metavar="N", help="Nodes that are read at a time.")
    ] = 8,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Begin no further build after that: 90s, 10m, 1h."),
    ] = None,
    out: Out = Path("dist"),
    allow_outside: AllowOutside = False,
) -> None:
    """Find the node of a model that is wrong or does not compile, why, and what repairs it.

    The model is built again and again, with inner values as outputs: each
    time these are compared with the source's. If it fails or crashes, nodes
    are kept off the EPs, half of them first. What may repair the build is
    tried before it is proposed. DIR gets all that was found as JSON and as a
    page. Ends with 7 where something is wrong.
    """
    seconds = _seconds(budget)
    with progress.live(ui) as listener:
        found, page = api.bisect(
            manifest,
            group,
            model,
            cuts=cuts,
            budget=seconds,
            out=out,
            allow_outside=allow_outside,
            listener=listener,
        )
    ui.emit(found)
    took = f"{found.builds} build{'s' * (found.builds != 1)}, {found.seconds:.0f} s"
    if found.ended == "nothing wrong":
        ui.print(Text(f"nothing is wrong: all outputs are within the tolerance ({took})", "green"))
        return
    ui.print(*_words(found, took), Text.assemble(("page: ", "bold"), page.as_posix()))
    raise typer.Exit(VerificationError.exit_code)


def _seconds(duration: str | None) -> float | None:
    try:
        return None if duration is None else load.seconds(duration)
    except ValueError as error:
        remedy = "write it like 90s, 10m or 1h30m"
        raise UsageError(f"--budget {error}", remedy=remedy, code=Code.COMMAND_LINE) from None


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
