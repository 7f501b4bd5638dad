"""`epctx run`: run a model, and describe its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from epctx.cli import completion, declared
from epctx.cli.declared import pairs
from epctx.cli.render import UI, table
from epctx.commands import run as running
from epctx.commands.run import CaseReport, OutputReport, RunReport
from epctx.error_codes import Code
from epctx.errors import UsageError


@declared.by(running.run, without=("warnings",))
def run(
    ui: UI,
    call: Callable[..., RunReport],
    *,
    provider: Annotated[
        list[str] | None,
        typer.Option(
            "--provider",
            metavar="NAME[,KEY=VALUE]...",
            autocompletion=completion.providers,
            help="An EP with its options; may be repeated, in priority order. The EPs of the "
            "model's EPContext nodes if omitted.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="An option of the only --provider."),
    ] = None,
) -> None:
    ui.reserve_stdout()
    providers = _providers(provider or [], option or [])
    report = call(providers=providers, warnings=bool(ui.verbose))
    ui.emit(report)
    _print(ui, report)


def _providers(
    providers: list[str], options: list[str]
) -> list[tuple[str, Mapping[str, str]]] | None:
    if not providers:
        if options:
            raise UsageError(
                "--option without --provider",
                remedy="name the EP it is for",
                code=Code.COMMAND_LINE,
            )
        return None
    named = []
    for text in providers:
        name, _, rest = text.partition(",")
        named.append((name, pairs(filter(None, rest.split(",")), "--provider")))
    if options and len(named) > 1:
        raise UsageError(
            f"--option with {len(named)} EPs",
            remedy='write the options of each EP behind its name: --provider "NAME,KEY=VALUE"',
            code=Code.COMMAND_LINE,
        )
    named[0][1].update(pairs(options, "--option"))
    return list(named)


def _print(ui: UI, report: RunReport) -> None:
    loaded = Text.assemble(
        (report.model.name, "bold"),
        f"  on {', '.join(report.providers)}; loaded in {_time(report.load_seconds)}",
    )
    ui.print(loaded)
    for name in report.simulated:
        ui.print(Text(f"{name}: simulated on x86: not the device's time", "yellow"))
    if report.nodes:
        ui.print(Text(f"nodes: {_nodes(report)}"))
    for case in report.cases:
        ui.print(Text(""), _case(case), _outputs(case.outputs))
        if case.saved is not None:
            ui.print(Text(f"saved to {case.saved.as_posix()}"))


def _nodes(report: RunReport) -> str:
    counts = [f"{report.nodes.get(name, 0)} on {name}" for name in report.providers]
    return ", ".join(counts)


def _case(case: CaseReport) -> Text:
    runs = "" if case.runs == 1 else f", median of {case.runs} runs"
    return Text.assemble((case.label, "bold"), f"  {_time(case.seconds)}{runs}")


def _outputs(outputs: Iterable[OutputReport]) -> Table:
    numbers = ("least", "mean", "greatest")
    shown = table("output", "type", *numbers, right=numbers)
    for out in outputs:
        name = out.name if not out.not_finite else f"{out.name} ({out.not_finite} not finite)"
        shape = ", ".join(map(str, out.shape))
        values = (out.least, out.mean, out.greatest)
        shown.add_row(
            Text(name),
            Text(f"{out.kind}[{shape}]"),
            *(Text("" if number is None else f"{number:.6g}") for number in values),
        )
    return shown


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
