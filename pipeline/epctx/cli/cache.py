"""`epctx cache info|gc|verify|keygen|push|pull|ls`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.filesize import decimal

from epctx.cache.maintenance import Checked, Collected, Info
from epctx.cache.shared import Listed, Moved, Removed
from epctx.cli import declared
from epctx.cli.render import UI, Group, table
from epctx.commands import cache
from epctx.error_codes import Code
from epctx.errors import StorageError

app = Group("Inspect and maintain the cache of built actions.")


@declared.by(cache.cache_info)
def info(ui: UI, call: Callable[..., Info]) -> None:
    report = call(notify=ui.note)
    ui.emit(report)
    trusts, pushes = ", ".join(report.trusts) or "nobody", "" if report.signs else "not "
    actions = ", ".join(f"{count} {kind}" for kind, count in report.actions.items())
    remote = f"remote      {report.remote} (trusted: {trusts}; {pushes}pushed)"
    ui.print(
        f"folder      {report.folder}{' (read-only)' if report.readonly else ''}",
        f"actions     {actions}",
        f"objects     {report.objects}, {decimal(report.size)}",
        f"remembered  {report.remembered} digests of files",
        f"quarantine  {report.quarantined} files",
        *([remote] if report.remote is not None else []),
    )


@declared.by(cache.cache_gc)
def gc(ui: UI, call: Callable[..., Collected | Removed], dry_run: bool) -> None:
    removed = call(notify=ui.note)
    ui.emit(removed)
    verb = "would remove" if dry_run else "removed"
    words = f"{verb} {removed.actions} actions, {removed.objects} objects ({decimal(removed.size)})"
    more = (
        f" of {removed.url}"
        if isinstance(removed, Removed)
        else f", {removed.records + removed.leftovers} other files"
    )
    ui.print(f"{words}{more}; {decimal(removed.kept)} stay")


@declared.by(cache.cache_verify)
def verify(ui: UI, call: Callable[..., Checked]) -> None:
    report = call(notify=ui.note)
    ui.emit(report)
    ui.print(f"read {report.objects} objects ({decimal(report.size)}), {report.records} records")
    if report.elsewhere:
        ui.print(f"files of {report.elsewhere} actions are only in the shared cache")
    if report.incomplete:
        ui.print(f"{report.incomplete} actions have missing files; builds will run them again")
    if report.corrupt:
        raise StorageError(
            f"{len(report.corrupt)} corrupt files",
            where=report.folder,
            why=", ".join(report.corrupt[:3]) + (", …" if len(report.corrupt) > 3 else ""),
            remedy="remove them with write access to the cache"
            if report.readonly
            else "nothing to do: they were set aside and will be made again; if it happens again, "
            "check the disk",
            code=Code.CACHE_CORRUPT,
        )


@declared.by(cache.cache_keygen)
def keygen(ui: UI, call: Callable[..., tuple[Path, str]], key: Path) -> None:
    public, line = call()
    ui.emit({"private": key, "public": public, "line": line})
    ui.print(f"{key}  keep it secret", f"{public}  {line}")


@declared.by(cache.cache_push)
def push(ui: UI, call: Callable[..., Moved]) -> None:
    _moved(ui, "pushed", call(notify=ui.note))


@declared.by(cache.cache_pull)
def pull(ui: UI, call: Callable[..., Moved]) -> None:
    _moved(ui, "pulled", call(notify=ui.note))


@declared.by(cache.cache_ls)
def ls(ui: UI, call: Callable[..., list[Listed]]) -> None:
    entries = call(notify=ui.note)
    ui.emit(entries)
    shown = table("key", "action", "files", "size", "signed by", "days")
    for each in entries:
        kind, signers = each.kind or "cannot be read", ", ".join(each.signers)
        size = decimal(each.size)
        shown.add_row(each.key, kind, str(each.files), size, signers, f"{each.age / 86_400:.1f}")
    ui.print(shown)


def _moved(ui: UI, verb: str, moved: Moved) -> None:
    ui.emit(moved)
    for each in moved.failed[:5]:
        ui.note(each)
    failures = f"; {len(moved.failed)} failed" if moved.failed else ""
    ui.print(
        f"{verb} {moved.actions} actions, {moved.objects} objects ({decimal(moved.size)}), "
        f"{moved.url}{failures}"
    )


for _function in (info, gc, verify, keygen, push, pull, ls):
    app.add(_function)
