"""`epctx cache info|gc|verify|keygen|push|pull|ls`."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from epctx.cache import maintenance, shared
from epctx.cache.locks import alone
from epctx.cache.remote import signing
from epctx.cache.remote.tier import Tier
from epctx.cache.shared import Moved
from epctx.cache.store import Cache, open_cache
from epctx.cli.paths import Existing, Written
from epctx.cli.render import UI, command, table
from epctx.error_codes import Code
from epctx.errors import StorageError, UsageError
from epctx.lockfile import action_names, read
from epctx.text import bytes_of

app = typer.Typer(
    help="Look after the cache of built actions.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])", re.ASCII | re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def info(ui: UI) -> None:
    """Say where the cache is and how much is in it."""
    found = maintenance.info(_open(ui))
    ui.emit(found)
    words = f"trusted: {', '.join(found.trusts) or 'nobody'}; {'' if found.signs else 'not '}pushed"
    actions = ", ".join(f"{count} {kind}" for kind, count in found.actions.items())
    ui.print(
        f"folder      {found.folder}{' (read-only)' if found.readonly else ''}",
        f"actions     {actions}",
        f"objects     {found.objects}, {decimal(found.size)}",
        f"remembered  {found.remembered} digests of files",
        f"quarantine  {found.quarantined} files",
        *([f"remote      {found.remote} ({words})"] if found.remote is not None else []),
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
    remote: Annotated[
        bool, typer.Option("--remote", help="Of the shared cache: EPCTX_REMOTE_CACHE.")
    ] = False,
) -> None:
    """Remove what is not needed.

    With lock files and no limit, all that they do not reach goes; with a limit, what is beyond it
    and not reached. Without either, only leftovers and what nothing refers to. Waits for builds.
    Of a shared cache an age counts from when something was put there.
    """
    age = None if older_than is None else seconds(older_than)
    if locks and older_than is None and max_size is None:
        age = 0.0
    limits = maintenance.Limits(
        max_size=None if max_size is None else size_of(max_size), max_age=age
    )
    keep = {key for path in locks or () for key in action_names(read(path))}
    cache = _open(ui)
    if remote:
        _gc_remote(ui, _remote(cache), keep, limits, dry_run=dry_run)
        return
    if cache.location.readonly:
        raise UsageError(
            "the cache is read-only", remedy="unset EPCTX_CACHE_READONLY to collect garbage"
        )
    say_once = functools.cache(lambda: ui.note("waiting for builds that use the cache"))
    with alone(cache.location, say_once):
        done = maintenance.collect(cache, keep=keep, limits=limits, dry_run=dry_run)
    ui.emit(done)
    verb = "would remove" if dry_run else "removed"
    ui.print(
        f"{verb} {done.actions} actions, {done.objects} objects ({decimal(done.size)}), "
        f"{done.records + done.leftovers} other files; {decimal(done.kept)} stay"
    )


def verify(ui: UI) -> None:
    """Read the whole cache; set aside what is corrupt."""
    cache = _open(ui)
    found = maintenance.check(cache)
    ui.emit(found)
    ui.print(f"read {found.objects} objects ({decimal(found.size)}), {found.records} records")
    if found.elsewhere:
        ui.print(f"files of {found.elsewhere} actions are in the shared cache alone")
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


Locks = Annotated[
    list[Path] | None,
    typer.Argument(metavar="LOCK", help="What these lock files reach; else everything."),
    Existing(),
]


def keygen(
    ui: UI,
    key: Annotated[Path, typer.Argument(metavar="KEY.pem", help="The new private key."), Written()],
    *,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Its name, with a number at the end: ci-1."),
    ] = None,
) -> None:
    """Write a key that signs what is built, and KEY.pem.pub, which others trust.

    EPCTX_CACHE_SIGNING_KEY names the first, EPCTX_CACHE_TRUST the second.
    """
    public, line = signing.keygen(key, name)
    ui.emit({"private": key, "public": public, "line": line})
    ui.print(f"{key}  keep it secret", f"{public}  {line}")


def push(ui: UI, locks: Locks = None) -> None:
    """Sign what is in the cache, and put it into the shared one: EPCTX_REMOTE_CACHE."""
    cache = _open(ui)
    remote = _remote(cache)
    cache.ready()
    if not cache.signs:
        raise UsageError(
            "nothing can be pushed without a signing key",
            remedy="name one in EPCTX_CACHE_SIGNING_KEY; `epctx cache keygen KEY.pem` writes one",
            code=Code.ENVIRONMENT,
        )
    _moved(ui, "pushed", shared.push(cache, remote, _names(locks)))


def pull(ui: UI, locks: Locks = None) -> None:
    """Get what the shared cache has, EPCTX_REMOTE_CACHE, into this one; each file is checked."""
    cache = _open(ui)
    remote = _remote(cache)
    if cache.location.readonly:
        raise UsageError("the cache is read-only", remedy="unset EPCTX_CACHE_READONLY to pull")
    if not cache.trusts:
        raise UsageError(
            "nothing can be pulled, since nobody is trusted",
            remedy="name the public keys of those who sign in EPCTX_CACHE_TRUST",
            code=Code.ENVIRONMENT,
        )
    _moved(ui, "pulled", shared.pull(cache, remote, _names(locks)))


def ls(
    ui: UI,
    *,
    remote: Annotated[
        bool, typer.Option("--remote", help="Of the shared cache: EPCTX_REMOTE_CACHE.")
    ] = False,
) -> None:
    """List the actions of the cache: what made what, who signed it."""
    cache = _open(ui)
    found = shared.ls_remote(_remote(cache).store) if remote else shared.ls(cache)
    ui.emit(found)
    shown = table("key", "action", "files", "size", "signed by", "days")
    for each in found:
        kind, signers = each.kind or "cannot be read", ", ".join(each.signers)
        size = decimal(each.size)
        shown.add_row(each.key, kind, str(each.files), size, signers, f"{each.age / 86_400:.1f}")
    ui.print(shown)


def _names(locks: list[Path] | None) -> set[str] | None:
    return {name for path in locks for name in action_names(read(path))} if locks else None


def _remote(cache: Cache) -> Tier:
    """The shared cache behind a cache.

    Raises:
        UsageError: there is none.
    """
    if cache.remote is None:
        raise UsageError(
            "there is no shared cache",
            remedy="name it in EPCTX_REMOTE_CACHE, like s3://bucket/prefix or file:///mnt/share/x",
            code=Code.ENVIRONMENT,
        )
    return cache.remote


def _moved(ui: UI, verb: str, moved: Moved) -> None:
    ui.emit(moved)
    for each in moved.failed[:5]:
        ui.note(each)
    left = f"; {len(moved.failed)} are not" if moved.failed else ""
    ui.print(
        f"{verb} {moved.actions} actions, {moved.objects} objects ({decimal(moved.size)}), "
        f"{moved.url}{left}"
    )


def _gc_remote(
    ui: UI, remote: Tier, keep: set[str], limits: maintenance.Limits, *, dry_run: bool
) -> None:
    if limits.max_size is not None:
        raise UsageError(
            "a shared cache is not collected by size: nobody knows what was used last",
            where="--max-size",
            remedy="use --older-than",
            code=Code.COMMAND_LINE,
        )
    done = shared.collect(remote.store, keep=keep, max_age=limits.max_age, dry_run=dry_run)
    ui.emit(done)
    verb = "would remove" if dry_run else "removed"
    ui.print(
        f"{verb} {done.actions} actions, {done.objects} objects ({decimal(done.size)}) of "
        f"{done.url}; {decimal(done.kept)} stay"
    )


for _function in (info, gc, verify, keygen, push, pull, ls):
    app.command(_function.__name__)(command(_function))


def _open(ui: UI) -> Cache:
    return open_cache(lambda text: ui.note(f"cache: {text}"))


def size_of(text: str) -> int:
    """Bytes of a size like `10GB` or `500MiB`. Raises UsageError if it is none."""
    size = bytes_of(text)
    if size is None:
        raise UsageError(
            f"{text!r} is not a size", remedy="write it like 10GB or 500MiB", code=Code.COMMAND_LINE
        )
    return size


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
