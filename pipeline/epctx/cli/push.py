"""`epctx push`: send a package to a registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.text import Text

from epctx import api
from epctx.cli import declared, progress
from epctx.cli.render import UI
from epctx.text import size_words

if TYPE_CHECKING:  # it imports onnx
    from epctx.commands.push import PushReport


@declared.by(api.push)
def push(ui: UI, call: Callable[..., PushReport]) -> None:
    with progress.live(ui) as shown:
        report = call(listener=shown, waiting=ui.waiting)
    ui.emit(report)
    sent = f"{size_words(report.sent)} sent"
    words = [f"{report.files} files", size_words(report.size)]
    words += [sent] if report.state == "pushed" else []
    words += [f"{size_words(report.mounted)} mounted"] if report.mounted else []
    words += [f"with {', '.join(report.attached)}"] if report.attached else []
    ui.print(
        Text.assemble((report.reference, "bold"), f"  {report.state}: {', '.join(words)}"),
        report.digest,
    )
