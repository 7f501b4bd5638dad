"""A build: plan, find, run, hold to the lock, publish, report."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Final

from epctx import lockfile
from epctx.actions.compile import Compile
from epctx.actions.verify import Verify
from epctx.cache import Cache, Location
from epctx.cache.opening import Shared, opened
from epctx.cache.remote import threads
from epctx.engine import ending, from_cache
from epctx.engine.actions.compose import Composing
from epctx.engine.build_groups import GroupBuilder
from epctx.engine.building import Building
from epctx.engine.events import Listener, notices
from epctx.engine.executor import Cancelled, Machines
from epctx.engine.lock import locked_mode, packaged
from epctx.engine.options import BuildOptions
from epctx.engine.output import record
from epctx.engine.output.place import OutputPaths
from epctx.engine.plan import Plan, PlannedComposition
from epctx.engine.report import BuildReport
from epctx.engine.staleness import look_at_composition
from epctx.engine.state import CompositionState, GroupState
from epctx.error_codes import Code
from epctx.errors import EpctxError, ModelError, UsageError, VerificationError
from epctx.files import outputs
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock
from epctx.parsing import load

_ASKED: Final = 8
"""Groups at a time that the shared cache is asked for."""


def run(
    plan: Plan,
    options: BuildOptions,
    *,
    listener: Listener,
    machines: Machines,
    cache: Cache | None = None,
) -> tuple[BuildReport, EpctxError | None]:
    """Build what is planned; return the report, and the first failure in manifest order.

    What is up to date is left alone; then no process is started and no weight is read.

    Args:
        listener: hears of events, from several threads, one at a time.
        machines: carry out its jobs.
        cache: None: everything is carried out, and nothing remembered; what several targets share
            is carried out once all the same.

    Raises:
        UsageError: an input lies where outputs go; a part of a manifest was to be released.
        StorageError: the output folder or the cache cannot be used.
        VerificationError: `verify.require` asks for numbers that the build is not to run.
        LockError: `locked`, and something differs; nothing was published.
        Interrupted: the user asked to stop; nothing was published, no worker is left.
    """
    _refuse(plan, options, cache)
    if cache is None and len({planned.target for planned in plan.groups}) > 1:
        place = OutputPaths(out=options.out.resolve(), name=plan.manifest.name)
        cache = Cache(Location(folder=place.staging / "cache"), notices(listener))
    with outputs.refusals():
        build = Building(plan, options, machines, cache, listener)
        locked_mode.refuse_sources_in_outputs(plan, build.place)
        packaged.require(plan.manifest)
        if cache is not None:
            cache.sweep()
        with build.place.locked(build.once("another command uses the output")) as build.repaired:
            return _run(build)


def _run(build: Building) -> tuple[BuildReport, EpctxError | None]:
    """Build, while nobody else uses the output."""
    old = _lock_of(build)
    groups = _find(build)
    left = [group for group in groups if not group.up_to_date]
    with build.shared() if left or build.plan.compositions else nullcontext():
        try:
            built = {group.planned.label: group for group in _carry_out(build, left)}
            groups = [built.get(group.planned.label, group) for group in groups]
            composed = _compose(build, groups)
            new = ending.lock_of(build, groups, composed)
            if old is not None and new is not None:
                locked_mode.refuse_differences(old, new, build.plan)
            reports = ending.publish(build, groups, composed, whole=new is not None)
            return ending.report(build, groups, composed, reports, old, new)
        finally:
            build.remember_files()
            build.memo.save()


def open_cache(listener: Listener, shared: Shared, options: BuildOptions) -> Cache:
    """The user's cache; what is found corrupt in it is told to `listener`.

    A release takes nothing from it that nobody who is trusted has signed.

    Raises:
        UsageError: an environment variable that names it is no good.
    """
    signed = options.locked and options.release.attest
    return opened(notices(listener), shared, signed=signed)


def _refuse(plan: Plan, options: BuildOptions, cache: Cache | None) -> None:
    """Refuse what contradicts itself, before anything is looked at."""
    options.release.refuse(plan)
    if options.requires:
        _refuse_unrun(plan, skipped=not options.numbers)
    if options.locked and options.recalibrate:
        raise UsageError(
            "a locked build cannot calibrate anew: the lock has the ranges",
            where="--recalibrate",
            remedy="leave out one of --locked and --recalibrate",
        )
    if options.reports is not None and not options.from_cache:
        raise UsageError(
            "build reports of others are of use only where nothing is built",
            where="--reports",
            remedy="add --from-cache, or leave it out",
        )
    if cache is None and options.from_cache:
        raise UsageError(
            "--from-cache and --no-cache contradict each other", remedy="leave out one of them"
        )


def _refuse_unrun(plan: Plan, *, skipped: bool) -> None:
    """Refuse, before anything is compiled, to leave out numbers that the manifest requires."""
    settings = {each.label: each.group.verify for each in plan.groups}
    settings |= {each.label: each.composition.verify for each in plan.compositions}
    for label, asked in settings.items():
        if "numbers" in asked.require and (skipped or asked.numbers == "off"):
            raise VerificationError(
                "requires numbers (`verify.require`), and they are not to be run",
                where=label,
                why="--no-verify" if skipped else "the manifest says `numbers: off`",
                remedy="build with numbers, and `verify.numbers: full` in the manifest",
                code=Code.NUMBERS,
            )


def _lock_of(build: Building) -> Lock | None:
    """What the build is held to: the lock's part for this kind of host; None: to nothing.

    Raises:
        LockError: something in the way of it can be seen already.
    """
    lock = lockfile.read(build.lock_file) if build.options.locked else None
    record.refuse_another_manifest(build.place, build.plan.manifest.path)
    if lock is None:
        return None
    locked_mode.refuse_random_samples(build.plan)
    own = locked_mode.refuse_other_causes(lock, build.plan, build.lookup)
    build.plan = locked_mode.cut_alike(build.plan, own)
    if build.options.release.golden:
        locked_mode.refuse_unknown_golden(own, build.plan)
    others = hosts.views(lock) if lock.hosts else ()
    locked_mode.refuse_edited_outputs(own, build.plan, build.place, *others)
    return own


def _find(build: Building) -> list[GroupState]:
    """What is known of each group. After the first that is not up to date, which may have to be
    asked for elsewhere, several at a time.
    """
    found: list[GroupState] = []
    for planned in build.plan.groups:
        found.append(build.known(planned))
        if build.cache is not None and build.cache.remote and not found[-1].up_to_date:
            left = build.plan.groups[len(found) :]
            found += threads.beside(build.known, left, _ASKED)
            break
    build.remember_files()
    if build.options.from_cache:
        from_cache.refuse_missing(found, build.lookup.remote_builds, build.lookup.toolchain)
    return found


def _carry_out(build: Building, groups: Sequence[GroupState]) -> list[GroupState]:
    """Build the groups that are not up to date, into staged folders."""
    if not groups:
        return []
    for planned in build.plan.compositions:
        _refuse_unwirable(planned, build.plan.manifest.path)
    if build.cache is not None:
        build.cache.ready()
    build.place.forget_logs()
    build.options.expect({group.planned.label: build.took(group) for group in groups})
    jobs = build.options.jobs
    if not jobs and build.machines.jobs is not None:
        jobs = build.machines.jobs()
    work = build.place.work
    scheduler, actions = build.carrying_out(work, threads=jobs or os.cpu_count() or 1)
    keep_going = build.options.keep_going
    manifest = build.plan.manifest.path
    builder = GroupBuilder(
        actions, scheduler, build.place, build.events, manifest=manifest, keep_going=keep_going
    )
    # Longest first, so that no machine waits for the last; what is not known may be long.
    ordered = sorted(groups, key=lambda group: -(build.took(group) or math.inf))
    preparing = threading.Thread(target=_prepare, args=(build, ordered), name="epctx-toolchain")
    preparing.start()
    try:
        return builder.run(ordered)
    finally:
        preparing.join()


def _refuse_unwirable(planned: PlannedComposition, manifest: Path) -> None:
    """Refuse, before anything is compiled, parts that do not meet; a model that cannot be read is
    told where it is loaded.
    """
    # It loads onnxruntime, as no build without compositions does here.
    from epctx.stages import header
    from epctx.verification.numbers.composed import require_wirable

    models = {model.name: model for each in planned.groups for model in each.group.models}
    parts = {part.model for part in planned.composition.parts}
    try:
        headers = {name: header.read(models[name]) for name in parts}
    except ModelError:
        return
    with load.located(manifest):
        require_wirable(planned.composition, headers)


def _prepare(build: Building, groups: Sequence[GroupState]) -> None:
    """Look at what keys ask for beside models, while workers have first jobs; what that raises is
    raised again when a key asks for it.
    """
    toolchain = build.lookup.toolchain
    specs = [spec for group in groups for spec in group.planned.group.execution_providers]
    asked: list[Callable[[], object]] = [partial(toolchain.provider, spec) for spec in specs]
    asked += [partial(toolchain.of, *code) for code in (Compile.code, Verify.code)]
    for ask in asked:
        with contextlib.suppress(EpctxError):
            ask()


def _compose(build: Building, groups: Sequence[GroupState]) -> list[CompositionState]:
    """The compositions of the groups that were built or are up to date."""
    known = [_look_at(build, each, groups) for each in build.plan.compositions]
    failed = any(group.failure is not None for group in groups)
    if failed and not build.options.keep_going:
        return known
    if all(each.up_to_date or each.failure is not None for each in known):
        return known
    scheduler, actions = build.carrying_out(build.place.work / "compose", threads=1)
    composing = Composing(actions, build.place, build.events)
    with scheduler:
        return [
            each if each.up_to_date or each.failure is not None else composing.compose(each)
            for each in known
        ]


def _look_at(
    build: Building, planned: PlannedComposition, groups: Sequence[GroupState]
) -> CompositionState:
    wanted = {each.label for each in planned.groups}
    ready = {
        group.planned.group.name: group
        for group in groups
        if group.planned.label in wanted and group.failure is None
    }
    if len(ready) < len(wanted):
        failed = Cancelled("a group of its parts failed", remedy="see its error")
        return CompositionState(planned=planned, groups=ready, failure=failed)
    return look_at_composition(planned, ready, build.lookup, build.place)
