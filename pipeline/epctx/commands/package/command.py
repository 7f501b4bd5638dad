"""`epctx package`: a build, and the model package of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from epctx.cache.digests import FreshDigests
from epctx.commands.package import writing
from epctx.commands.package.report import PackageReport
from epctx.engine import build as runner
from epctx.engine import plan as planning
from epctx.engine.events import Event, Listener
from epctx.engine.output.place import Place
from epctx.engine.report import BuildReport
from epctx.errors import EpctxError


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
        EpctxError: as `planning.read`, `runner.run` and `commands.package.writing.write` raise.
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
