"""`epctx package`: build a manifest, and write a model package of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.text import Text

from epctx import api
from epctx.cli import declared, progress, step_summary, summary
from epctx.cli.build import ended
from epctx.cli.render import UI, table
from epctx.commands.options import located
from epctx.commands.package.writing import PackagedVariant, PackageReport
from epctx.engine.report import BuildReport
from epctx.errors import EpctxError
from epctx.text import size_words


@declared.by(api.package)
def package(ui: UI, call: Callable[..., PackageReport], manifest: Path | None, out: Path) -> int:
    report, failure = None, None
    with progress.live(ui) as shown:
        try:
            report = call(listener=shown, expect=shown.expect)
            build = report.build
        except EpctxError as error:
            if not isinstance(error.report, BuildReport):
                raise
            build, failure = error.report, error
    ui.emit(report or build)
    summary.summary(ui, build, out)
    if report is not None:
        _show(ui, report, out)
    step_summary.build(build)
    return ended(ui, build, failure, located(manifest))


def _show(ui: UI, report: PackageReport, out: Path) -> None:
    shown = table("component", "variant", "EP", "device", "folder", "selected by")
    for each in report.variants:
        shown.add_row(
            *(each.component, each.variant, each.ep, each.device or "any", f"{each.folder}/"),
            _selected_by(each),
        )
    words = [f"{report.files} files", size_words(report.size)]
    words += [f"signed by {report.signer}"] if report.signer else []
    words += [f"sharing saved {size_words(report.saved)}"] if report.saved else []
    place = (out / report.path).as_posix()
    if report.left_out:
        head = ("not in the package: ", "yellow")
        what = f"the composition {', '.join(report.left_out)}: copy it from {out.as_posix()}"
        ui.print(Text.assemble(head, f"{what}/{report.build.name}/"))
    ui.print(shown, Text.assemble((f"{place}/", "bold"), f"  {report.state}: {', '.join(words)}"))


def _selected_by(variant: PackagedVariant) -> str:
    """Return the shortened compatibility string; without one, how a variant is selected."""
    if not variant.native:
        return "epctx.runtime only: ONNX Runtime has no such EP"
    text = variant.compatibility
    if text is None:
        return "its EP only"
    return text if len(text) <= 40 else f"{text[:39]}…"
