"""`epctx reproduce`: build twice in different circumstances, and compare every byte."""

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
    "no lock": ("does not exist beside the manifest", "dim"),
    "the same": ("agrees", "green"),
    "the same outputs": (
        "was written for another toolchain or manifest, which gave the same bytes",
        "green",
    ),
    "made on another host": (
        "has no entry for this kind of host; other hosts build other bytes",
        "yellow",
    ),
    "differs": ("differs", "bold red"),
}


@declared.by(api.reproduce)
def reproduce(ui: UI, call: Callable[..., Reproduction]) -> int:
    with progress.live(ui) as listener:
        result = call(listener=listener)
    ui.emit(result)
    ui.print(*_files(result), *_circumstances(result), *_verdict(result))
    return 0 if result.reproducible else LockError.exit_code


def _files(result: Reproduction) -> Iterator[RenderableType]:
    shown = table("file", "state", "size", right=("size",))
    for file in result.files:
        one, other = file.sizes
        size = other if one is None else one
        shown.add_row(file.file, Text(file.state, style=_STYLES[file.state]), size_words(size or 0))
    yield shown
    for file in result.files:
        if file.difference is not None:
            yield Text.assemble((f"{file.file}: ", "bold"), file.difference)
    for each in result.differences:
        yield Text.assemble(("lock: ", "bold"), str(each))


def _circumstances(result: Reproduction) -> Iterator[Text]:
    applied = [each for each in result.variations if each.obstacle is None]
    if applied:
        yield Text(f"varied: {', '.join(each.name for each in applied)}")
    for each in result.variations:
        if each.obstacle is not None:
            yield Text.assemble((f"not varied: {each.name}: ", "yellow"), each.obstacle)


def _verdict(result: Reproduction) -> Iterator[Text]:
    words, style = _LOCKS[result.lock]
    yield Text.assemble("the lock ", (words, style))
    for each in result.lock_differences:
        yield Text(f"  {each}")
    if result.causes:
        causes = (
            "nothing: two builds in the same circumstances differ"
            if "nothing" in result.causes
            else ", ".join(result.causes)
        )
        yield Text.assemble(("caused by: ", "bold"), causes)
    for known in result.known:
        yield Text.assemble(("known of ", "bold"), known)
    states = Counter(file.state for file in result.files)
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    verdict = (
        "reproducible" if result.reproducible else f"NOT reproducible [{Code.NOT_REPRODUCIBLE}]"
    )
    first, second = result.seconds
    text = f"{verdict}: {counts}; {first:.1f} s and {second:.1f} s"
    yield Text(text, style="bold green" if result.reproducible else "bold red")
    remedy = _remedy(result)
    if remedy is not None:
        yield Text(f"  -> {remedy}", style="cyan")


def _remedy(result: Reproduction) -> str | None:
    if result.reproducible:
        return None
    if all(file.state == "identical" for file in result.files) and not result.differences:
        return "both builds are the same: write a new lock with `epctx build`, or undo the change"
    if not result.causes:
        return "--find-cause finds the variation that causes it; --out DIR keeps both builds"
    return "--out DIR keeps both builds; report it to the makers of the EP or the pass"
