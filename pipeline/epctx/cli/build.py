"""`epctx build`: carry out a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from epctx.cache.store import Shared
from epctx.cli import github, progress, step_summary, summary
from epctx.cli.options import (
    AllowOutside,
    Attest,
    BuilderId,
    Cert,
    Chain,
    Insecure,
    Jobs,
    Locked,
    Manifest,
    NoCache,
    NoVerify,
    Only,
    Out,
    RemoteCache,
    Sign,
    TlsCa,
    TlsCert,
    TlsKey,
    Trust,
    located,
    tls,
)
from epctx.cli.paths import Existing
from epctx.cli.plan import plan
from epctx.cli.render import UI
from epctx.commands import build as command
from epctx.commands.build import On
from epctx.engine.options import BuildOptions, ReleaseOptions
from epctx.signing.keys import Signer


def build(
    ui: UI,
    manifest: Manifest = None,
    *,
    out: Out = Path("dist"),
    only: Only = None,
    jobs: Jobs = 0,
    keep_going: Annotated[
        bool,
        typer.Option("--keep-going", "-k", help="Build and publish the other groups if one fails."),
    ] = False,
    no_verify: NoVerify = False,
    locked: Locked = False,
    no_cache: NoCache = False,
    from_cache: Annotated[
        bool,
        typer.Option(
            "--from-cache",
            help="Build nothing: gather what other machines have put into the cache.",
        ),
    ] = False,
    reports: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="With --from-cache: the build reports of those who built."
        ),
        Existing(),
    ] = None,
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate",
            help="Run models that are quantized again, to find their ranges anew.",
        ),
    ] = False,
    golden: Annotated[
        bool,
        typer.Option("--golden", help="Ship inputs and expected outputs with each group."),
    ] = False,
    archive: Annotated[
        bool, typer.Option("--archive", help="Write all of it as one .tar, too.")
    ] = False,
    attest: Attest = False,
    builder_id: BuilderId = None,
    sign: Sign = None,
    cert: Cert = None,
    chain: Chain = None,
    allow_outside: AllowOutside = False,
    remote_cache: RemoteCache = None,
    trust: Trust = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="dask://HOST:PORT",
            help="Carry it out on other machines; dask://local?workers=N: on this one's cluster.",
        ),
    ] = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure: Insecure = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done and why, as `epctx plan`.")
    ] = False,
) -> None:
    """Build EPContext models as a manifest declares, verify and publish them."""
    manifest = located(manifest)
    if dry_run:
        plan(
            ui,
            manifest,
            out=out,
            only=only,
            no_verify=no_verify,
            allow_outside=allow_outside,
            remote_cache=remote_cache,
            trust=trust,
        )
        return
    options = BuildOptions(
        out=out,
        jobs=jobs,
        keep_going=keep_going,
        numbers=not no_verify,
        locked=locked,
        from_cache=from_cache,
        reports=reports,
        recalibrate=recalibrate,
        release=ReleaseOptions(
            golden=golden,
            archive=archive,
            attest=attest,
            signer=Signer.from_options(sign, cert, chain),
            builder=builder_id,
        ),
    )
    machines = None
    if on is not None:
        machines = On(url=on, tls=tls(tls_ca, tls_cert, tls_key, insecure))
    with progress.live(ui) as shown:
        done = command.run(
            manifest,
            replace(options, expect=shown.expect),
            listener=shown,
            only=only or (),
            cached=not no_cache,
            shared=Shared(url=remote_cache, trust=trust),
            allow_outside=allow_outside,
            on=machines,
        )
    ui.emit(done.report)
    summary.summary(ui, done.report, options.out)
    told = list(summary.failures(done.report))
    for each in told:
        ui.error(each)
    github.failures(done.report, manifest)
    step_summary.build(done.report)
    if done.failure is not None and told:
        raise typer.Exit(done.failure.exit_code)
    if done.failure is not None:  # of no group
        raise done.failure
