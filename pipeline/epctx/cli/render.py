"""Printing, output forms and exit codes of all commands."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import msgspec
import typer
from rich import box
from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from epctx import api, codec
from epctx.arguments import evaluated
from epctx.cli import declared, github, paths, problems
from epctx.cli.console import console, write
from epctx.cli.streams import ESCAPING, Stream
from epctx.engine.events import Event
from epctx.engine.executor import ending_signals
from epctx.errors import EpctxError, Interrupted, InvalidManifest, unexpected


class Format(StrEnum):
    """Form of a command's result on stdout."""

    text = "text"
    json = "json"
    jsonl = "jsonl"


class Color(StrEnum):
    """Colour of the output."""

    auto = "auto"
    always = "always"
    never = "never"


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        help="Form of the result on stdout; json: one document; jsonl: a line for each event, "
        "then one for the result.",
    ),
]
VerboseOption = Annotated[
    int,
    typer.Option("--verbose", "-v", count=True, metavar="", show_default=False, help="Print more."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", metavar="", help="Print errors only.")]
ColorOption = Annotated[Color, typer.Option("--color", help="When to colour the output.")]


class UI:
    """Output of one command: results on stdout; progress, notes and errors on stderr."""

    def __init__(
        self,
        *,
        format: str = Format.text,
        verbose: int = 0,
        quiet: bool = False,
        color: Color = Color.auto,
    ) -> None:
        self.json = format != Format.text
        self.lines = format == Format.jsonl
        self.verbose = verbose
        self.quiet = quiet
        self.plain = not self.json and not verbose and color is not Color.always
        self._color = color
        self._emitted = False
        self._started = time.monotonic()
        if logging.lastResort is not None:  # a handler that writes to the current sys.stderr
            log = logging.getLogger("epctx")
            (log.addHandler if verbose else log.removeHandler)(logging.lastResort)

    @functools.cached_property
    def out(self) -> Console:
        """Console for results that people read."""
        return console(stderr=False, color=self._color)

    @functools.cached_property
    def err(self) -> Console:
        """Console for progress, notes and errors."""
        return console(stderr=True, color=self._color)

    @property
    def is_live(self) -> bool:
        """Tell whether stderr is a terminal with a cursor."""
        return self.err.is_terminal and not self.err.is_dumb_terminal

    @property
    def asks(self) -> bool:
        """Tell whether somebody can answer a question."""
        return not self.json and sys.stdin.isatty() and sys.stderr.isatty()

    def reserve_stdout(self) -> None:
        """Reserve stdout for results. Output of an EP's libraries goes to stderr, even at the end
        of the process.
        """
        try:
            if sys.stdout.fileno() != 1:
                return
        except (OSError, ValueError, AttributeError):  # stdout of a test or a notebook
            return
        sys.stdout.flush()
        own = os.dup(1)
        os.dup2(2, 1)
        apart = os.fdopen(own, "w", encoding=sys.stdout.encoding, errors=ESCAPING)
        if isinstance(sys.stdout, Stream):
            sys.stdout.inner = apart
        else:
            sys.stdout = apart

    def print(self, *renderables: RenderableType) -> None:
        """Print a result for people; nothing in JSON form or when quiet."""
        if not self.json and not self.quiet:
            self.put(*renderables)

    def emit(self, result: object) -> None:
        """Print a result for programs (structs, mappings, paths); nothing in text form.

        A command prints one document: its result, which includes its failures, or the error.
        """
        if self.json:
            self._emitted = True
            self._write({"result": result} if self.lines else result)

    def emit_line(self, result: object) -> None:
        """Print a result for programs in one line, which CI systems can read as an output."""
        self._emitted = True
        sys.stdout.write(f"{line(result)}\n")
        sys.stdout.flush()

    def event(self, event: object) -> None:
        """Print an event as a JSON line, with the seconds since the start."""
        seconds = round(time.monotonic() - self._started, 3)
        self._write({"event": event, "seconds": seconds})

    def note(self, *renderables: RenderableType) -> None:
        """Print a note on stderr; nothing when quiet."""
        if not self.quiet:
            self.put(*renderables, stderr=True)

    def waiting(self) -> None:
        """Print that the command waits for a build that holds the outputs."""
        self.note(Text("waiting for a build that holds the outputs", style="yellow"))

    def listener(self, event: Event) -> None:
        """Print an event of a plan as a note."""
        self.note(f"{event.group}: {event.detail}")

    def warn(self, what: str, remedy: str) -> None:
        """Print a warning about a possible mistake."""
        self.note(warning(what, remedy))

    def error(self, error: EpctxError, *, annotate: bool = True) -> None:
        """Report an error on stderr, and as JSON on stdout if no result was printed there.

        Args:
            annotate: also annotate the error for GitHub.
        """
        if annotate:
            github.annotate(problems.of_error(error))
        self.put(shown(error, every=bool(self.verbose)), stderr=True)
        if not self._emitted:
            self._emitted = True
            if self.json:
                self._write({"error": _fields(error)})

    def put(self, *renderables: RenderableType, stderr: bool = False) -> None:
        """Print for people, also when quiet."""
        for each in renderables:
            write(self.err if stderr else self.out, each)

    def _write(self, result: object) -> None:
        sys.stdout.write(f"{(line if self.lines else document)(result)}\n")
        sys.stdout.flush()


def document(result: object) -> str:
    """Return a result as indented JSON with sorted keys."""
    return msgspec.json.format(line(result), indent=2)


def line(result: object) -> str:
    """Return a result as JSON in one line."""
    try:
        return msgspec.json.encode(result, enc_hook=_encode, order="deterministic").decode()
    except UnicodeEncodeError as error:
        raise codec.no_text(error) from error


def shown(error: EpctxError, *, every: bool = False) -> Text:
    """Return the text of an error; an invalid manifest gives its violations, or the first ones."""
    return Text("\n").join(problems.texts(problems.of_error(error), every=every))


def warning(what: str, remedy: str) -> Text:
    """Return the text of a warning about a possible mistake."""
    return Text.assemble(("warning: ", "yellow"), what, (f"\n  -> {remedy}", "cyan"))


def table(*headings: str, right: Collection[str] = ()) -> Table:
    """Return a table with these columns, some of them right-aligned, and a line below its head."""
    result = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        justify: JustifyMethod = "right" if heading in right else "left"
        result.add_column(heading, justify=justify, overflow="fold")
    return result


def filled(
    headings: Sequence[str], rows: Sequence[Sequence[RenderableType]], *, right: Collection[str]
) -> Table:
    """Return a table without the columns that are empty in every row."""
    columns = [number for number in range(len(headings)) if any(row[number] for row in rows)]
    result = table(*(headings[number] for number in columns), right=right)
    for row in rows:
        result.add_row(*(row[number] for number in columns))
    return result


def facts_table(facts: Mapping[str, str]) -> Table:
    """Return an indented table with one named fact per line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, words in facts.items():
        grid.add_row(Text(f"  {name}", style="dim"), Text(words))
    return grid


def _fields(error: EpctxError) -> dict[str, object]:
    fields: dict[str, object] = asdict(error.failure)
    fields["type"] = fields.pop("kind")
    if isinstance(error, InvalidManifest):
        fields["violations"] = error.violations
    return fields


def _encode(value: object) -> object:
    if isinstance(value, Path):
        return value.as_posix()
    return str(value)


def command(function: Callable[..., int | None]) -> Callable[..., None]:
    """Make a Typer command of `function(ui, ...)`, which returns its exit code; None means 0.

    The command gets the common options, and the parameters that `declared.by` names. A function
    keeps its own `format` option. Only here does an error become an exit code. The user sees no
    traceback: that of an unexpected error is written to a file that the message names.
    """
    parameters = {each.name: each for each in _signature(function)}
    own = inspect.signature(function).parameters

    @functools.wraps(function)
    def run(**values: Any) -> None:
        common = {name: values.pop(name) for name, _, _ in _COMMON}
        ui = UI(**common)
        try:
            api.check_environment(ui.warn)
            paths.require(list(parameters.values()), values, ui.note)
            if "format" in own:
                values["format"] = common["format"]
            with _ended_as_by_its_user():
                code = function(ui, *declared.bound(function, values), **values)
        except EpctxError as error:
            ui.error(error)
            code = error.exit_code
        except KeyboardInterrupt:
            interrupted = Interrupted(
                "interrupted", remedy="run the command again; nothing is lost"
            )
            ui.error(interrupted)
            code = interrupted.exit_code
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            failure = _unexpected(error)
            ui.error(failure)
            code = failure.exit_code
        if code:
            raise typer.Exit(code)

    signature = inspect.Signature(list(parameters.values()))
    setattr(run, "__signature__", signature)  # noqa: B010 - mypy refuses an assignment
    run.__annotations__ = {name: each.annotation for name, each in parameters.items()}
    run.__doc__ = declared.help_of(function)
    return run


def _signature(function: Callable[..., object]) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a command: those of its API function, its own, the common ones."""
    shown = declared.parameters(function)
    yield from (each.shown for each in shown.values())
    own = inspect.signature(function).parameters
    for each in own.values():
        if each.kind is inspect.Parameter.KEYWORD_ONLY:
            yield evaluated(each, function)
    for name, default, kind in _COMMON:
        if name not in own:
            yield inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
            )


_COMMON: Final = (
    ("format", Format.text, FormatOption),
    ("verbose", 0, VerboseOption),
    ("quiet", False, QuietOption),
    ("color", Color.auto, ColorOption),
)


class Group(typer.Typer):
    """A command with commands of its own."""

    def __init__(self, help: str) -> None:
        super().__init__(
            help=help,
            no_args_is_help=True,
            add_completion=False,
            context_settings={"help_option_names": ["-h", "--help"]},
        )

    def add(self, function: Callable[..., int | None]) -> None:
        """Add a command under its function's name."""
        self.command(function.__name__.replace("_", "-"))(command(function))


@contextmanager
def _ended_as_by_its_user() -> Iterator[None]:
    """Treat SIGTERM, which job control systems send, and SIGHUP as Ctrl-C: exit 130."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # in a notebook or a test, the owner of the main thread handles signals
        return
    numbers = [number for number in ending_signals() if number != signal.SIGINT]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _unexpected(error: Exception) -> EpctxError:
    if isinstance(error, MemoryError):
        return unexpected(error, remedy="")
    with tempfile.NamedTemporaryFile(
        "w", prefix="epctx-", suffix=".log", delete=False, encoding="utf-8"
    ) as log:
        log.write("".join(traceback.format_exception(error)))
    return unexpected(error, remedy=f"report it with the log file {log.name}")
