"""`epctx package`: a build, and the model package of it."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from epctx import lockfile
from epctx.cache.digests import FreshDigests
from epctx.cache.store import Shared
from epctx.commands import build
from epctx.commands.package import writing
from epctx.commands.package.report import PackageReport
from epctx.engine.events import Event, Listener
from epctx.engine.options import BuildOptions
from epctx.engine.output.place import OutputPaths
from epctx.engine.plan import Plan
from epctx.engine.progress import Events
from epctx.engine.release import Releasing
from epctx.engine.report import BuildReport
from epctx.errors import EpctxError
from epctx.lockfile import hosts
from epctx.signing.keys import Signer
from epctx.worker.pool import Pool


class Packaging(Struct, frozen=True, kw_only=True):
    """What came of it. `package`: None where the build failed; then what was there is left."""

    build: BuildReport
    package: PackageReport | None = None


def run(
    manifest: Path,
    options: BuildOptions,
    *,
    cached: bool,
    allow_outside: bool,
    listener: Listener,
    shared: Shared | None = None,
    signer: Signer | None = None,
) -> tuple[Packaging, EpctxError | None]:
    """Build all of a manifest, and write its package beside it.

    Returns what came of it, and the build's first failure in manifest order. The arguments are
    those of `commands.build.run`; `signer`, if there is one, signs the package.

    Raises:
        EpctxError: as `commands.build.run` and `commands.package.writing.write` raise.
    """
    done = build.run(
        manifest,
        options,
        listener=listener,
        cached=cached,
        shared=shared,
        allow_outside=allow_outside,
        refuse=lambda plan: writing.refuse_in_the_way(plan.manifest, _place(options.out, plan)),
    )
    if done.failure is not None:
        return Packaging(build=done.report), done.failure

    def waiting() -> None:
        what = "another command uses the output"
        listener(Event(group=done.plan.manifest.name, state="waiting", detail=what))

    assert done.report.lock is not None
    # What the build left of it says the same, and is what the package will be held to.
    lock = hosts.on(lockfile.read(lockfile.place(manifest)), hosts.kind(done.report.lock))
    place = _place(options.out, done.plan)
    releasing = Releasing(
        done.plan,
        place,
        Events(listener),
        lock,
        executors=Pool,
        locked=options.locked,
        signers=done.cache.signers if done.cache is not None else {},
    )
    package = writing.write(
        done.plan.manifest,
        done.report,
        lock,
        place,
        digests=done.cache.digests
        if done.cache is not None and not options.locked
        else FreshDigests(),
        signer=signer,
        waiting=waiting,
        releasing=releasing,
        asked=options.release,
    )
    return Packaging(build=done.report, package=package), None


def _place(out: Path, plan: Plan) -> OutputPaths:
    return OutputPaths(out=out.resolve(), name=plan.manifest.name)
