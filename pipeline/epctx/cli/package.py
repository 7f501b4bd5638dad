"""`epctx package`: build a manifest, and write a model package of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from epctx.cache.store import Shared
from epctx.cli import progress, step_summary, summary
from epctx.cli.options import (
    AllowOutside,
    Attest,
    BuilderId,
    Cert,
    Chain,
    Jobs,
    Locked,
    Manifest,
    NoCache,
    NoVerify,
    RemoteCache,
    Sign,
    Trust,
    located,
)
from epctx.cli.render import UI, table
from epctx.commands.package import command
from epctx.commands.package.report import PackagedVariant, PackageReport
from epctx.engine.options import BuildOptions, ReleaseOptions
from epctx.signing.keys import Signer
from epctx.text import size_words


def package(
    ui: UI,
    manifest: Manifest = None,
    *,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Where the outputs go, and DIR/<name>.ortpackage."
        ),
    ] = Path("dist"),
    jobs: Jobs = 0,
    no_verify: NoVerify = False,
    locked: Locked = False,
    no_cache: NoCache = False,
    attest: Attest = False,
    builder_id: BuilderId = None,
    sign: Sign = None,
    cert: Cert = None,
    chain: Chain = None,
    allow_outside: AllowOutside = False,
    remote_cache: RemoteCache = None,
    trust: Trust = None,
) -> None:
    """Build as `epctx build` does, and write an ONNX Runtime model package beside it.

    A component for each model, a variant for each target: ONNX Runtime 1.28 and later picks the
    variant that fits the device. `package` in the manifest adds a tokenizer and other files.
    """
    signs = Signer.from_options(sign, cert, chain)
    with progress.live(ui) as shown:
        done, failure = command.run(
            located(manifest),
            BuildOptions(
                out=out,
                jobs=jobs,
                numbers=not no_verify,
                locked=locked,
                expect=shown.expect,
                release=ReleaseOptions(attest=attest, packaged=True, builder=builder_id),
            ),
            cached=not no_cache,
            shared=Shared(url=remote_cache, trust=trust),
            allow_outside=allow_outside,
            listener=shown,
            signer=signs,
        )
    ui.emit(done.package or done.build)
    summary.summary(ui, done.build, out)
    if done.package is not None:
        _show(ui, done.package, out)
    step_summary.build(done.build)
    told = list(summary.failures(done.build))
    for each in told:
        ui.error(each)
    if failure is not None and told:
        raise typer.Exit(failure.exit_code)
    if failure is not None:  # of no group
        raise failure


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
        what = (
            f"{', '.join(report.left_out)}, composed of its models: copy it from {out.as_posix()}"
        )
        ui.print(Text.assemble(head, f"{what}/{report.build.name}/"))
    ui.print(shown, Text.assemble((f"{place}/", "bold"), f"  {report.state}: {', '.join(words)}"))


def _selected_by(variant: PackagedVariant) -> str:
    """The compatibility string, which may be long JSON, or that there is none."""
    if not variant.native:
        return "epctx.runtime alone: ONNX Runtime has no such EP"
    text = variant.compatibility
    if text is None:
        return "its EP alone"
    return text if len(text) <= 40 else f"{text[:39]}…"
