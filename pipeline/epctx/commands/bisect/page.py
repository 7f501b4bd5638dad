"""What a bisection found as files: JSON, and an HTML page with a plot."""

from __future__ import annotations

from pathlib import Path

from epctx import codec
from epctx.commands.bisect.result import Bisection
from epctx.commands.report import losses
from epctx.commands.report import page as report_page
from epctx.errors import StorageError
from epctx.files import atomic
from epctx.quantization.report import TensorLoss


def write(found: Bisection, folder: Path) -> Path:
    """Write both into the folder, and return the page. Raises StorageError."""
    page = folder / f"{found.name}.{found.group}.{found.model}.bisect.html"
    read = [
        TensorLoss(name=each.value, op_type=each.op_type, sqnr=each.comparison.sqnr)
        for each in found.readings
        if each.comparison.sqnr is not None
    ]
    wrong = {each.value for each in found.readings if not each.passed}
    text = report_page.document("bisect.html", found=found, drawn=losses.drawn(read, wrong))
    remedy = "give another folder with --out"
    with StorageError.if_refused("cannot be written", file=page.as_posix(), remedy=remedy):
        folder.mkdir(parents=True, exist_ok=True)
        atomic.replace(page.with_suffix(".json"), codec.encode(found, indent=1))
        atomic.replace(page, text.encode())
    return page
