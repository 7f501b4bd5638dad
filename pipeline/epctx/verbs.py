"""Every verb of the command line as a function; the results are the report's dataclasses."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from epctx import manifest as manifests
from epctx import planning

if TYPE_CHECKING:
    from epctx.build_report import BuildReport
    from epctx.runner import Listener


def plan(
    manifest: str | os.PathLike[str], *, only: Sequence[str] = (), allow_outside: bool = False
) -> planning.Plan:
    """What a build of `manifest` would do.

    Raises:
        ManifestError: the manifest breaks the schema or a rule.
        UsageError: `only` names what the manifest does not have.
    """
    parsed = manifests.load(Path(manifest), allow_outside=allow_outside)
    return planning.make(parsed, only=only)


def build(
    manifest: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] = "dist",
    only: Sequence[str] = (),
    jobs: int | None = None,
    keep_going: bool = False,
    verify: bool = True,
    allow_outside: bool = False,
    listener: Listener | None = None,
) -> BuildReport:
    """Build what `manifest` declares; outputs are in `out`, the report beside them.

    Args:
        manifest: its path.
        out: the folder that gets `<name>/` and `<name>.build.json`.
        only: `GROUP` or `GROUP@TARGET`; the whole manifest if empty.
        jobs: session groups at a time; None: one for each core.
        keep_going: build and publish the other groups when one fails.
        verify: run the models and compare numbers; the checks that need no run are always made.
        allow_outside: paths may lead out of the manifest's folder.
        listener: hears of the build's events, from several threads, one at a time.

    Raises:
        EpctxError: the first failure in manifest order; the report on disk has all of them.
    """
    from epctx import runner

    report, failure = runner.run(
        plan(manifest, only=only, allow_outside=allow_outside),
        out=Path(out),
        jobs=jobs or os.cpu_count() or 1,
        keep_going=keep_going,
        numbers=verify,
        listener=listener or (lambda event: None),
    )
    if failure is not None:
        raise failure
    return report
