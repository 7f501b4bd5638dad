"""Report wrong arguments, which Typer finds, like other errors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import typer

from epctx.cli.render import UI, Color, Format
from epctx.error_codes import Code
from epctx.errors import EpctxError, Interrupted, UsageError
from epctx.text import did_you_mean

_PROPOSED = re.compile(r" \(Possible options: .*\)$| \(Did you mean .*\)$")
"""Proposals of Typer, which the remedy repeats."""
_WORDS = {"Value error, ": "", "Input should be": "must be"}
_PYDANTIC = re.compile("|".join(_WORDS))


def report(error: Exception, arguments: Sequence[str], prog_name: str) -> int:
    """Report an error about wrong arguments, in the requested form; return its exit code.

    Raises:
        Exception: `error`, if it is not about arguments.
    """
    failure = error if isinstance(error, EpctxError) else _of_typer(error, prog_name)
    if not failure.what:  # without arguments, Typer has shown the help
        return failure.exit_code
    ui = UI(
        format=Format(_value_of(arguments, "--format", list(Format)) or Format.text),
        color=Color(_value_of(arguments, "--color", list(Color)) or Color.auto),
    )
    ui.error(failure)
    return failure.exit_code


def _of_typer(error: Exception, prog_name: str) -> EpctxError:
    if isinstance(error, typer.Abort):  # a question was not answered
        return Interrupted("interrupted", remedy="run the command again; nothing is lost")
    # The class of these errors has no public name in all versions of Typer.
    message = getattr(error, "format_message", None)
    if message is None:
        raise error
    text = _PYDANTIC.sub(lambda match: _WORDS[match[0]], str(message()))
    what, _, rest = _PROPOSED.sub("", text).rstrip(".").partition(". ")
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", prog_name)
    option, possible = getattr(error, "option_name", None), getattr(error, "possibilities", None)
    near = (
        f"{did_you_mean(option, possible)} " if option and possible else f"{rest}; " if rest else ""
    )
    remedy = f"{near}see `{path} --help`"
    return UsageError(what[:1].lower() + what[1:], remedy=remedy, code=Code.COMMAND_LINE)


def _value_of(arguments: Sequence[str], option: str, choices: Sequence[str]) -> str | None:
    """Return the value of an option among arguments that may be wrong; None if it is not valid."""
    pairs = [*itertools.pairwise(arguments), *(each.partition("=")[::2] for each in arguments)]
    return next((value for name, value in pairs if name == option and value in choices), None)
