"""`epctx cache info|gc|verify`."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from epctx.cli.paths import Existing
from epctx.cli.render import UI, command
from epctx.error_codes import Code
from epctx.errors import StorageError, UsageError

if TYPE_CHECKING:
    from epctx.cache.store import Cache

app = typer.Typer(
    help="Look after the cache of built actions.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?", re.ASCII | re.IGNORECASE)
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])", re.ASCII | re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def info(ui: UI) -> None:
    """Say where the cache is and how much is in it."""
    from epctx.cache import check

    found = check.info(_open(ui))
    ui.emit(found)
    actions = ", ".join(f"{count} {kind}" for kind, count in found.actions.items())
    ui.print(
        f"folder      {found.folder}{' (read-only)' if found.readonly else ''}",
        f"actions     {actions}",
        f"objects     {found.objects}, {decimal(found.size)}",
        f"remembered  {found.remembered} digests of files",
        f"quarantine  {found.quarantined} files",
    )


def gc(
    ui: UI,
    locks: Annotated[
        list[Path] | None,
        typer.Argument(metavar="LOCK", help="Keep whatever these lock files reach."),
        Existing(),
    ] = None,
    *,
    max_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Of the rest, keep at most this much: 10GB, 500MiB."),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Of the rest, remove what was not used for: 30d, 12h."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Remove what is not needed.

    With lock files and no limit, all that they do not reach goes; with a limit, what is beyond it
    and not reached. Without either, only leftovers and what nothing refers to. Waits for builds.
    """
    from epctx.cache import collect
    from epctx.cache.locks import alone
    from epctx.lockfile import action_names, read

    age = None if older_than is None else seconds(older_than)
    if locks and older_than is None and max_size is None:
        age = 0.0
    limits = collect.Limits(max_size=None if max_size is None else size_of(max_size), max_age=age)
    keep = {key for path in locks or () for key in action_names(read(path))}
    cache = _open(ui)
    if cache.location.readonly:
        raise UsageError(
            "the cache is read-only", remedy="unset EPCTX_CACHE_READONLY to collect garbage"
        )
    say_once = functools.cache(lambda: ui.note("waiting for builds that use the cache"))
    with alone(cache.location, say_once):
        done = collect.collect(cache, keep=keep, limits=limits, dry_run=dry_run)
    ui.emit(done)
    verb = "would remove" if dry_run else "removed"
    ui.print(
        f"{verb} {done.actions} actions, {done.objects} objects ({decimal(done.size)}), "
        f"{done.records + done.leftovers} other files; {decimal(done.kept)} stay"
    )


def verify(ui: UI) -> None:
    """Read the whole cache; set aside what is corrupt."""
    from epctx.cache import check

    cache = _open(ui)
    found = check.check(cache)
    ui.emit(found)
    ui.print(f"read {found.objects} objects ({decimal(found.size)}), {found.records} records")
    if found.incomplete:
        ui.print(f"{found.incomplete} actions lost files; they will be carried out again")
    if found.corrupt:
        raise StorageError(
            f"{len(found.corrupt)} corrupt files",
            where=found.folder,
            why=", ".join(found.corrupt[:3]) + (", …" if len(found.corrupt) > 3 else ""),
            remedy="remove them with write access to the cache"
            if cache.location.readonly
            else "nothing: they were set aside and will be made again; if it happens again, "
            "check the disk",
            code=Code.CACHE_CORRUPT,
        )


for _function in (info, gc, verify):
    app.command(_function.__name__)(command(_function))


def _open(ui: UI) -> Cache:
    from epctx.cache import location
    from epctx.cache.store import Cache

    return Cache(location.locate(), lambda text: ui.note(f"cache: {text}"))


def size_of(text: str) -> int:
    """Bytes of a size like `10GB` (powers of 1000) or `500MiB` (powers of 1024).

    Raises:
        UsageError: it is none.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{text!r} is not a size", remedy="write it like 10GB or 500MiB", code=Code.COMMAND_LINE
        )
    number, unit, binary = match.groups("")
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])


def seconds(text: str) -> float:
    """Seconds of an age like `30d`.

    Raises:
        UsageError: it is none.
    """
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{text!r} is not an age", remedy="write it like 30d, 12h or 2w", code=Code.COMMAND_LINE
        )
    return float(match[1]) * _SECONDS[match[2].lower()]
