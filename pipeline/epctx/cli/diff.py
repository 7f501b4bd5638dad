"""`epctx diff`: what changed between two builds or locks, down to the node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from epctx import api
from epctx.cli import declared
from epctx.cli.render import UI
from epctx.commands.diff.compare import ChangedFile, Comparison
from epctx.error_codes import Code
from epctx.errors import LockError
from epctx.text import size_words

_SHOWN = 20
"""Maximum number of differences to list per area without `-v`."""
_STYLES = {"toolchain": "magenta", "host": "magenta", "source": "magenta", "setting": "magenta"}


@declared.by(api.diff)
def diff(
    ui: UI,
    call: Callable[..., Comparison],
    old: Path,
    new: Path,
    *,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Fail, with exit code 8, if anything differs.")
    ] = False,
) -> None:
    comparison = call()
    ui.emit(comparison)
    ui.print(*_lines(comparison, every=bool(ui.verbose)))
    if exit_code and not comparison.same:
        raise LockError(
            f"{old.as_posix()} and {new.as_posix()} differ",
            remedy="see the differences above; without --exit-code they are not a failure",
            code=Code.BUILDS_DIFFER,
        )


def _lines(comparison: Comparison, *, every: bool) -> Iterator[Text]:
    areas = dict.fromkeys(each.area for each in comparison.differences)
    causes = [area for area in areas if area in _STYLES]
    for area in causes:
        yield from _area(comparison, area, every=every)
    if comparison.files:
        yield Text("file", style="bold")
        for file in comparison.files if every else comparison.files[:_SHOWN]:
            yield _file(file)
        yield from _more(len(comparison.files), every=every)
    for area in (area for area in areas if area not in _STYLES):
        yield from _area(comparison, area, every=every)
    for words in comparison.not_compared:
        yield Text.assemble(("not compared: ", "yellow"), words)
    yield _verdict(comparison)


def _area(comparison: Comparison, area: str, *, every: bool) -> Iterator[Text]:
    differences = [each for each in comparison.differences if each.area == area]
    yield Text(area, style=f"bold {_STYLES.get(area, '')}".strip())
    for each in differences if every else differences[:_SHOWN]:
        yield Text.assemble((f"  {each.where}: ", "bold"), each.what)
    yield from _more(len(differences), every=every)


def _more(count: int, *, every: bool) -> Iterator[Text]:
    if count > _SHOWN and not every:
        yield Text(f"  and {count - _SHOWN} more, with -v", style="dim")


def _file(file: ChangedFile) -> Text:
    if file.old is None or file.new is None:
        facts = file.new if file.old is None else file.old
        assert facts is not None
        what = f"is {'new' if file.old is None else 'gone'}, {size_words(facts.size)}"
    elif file.difference is not None:
        what = file.difference
    elif file.old.size != file.new.size:
        what = f"{file.old.size:,} bytes are now {file.new.size:,}"
    else:
        what = f"has other content of the same size, {file.old.size:,} bytes"
    return Text.assemble((f"  {file.file}: ", "bold"), what)


def _verdict(comparison: Comparison) -> Text:
    if comparison.same:
        return Text(
            f"nothing differs, {_files(comparison.same_files)} compared", style="bold green"
        )
    count = len(comparison.files)
    return Text(
        f"{_files(count)} of {count + comparison.same_files} "
        f"differ{'s' * (count == 1)}, and {len(comparison.differences)} facts about them",
        style="bold",
    )


def _files(count: int) -> str:
    return f"{count} file{'s' * (count != 1)}"
