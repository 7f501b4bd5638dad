"""`epctx reproduce`: build twice under different circumstances, compare every byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.text import Text

from epctx import api
from epctx.cli import declared, progress
from epctx.cli.render import UI, table
from epctx.commands.reproduce.result import Reproduction
from epctx.error_codes import Code
from epctx.errors import LockError
from epctx.text import size_words

_STYLES = {"identical": "green", "metadata differs": "yellow", "payload differs": "bold red"}
_LOCKS = {
    "no lock": ("there is none beside the manifest", "dim"),
    "the same": ("says the same", "green"),
    "the same outputs": ("is of another toolchain or manifest, which gave the same bytes", "green"),
    "made on another host": (
        "has no entry for this kind of host; others' bytes are others",
        "yellow",
    ),
    "differs": ("says something else", "bold red"),
}


@declared.by(api.reproduce)
def reproduce(ui: UI, call: Callable[..., Reproduction]) -> int:
    with progress.live(ui) as listener:
        found = call(listener=listener)
    ui.emit(found)
    ui.print(*_files(found), *_circumstances(found), *_verdict(found))
    return 0 if found.reproducible else LockError.exit_code


def _files(found: Reproduction) -> Iterator[RenderableType]:
    shown = table("file", "state", "size", right=("size",))
    for file in found.files:
        one, other = file.sizes
        size = other if one is None else one
        shown.add_row(file.file, Text(file.state, style=_STYLES[file.state]), size_words(size or 0))
    yield shown
    for file in found.files:
        if file.difference is not None:
            yield Text.assemble((f"{file.file}: ", "bold"), file.difference)
    for each in found.differences:
        yield Text.assemble(("lock: ", "bold"), str(each))


def _circumstances(found: Reproduction) -> Iterator[Text]:
    applied = [each for each in found.variations if each.obstacle is None]
    if applied:
        yield Text(f"varied: {', '.join(each.name for each in applied)}")
    for each in found.variations:
        if each.obstacle is not None:
            yield Text.assemble((f"not varied: {each.name}: ", "yellow"), each.obstacle)


def _verdict(found: Reproduction) -> Iterator[Text]:
    words, style = _LOCKS[found.lock]
    yield Text.assemble("the lock ", (words, style))
    for each in found.lock_differences:
        yield Text(f"  {each}")
    if found.causes:
        told = (
            "nothing: two builds in the same circumstances differ"
            if "nothing" in found.causes
            else ", ".join(found.causes)
        )
        yield Text.assemble(("caused by: ", "bold"), told)
    for known in found.known:
        yield Text.assemble(("known of ", "bold"), known)
    states = Counter(file.state for file in found.files)
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    verdict = (
        "reproducible" if found.reproducible else f"NOT reproducible [{Code.NOT_REPRODUCIBLE}]"
    )
    first, second = found.seconds
    text = f"{verdict}: {counts}; {first:.1f} s and {second:.1f} s"
    yield Text(text, style="bold green" if found.reproducible else "bold red")
    remedy = _remedy(found)
    if remedy is not None:
        yield Text(f"  -> {remedy}", style="cyan")


def _remedy(found: Reproduction) -> str | None:
    if found.reproducible:
        return None
    if all(file.state == "identical" for file in found.files) and not found.differences:
        return "both builds are the same: write a new lock with `epctx build`, or undo the change"
    if not found.causes:
        return "--find-cause tells which variation does it; --out DIR keeps both builds"
    return "--out DIR keeps both builds; tell whoever makes the EP or the pass"
