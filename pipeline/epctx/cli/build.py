"""`epctx build`: carry out a manifest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from epctx import api
from epctx.cli import declared, github, problems, progress, step_summary, summary
from epctx.cli.options import Insecure, TlsCa, TlsCert, TlsKey, tls
from epctx.cli.plan import show
from epctx.cli.render import UI
from epctx.commands.options import located
from epctx.engine.report import BuildReport
from epctx.errors import EpctxError


@declared.by(api.build)
def build(
    ui: UI,
    call: Callable[..., BuildReport],
    manifest: Path | None,
    out: Path,
    only: Sequence[str],
    verify: bool,
    allow_outside: bool,
    remote_cache: str | None,
    trust: Path | None,
    *,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure: Insecure = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done and why, as `epctx plan`.")
    ] = False,
) -> int:
    if dry_run:
        planned = api.plan(
            manifest,
            out=out,
            only=only,
            verify=verify,
            allow_outside=allow_outside,
            remote_cache=remote_cache,
            trust=trust,
            listener=ui.listener,
        )
        return show(ui, planned)
    certificates = tls(tls_ca, tls_cert, tls_key, insecure)
    failure = None
    with progress.live(ui) as shown:
        try:
            report = call(tls=certificates, listener=shown, expect=shown.expect)
        except EpctxError as error:
            if not isinstance(error.report, BuildReport):
                raise
            report, failure = error.report, error
    ui.emit(report)
    summary.summary(ui, report, out)
    step_summary.build(report)
    return ended(ui, report, failure, located(manifest))


def ended(ui: UI, report: BuildReport, failure: EpctxError | None, manifest: Path) -> int:
    """Report the failures of a build; return its exit code.

    Raises:
        EpctxError: `failure`, if it is of no group.
    """
    failures = list(summary.failures(report))
    for each in failures:
        ui.error(each, annotate=False)
    if github.wanted() and manifest.is_file():  # a pipe is read once
        github.annotate(problems.of_groups(report, manifest))
    if failure is not None and not failures:
        raise failure
    return 0 if failure is None else failure.exit_code
