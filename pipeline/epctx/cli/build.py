"""`epctx build`: carry out a manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from epctx.cli import completion, github
from epctx.cli.render import UI, document


def build(
    ui: UI,
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="The manifest.")],
    *,
    out: Annotated[Path, typer.Option(help="Where the outputs go.")] = Path("dist"),
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP[@TARGET]",
            help="Build this group only; may be repeated.",
            autocompletion=completion.groups,
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs", "-j", min=0, metavar="N", help="Session groups at a time; 0: one a core."
        ),
    ] = 0,
    keep_going: Annotated[
        bool,
        typer.Option("--keep-going", "-k", help="Build and publish the other groups if one fails."),
    ] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not run the models to compare numbers.")
    ] = False,
    locked: Annotated[
        bool,
        typer.Option("--locked", help="Fail if anything would differ from the lock; write none."),
    ] = False,
    no_cache: Annotated[
        bool,
        typer.Option("--no-cache", help="Run everything, whatever was done before; keep nothing."),
    ] = False,
    golden: Annotated[
        bool,
        typer.Option("--golden", help="Ship inputs and expected outputs with each group."),
    ] = False,
    archive: Annotated[
        bool, typer.Option("--archive", help="Write all of it as one .tar, too.")
    ] = False,
    attest: Annotated[
        bool,
        typer.Option("--attest", help="Write an in-toto attestation with SLSA provenance, too."),
    ] = False,
    allow_outside: Annotated[
        bool, typer.Option("--allow-outside", help="Let paths lead out of the manifest's folder.")
    ] = False,
) -> None:
    """Build EPContext models as a manifest declares, verify and publish them."""
    import epctx
    from epctx.cli import progress, summary
    from epctx.engine import build as runner
    from epctx.engine import noop, plan
    from epctx.engine.release import Release
    from epctx.parsing.schema import files

    release = Release(golden=golden, archive=archive, attest=attest)
    watched = None if no_cache or locked or release.asked else noop.Watched()
    if watched is not None:
        watched.note([manifest])
        watched.code(Path(epctx.__file__).parent, Path(str(files.root())))
    planned = plan.read(manifest, only=only or (), allow_outside=allow_outside)
    with progress.live(ui) as listener:
        cache = None if no_cache else runner.open_cache(listener)
        report, failure = runner.run(
            planned,
            out=out,
            jobs=jobs or os.cpu_count() or 1,
            keep_going=keep_going,
            numbers=not no_verify,
            listener=listener,
            cache=cache,
            locked=locked,
            watched=watched,
            release=release,
        )
    ui.emit(report)
    summary.summary(ui, report, out)
    if watched is not None and cache is not None and summary.nothing_done(report):
        if ui.json and not ui.verbose:
            watched.remember(cache.records, document(report).splitlines(), report=True)
        elif ui.plain:
            watched.remember(cache.records, [] if ui.quiet else summary.nothing(report, out))
    told = list(summary.failures(report))
    for each in told:
        ui.error(each)
    github.failures(report, manifest)
    if failure is not None and told:
        raise typer.Exit(failure.exit_code)
    if failure is not None:  # of no group
        raise failure
