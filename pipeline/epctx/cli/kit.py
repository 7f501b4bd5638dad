"""`epctx kit`: a folder with which a device without epctx checks and times models."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.text import Text

from epctx import api
from epctx.cli import declared
from epctx.cli.render import UI
from epctx.text import size_words

if TYPE_CHECKING:  # it imports onnx
    from epctx.commands.kit.command import KitReport


@declared.by(api.kit)
def kit(ui: UI, call: Callable[..., KitReport]) -> None:
    report = call()
    ui.emit(report)
    count = f"{report.models} model{'s' * (report.models != 1)}"
    place = f"{report.path.as_posix()}/"
    ui.print(Text.assemble((place, "bold"), f"  {count}, {size_words(report.size)}"))
    for model, why in report.left.items():
        ui.note(Text(f"{model} cannot be checked on the device: {why}", style="yellow"))
    if report.not_packed:
        names = ", ".join(report.not_packed)
        ui.note(Text(f"not packed, since it belongs to no group: {names}", style="yellow"))
