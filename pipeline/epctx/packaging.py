"""`epctx package`: a build, and the model package of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from epctx import planning, runner
from epctx.build_report import BuildReport
from epctx.cache.digests import FreshDigests
from epctx.errors import EpctxError
from epctx.events import Event, Listener
from epctx.packages import writing
from epctx.packages.report import PackageReport
from epctx.publish import Place


@dataclass(frozen=True, kw_only=True)
class Packaging:
    """What came of it. `package`: None where the build failed; then what was there is left."""

    build: BuildReport
    package: PackageReport | None = None


def run(
    manifest: Path,
    *,
    out: Path,
    jobs: int,
    numbers: bool,
    cached: bool,
    locked: bool,
    allow_outside: bool,
    listener: Listener,
) -> tuple[Packaging, EpctxError | None]:
    """Build all of a manifest into `out`, and write its package beside it.

    Returns what came of it, and the build's first failure in manifest order. The arguments are
    those of `runner.run`.

    Raises:
        EpctxError: as `planning.read`, `runner.run` and `packages.writing.write` raise.
    """
    plan = planning.read(manifest, allow_outside=allow_outside)
    place = Place(out=out.resolve(), name=plan.manifest.name)
    writing.refuse_in_the_way(plan.manifest, place)
    cache = runner.open_cache(listener) if cached else None
    report, failure = runner.run(
        plan,
        out=out,
        jobs=jobs,
        keep_going=False,
        numbers=numbers,
        listener=listener,
        cache=cache,
        locked=locked,
    )
    if failure is not None:
        return Packaging(build=report), failure

    def waiting() -> None:
        what = "another build holds the output"
        listener(Event(group=plan.manifest.name, state="waiting", detail=what))

    package = writing.write(
        plan.manifest,
        report,
        place,
        digests=cache.digests if cache is not None and not locked else FreshDigests(),
        waiting=waiting,
    )
    return Packaging(build=report, package=package), None
