"""`epctx run`: run a model, and tell what comes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from epctx.cli import completion
from epctx.cli.options import pairs, size
from epctx.cli.paths import Existing, Written
from epctx.cli.render import UI, table
from epctx.commands import run as running
from epctx.commands.run import CaseReport, OutputReport, RunReport
from epctx.error_codes import Code
from epctx.errors import UsageError


def run(
    ui: UI,
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="An EPContext model, or any ONNX model."),
        Existing(),
    ],
    *,
    input: Annotated[
        list[Path] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE",
            help="A .npz, .npy or .pb file of inputs; else they are generated.",
        ),
        Existing(),
    ] = None,
    provider: Annotated[
        list[str] | None,
        typer.Option(
            "--provider",
            metavar="NAME[,KEY=VALUE]...",
            autocompletion=completion.providers,
            help="An EP with its options, in priority order; else those that the model's nodes "
            "are for.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="An option of the one --provider."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of generated inputs.")] = 0,
    count: Annotated[
        int, typer.Option("--count", min=1, metavar="N", help="How many input sets to generate.")
    ] = 1,
    range_: Annotated[
        list[str] | None,
        typer.Option(
            "--range", metavar="NAME=LOW,HIGH", help="The range of an input's generated values."
        ),
    ] = None,
    dimension: Annotated[
        list[str] | None,
        typer.Option(
            "--dimension",
            metavar="NAME=SIZE",
            help="Size of an open dimension (or input[axis]), if generated.",
        ),
    ] = None,
    repeat: Annotated[
        int,
        typer.Option(
            "--repeat", min=1, metavar="N", help="Runs of each input set; the median is told."
        ),
    ] = 1,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="A .npz file that gets the outputs."),
        Written(),
    ] = None,
) -> None:
    """Run a model on its execution providers, on inputs from files or generated ones.

    With -v the EPs' own warnings are shown, too.
    """
    ui.reserve_stdout()
    report = running.run(
        model,
        inputs=input or (),
        providers=_providers(provider or [], option or []),
        seed=seed,
        count=count,
        ranges={name: _range(name, text) for name, text in pairs(range_, "--range").items()},
        dimensions={n: size(n, text) for n, text in pairs(dimension, "--dimension").items()},
        repeat=repeat,
        save=save,
        warnings=bool(ui.verbose),
    )
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
            remedy='write each EP\'s own behind its name: --provider "NAME,KEY=VALUE"',
            code=Code.COMMAND_LINE,
        )
    named[0][1].update(pairs(options, "--option"))
    return list(named)


def _range(name: str, text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"--range {name}={text}",
            remedy=f"write two numbers: --range {name}=0,1",
            code=Code.COMMAND_LINE,
        ) from None
    return low, high


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
        found = (out.least, out.mean, out.greatest)
        shown.add_row(
            Text(name),
            Text(f"{out.kind}[{shape}]"),
            *(Text("" if number is None else f"{number:.6g}") for number in found),
        )
    return shown


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
