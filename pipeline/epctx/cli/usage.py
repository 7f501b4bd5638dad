"""Wrong arguments, where the result is wanted as JSON: an error like any other."""

from __future__ import annotations

from epctx.cli.render import UI, Format
from epctx.errors import UsageError


def report(error: Exception, prog_name: str) -> int:
    """Report what Typer raised for wrong arguments; its exit code.

    Raises:
        Exception: `error`, which is something else.
    """
    # The class of these errors has no public name in all versions of Typer.
    message = getattr(error, "format_message", None)
    if message is None:
        raise error
    path = getattr(getattr(error, "ctx", None), "command_path", prog_name)
    told = UsageError(message().rstrip("."), remedy=f"see `{path} --help`")
    UI(format=Format.json).error(told)
    return told.exit_code
