"""`epctx init`: write a starter manifest."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from epctx import api
from epctx.cli import declared
from epctx.cli.render import UI
from epctx.commands.init import command as starter
from epctx.commands.init import example as examples
from epctx.commands.init import options as choice
from epctx.error_codes import Code
from epctx.errors import EpctxError, UsageError
from epctx.parsing.rules.options import of_session


@declared.by(api.init)
def init(
    ui: UI,
    call: Callable[..., Path],
    models: Sequence[Path],
    manifest: Path | None,
    provider: str | None,
    options: Mapping[str, str],
    force: bool,
    *,
    example: Annotated[
        bool, typer.Option("--example", help="Also write a small model, and use it.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing, and accept every proposal.")
    ] = False,
) -> None:
    if example and models:
        raise UsageError(
            "--example brings its own model",
            remedy="name no models, or leave out --example",
            code=Code.COMMAND_LINE,
        )
    if not example and not models:
        raise UsageError(
            "no model is named",
            remedy="name one: `epctx init MODEL.onnx`; or write --example",
            code=Code.COMMAND_LINE,
        )
    asks = not yes and ui.asks
    chosen = provider or _provider(ui, options, asks=asks)
    options = {**options, **_left_out(ui, chosen, options, asks=asks)}
    if example:
        models = [examples.write((manifest or Path()).parent, force=force)]
    ask = partial(_size, ui) if asks else None
    try:
        written = call(models=models, provider=chosen, options=options, ask_size=ask)
    except EpctxError:
        if example:
            models[0].unlink()
        raise
    if example:
        ui.print(Text.assemble("wrote ", (models[0].as_posix(), "bold")))
    ui.emit({"manifest": written, "provider": chosen})
    words = ["epctx", "build", written.as_posix(), *show_manifest(ui, written)]
    ui.note(Text(f"next: {_command(*words)}", style="cyan"))


def show_manifest(ui: UI, written: Path) -> tuple[str, ...]:
    """Print the path of a new manifest. Return the flags that its commands need, after notes."""
    ui.print(Text.assemble("wrote ", (written.as_posix(), "bold")))
    text = written.read_text(encoding="utf-8")
    for line in filter(lambda line: line.strip().startswith(starter.ENDED), text.splitlines()):
        ui.note(Text(line.strip(" #")))
    if starter.LINKED not in text:
        return ()
    ui.note(Text("a model is a link out of the manifest's folder: commands need --allow-outside"))
    return ("--allow-outside",)


def _size(ui: UI, name: str, guess: int) -> int:
    """Ask for a size that the model leaves open."""
    while True:
        answer = str(typer.prompt(f"Size of {name!r}", default=str(guess), err=True)).strip()
        if answer.isdecimal() and int(answer) > 0:
            return int(answer)
        ui.note(Text("enter a size of at least 1, or press Enter for the default", style="cyan"))


def _provider(ui: UI, options: Mapping[str, str], *, asks: bool) -> str:
    """Ask for the EP in a terminal; otherwise return the most useful installed EP."""
    installed = choice.installed()
    proposed = choice.proposed(installed, options)
    if asks and len(installed) > 1:
        for number, each in enumerate(installed, start=1):
            state = each.state if each.builds is not False else "does not compile on this host"
            ui.note(Text.assemble(f"  {number}  ", (each.name, "bold"), f"  {state}"))
        names = [each.name for each in installed]
        return _chosen(ui, names, default=names.index(proposed) if proposed in names else 0)
    others = ", ".join(each.name for each in installed if each.name != proposed)
    also = f"; also installed: {others}" if others else ""
    ui.note(Text(f"for {proposed}; --provider names another{also}"))
    return proposed


def _chosen(ui: UI, names: Sequence[str], *, default: int) -> str:
    """Ask for one of several names, by its number or its first letters."""
    while True:
        answer = str(typer.prompt("Execution provider", default=str(default + 1), err=True)).strip()
        if answer.isdecimal() and 0 < int(answer) <= len(names):
            return names[int(answer) - 1]
        matches = [name for name in names if name.lower().startswith(answer.lower())]
        if answer and len(matches) == 1:
            return matches[0]
        ui.note(Text(f"enter a number from 1 to {len(names)}, or a name", style="cyan"))


def _left_out(ui: UI, provider: str, given: Mapping[str, str], *, asks: bool) -> dict[str, str]:
    """Ask for advised options that are missing; note them if nobody can answer."""
    answers = {}
    for each in choice.left_out(provider, given):
        name = each.options[0]
        ui.note(Text(f"without {name} {each.without}"))
        if asks:
            answers[name] = _value(ui, provider, name)
        else:
            names = choice.names_of(provider, name)
            ui.note(Text(f"  -> --option {name}=…: {each.remedy}", style="cyan"))
            if names:
                ui.note(Text(f"     names: {', '.join(names)}", style="cyan"))
    return {name: answer for name, answer in answers.items() if answer}


def _value(ui: UI, provider: str, option: str) -> str:
    """Ask for the value of an option until it is valid; empty if it is left out."""
    names = choice.names_of(provider, option)
    for number, (name, value) in enumerate(names.items(), start=1):
        ui.note(Text.assemble(f"  {number:2}  ", (name, "bold"), f"  {value}"))
    while True:
        words = f"{option}, a number of the list, or Enter" if names else f"{option}, or Enter"
        answer = str(typer.prompt(words, default="", show_default=False, err=True)).strip()
        if answer.isdecimal() and 0 < int(answer) <= len(names):
            return list(names)[int(answer) - 1]
        try:
            of_session(provider, {option: answer} if answer else {})
        except EpctxError as error:
            ui.note(Text(f"{error.what}: {error.remedy}", style="cyan"))
        else:
            return answer


def _command(*words: str) -> str:
    """Return a command line quoted for the user's shell."""
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)
