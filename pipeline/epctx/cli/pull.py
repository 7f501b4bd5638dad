"""`epctx pull`: fetch a package from a registry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.text import Text

from epctx import api
from epctx.cli import declared, progress
from epctx.cli.render import UI, warning
from epctx.commands.pull import PullReport
from epctx.text import size_words


@declared.by(api.pull)
def pull(ui: UI, call: Callable[..., PullReport], folder: Path) -> None:
    with progress.live(ui) as shown:
        report = call(listener=shown)
    ui.emit(report)
    if report.not_on_windows is not None:
        what = f"this package cannot be pulled on Windows: {report.not_on_windows}"
        ui.note(warning(what, "rename the files, and push the package again"))
    words = [f"{report.files} files", size_words(report.size)]
    words += [f"with {', '.join(report.attached)}"] if report.attached else []
    ui.print(
        Text.assemble((f"{folder.as_posix()}/", "bold"), f"  {report.state}: {', '.join(words)}"),
        report.digest,
    )
