"""Pages of the reference that are made of the program: commands, errors, variables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from epctx import errors
from epctx.cli.app import COMMANDS, app
from epctx.commands import environment, explain
from epctx.error_codes import Code
from scripts.site.markdown import contents, fence, table


def command(name: str) -> str:
    """A command with all of its options, and with those of its own commands."""
    group: Any = typer.main.get_command(app)
    context = group.context_class(group, info_name="epctx")
    return "\n\n".join(_command("#", f"epctx {name}", group.get_command(context, name))) + "\n"


def names() -> list[str]:
    """All commands, as `epctx --help` lists them."""
    return list(COMMANDS)


def _command(mark: str, path: str, found: Any) -> Iterator[str]:
    context = found.context_class(found, info_name=path)
    yield f"{mark} {path}"
    yield found.help
    yield fence("text", " ".join([path, *found.collect_usage_pieces(context)]))
    shown = [each for each in found.params if not getattr(each, "hidden", False)]
    if shown:
        yield table(("argument or option", "default", ""), map(_parameter, shown))
    for name, each in getattr(found, "commands", {}).items():
        yield from _command(f"{mark}#", f"{path} {name}", each)


def _parameter(each: Any) -> tuple[str, str, str]:
    names = [(each.metavar or each.name).strip("[]…. ")] if _is_argument(each) else each.opts
    values = getattr(each.type, "choices", None)
    wanted = "|".join(values) if values else (each.metavar or "")
    takes = "" if _is_argument(each) or _is_flag(each) else f" `{wanted or each.type.name}`"
    many = each.multiple or each.nargs == -1
    repeated = " May be repeated." if many and "repeat" not in each.help else ""
    return ", ".join(f"`{name}`" for name in names) + takes, _default(each), each.help + repeated


def _is_argument(each: Any) -> bool:
    return bool(each.param_type_name == "argument")


def _is_flag(each: Any) -> bool:
    return bool(getattr(each, "is_flag", False) or getattr(each, "count", False))


def _default(each: Any) -> str:
    if each.required:
        return "required"
    silent = each.default is None or _is_flag(each) or callable(each.default)
    return "" if silent or each.default in ((), "") else f"`{each.default}`"


def index_of_errors() -> str:
    """All errors, a line each, by what the program exits with."""
    rows = ((f"[{each.code}]({each.code}.md)", each.title) for each in explain.everything())
    return (
        "# Every error code\n\nAn error says its code: `error[E0310]: …`. `epctx explain E0310` "
        "prints the page of it. The first two digits are the "
        "[exit code](../reference/exit-codes.md); 13 stands for 130.\n\n"
        f"{table(('code', 'what is wrong'), rows)}\n\n{contents(sorted(Code))}\n"
    )


def exit_codes() -> str:
    """What the program exits with."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    found = {
        kind.exit_code: kind for kind in reversed(kinds) if issubclass(kind, errors.EpctxError)
    }
    rows = [("0", "done")]
    rows += [(str(code), _summary(found[code])) for code in sorted(found)]
    return (
        "# Every exit code\n\nWhat `epctx` exits with, the same for every command. An error also "
        "has a [code of its kind](../errors/index.md).\n\n"
        f"{table(('exit code', 'meaning'), rows)}\n"
    )


def _summary(kind: type[errors.EpctxError]) -> str:
    if kind is errors.EpctxError:
        return "a bug in epctx: a log file is named"
    words = (kind.__doc__ or "").partition("\n")[0].rstrip(".")
    return words[0].lower() + words[1:]


def variables() -> str:
    """What variables of the environment epctx reads."""
    rows = [(f"`{each.name}`", each.default, each.meaning) for each in environment.variables({})]
    return (
        "# Every environment variable\n\n`epctx env` prints them with what they are now. Another "
        "variable `EPCTX_…` is warned about, since it may be misspelt.\n\n"
        f"{table(('variable', 'unless it is set', 'meaning'), rows)}\n"
    )
