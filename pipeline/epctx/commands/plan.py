"""`epctx plan`: list the build steps with reasons, partitions of the models, and a CI matrix."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from epctx import lockfile
from epctx.actions.optimize import Optimize
from epctx.actions.partition import Partition
from epctx.actions.pieces import Cut
from epctx.cache.action import RemoteReport
from epctx.cache.digests import FreshDigests
from epctx.cache.store import Shared, open_cache
from epctx.engine import plan as planning
from epctx.engine import ranges
from epctx.engine.actions import optimize, quantize
from epctx.engine.actions.pieces import of_group
from epctx.engine.events import Listener, notices
from epctx.engine.executor import Scheduler, one
from epctx.engine.lock.writer import require_readable
from epctx.engine.lookup import Lookup
from epctx.engine.output.place import OutputPaths
from epctx.engine.plan import Plan, PlannedGroup
from epctx.engine.ranges import Ranges
from epctx.engine.results import aliased
from epctx.engine.staleness import GroupPlan, Memo, explain, explain_composition
from epctx.engine.state import GroupState
from epctx.error_codes import Code
from epctx.errors import ManifestError, ModelError
from epctx.files.digest import Digest
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock
from epctx.parsing import load
from epctx.parsing.schema import providers
from epctx.stages.exclusion import refuse_unmatched
from epctx.stages.report import ModelReport, PieceReport
from epctx.text import Brief
from epctx.worker.pool import Pool, own_logs


class PlanReport(Brief, frozen=True, kw_only=True):
    """Plan of a build, in manifest order; `remote` is the shared cache that was queried."""

    name: str
    groups: tuple[GroupPlan, ...]
    remote: RemoteReport | None = None


def plan(
    manifest: Path,
    *,
    out: Path,
    only: Sequence[str],
    numbers: bool,
    allow_outside: bool,
    shared: Shared,
    listener: Listener,
) -> PlanReport:
    """Plan a `build` with these arguments, as described in `api.plan`."""
    planned = planning.read(manifest, only=only, allow_outside=allow_outside)
    cache = open_cache(notices(listener), shared)
    place = OutputPaths(out=out.resolve(), name=planned.manifest.name)
    lookup = Lookup(cache, cache.digests, numbers=numbers, ranges=ranges.of(planned.manifest))
    memo = Memo(lookup, place, planned.manifest.path)
    require_readable(planned, memo)
    states = {each.label: _look(memo, each) for each in planned.groups}
    cache.digests.flush()
    plans = [explain(each, memo) for each in states.values()]
    plans += [explain_composition(each, states, memo, place) for each in planned.compositions]
    remote = None if cache.remote is None else cache.remote.report
    return PlanReport(name=planned.manifest.name, groups=tuple(plans), remote=remote)


def _look(memo: Memo, planned: PlannedGroup) -> GroupState:
    """Plan one group. A fault in a model becomes the group's failure.

    A plan may be made on a host without the weights.
    """
    try:
        return memo.state(planned)
    except ModelError as error:
        if error.code == Code.MODEL_MISSING:
            raise
        return GroupState(planned=planned, failure=error)


ANY = "any"
MOST_JOBS = 200
"""Most jobs in a matrix; GitLab allows 200, GitHub 256."""
_LIBRARIES = {".so": "linux", ".dll": "windows", ".dylib": "macos"}


class Shard(Struct, frozen=True, kw_only=True):
    """Groups that one job builds. All values are strings, as GitLab requires; commas join lists.

    Attributes:
        name: name of the job.
        only: value for `epctx build --only`.
        os: linux, windows or macos, several if each is suitable, or `any`.
        machine: x86_64 or aarch64, both if each is suitable, or `any`.
        cpu: required CPU, as `GenuineIntel family 6 model 85`; alternatives joined by ` or `.
        eps: ONNX Runtime's names of the EPs.
        extras: extras of epctx that install the EPs.
    """

    name: str
    group: str
    target: str
    only: str
    os: str
    machine: str
    cpu: str
    eps: str
    extras: str


class Matrix(Struct, frozen=True, kw_only=True):
    """Matrix for GitHub's `fromJSON`; GitLab takes the list in `include`."""

    include: tuple[Shard, ...]


def matrix(plan: Plan, *, shards: int = 0) -> Matrix:
    """Make the CI matrix of a plan's groups, in manifest order.

    Compositions have no shard: the gathering job joins them from the outputs of the other jobs.

    Args:
        shards: largest number of shards; groups that need the same host share them. There are more
            if the groups need more kinds of host. 0 for one shard per group.
    """
    lock = lockfile.find(lockfile.place(plan.manifest.path))
    by_label = {group.label: _shard([group], lock) for group in plan.groups}
    alike: dict[tuple[str, ...], list[PlannedGroup]] = {}
    for group in plan.groups:
        shard = by_label[group.label]
        wants = (shard.os, shard.machine, shard.cpu, shard.eps, shard.extras)
        alike.setdefault(wants, []).append(group)
    if not shards:
        return Matrix(include=tuple(by_label.values()))
    parts = _shares([len(groups) for groups in alike.values()], shards)
    dealt = zip(alike.values(), parts, strict=True)
    combined = [_shard(groups[n::count], lock) for groups, count in dealt for n in range(count)]
    return Matrix(include=tuple(combined))


def _shares(sizes: Sequence[int], most: int) -> list[int]:
    """Distribute shards over sets of groups: one each, the rest to the fullest sets."""
    counts = [1 for _ in sizes]
    while sum(counts) < min(most, sum(sizes)):
        fullest = max(range(len(sizes)), key=lambda n: sizes[n] / counts[n])
        counts[fullest] += 1
    return counts


def _shard(groups: Sequence[PlannedGroup], lock: Lock | None) -> Shard:
    first = groups[0]
    names = list(dict.fromkeys(spec.provider for spec in first.group.execution_providers))
    requirements = [_compiles_on(name) for name in names]
    facts = [] if lock is None else [kind for kind in hosts.kinds(lock) if kind]
    locked = {n: [kind[n] for kind in facts if n in kind] for n in names}
    vendors = [each.cpu for each in requirements if each.cpu]
    cpus = [_cpu(fact) for name in names for fact in locked[name]] or vendors
    systems = _common([each.systems for each in requirements])
    return Shard(
        name=first.label if len(groups) == 1 else f"{first.label} and {len(groups) - 1} more",
        group=_list(group.group.name for group in groups),
        target=_list(group.target for group in groups),
        only=_list(group.label for group in groups),
        os=_list(_of_lock(lock, names) or systems) or ANY,
        machine=_list(_common([each.machines for each in requirements])) or ANY,
        cpu=" or ".join(dict.fromkeys(filter(None, cpus))) or ANY,
        eps=_list(names),
        extras=_list(each.extra for each in requirements if each.extra),
    )


def _compiles_on(name: str) -> providers.CompilesOn:
    schema = providers.find(name)
    return providers.CompilesOn() if schema is None else schema.knowledge.compiles_on


def _common(lists: Iterable[Sequence[str]]) -> list[str]:
    """Values that all non-empty lists have in common, in the order of the first."""
    nonempty = [names for names in lists if names]
    return (
        [name for name in nonempty[0] if all(name in names for names in nonempty)]
        if nonempty
        else []
    )


def _of_lock(lock: Lock | None, names: Iterable[str]) -> list[str]:
    """Systems of the EPs' libraries in the lock; the locked toolchain fits no other system."""
    if lock is None:
        return []
    entries = lock.execution_providers
    labels = [
        label
        for key, entry in entries.items()
        if key.partition("#")[0] in names
        for label in entry.toolchain
    ]
    return sorted(
        {_LIBRARIES[end] for label in labels for end in Path(label).suffixes if end in _LIBRARIES}
    )


def _cpu(facts: Mapping[str, str]) -> str:
    vendor = facts.get("cpu vendor", "")
    parts = [
        f"{name} {facts[f'cpu {name}']}" for name in ("family", "model") if f"cpu {name}" in facts
    ]
    return " ".join(filter(None, [vendor, *parts]))


def _list(names: Iterable[str]) -> str:
    return ",".join(dict.fromkeys(names))


class GroupPreview(Struct, frozen=True, kw_only=True):
    """Partitions of a group's models, as its EPs answer before a compile.

    ONNX Runtime's EPs choose nodes within the partition that they are given (real-eps.md section
    4). The preview asks QNN and OpenVINO which nodes they would leave. The build report has the
    nodes that they left.

    Attributes:
        silent: aliases of EPs that cannot be asked; their partitions are the nodes offered to them.
    """

    target: str
    group: str
    models: tuple[ModelReport, ...]
    silent: tuple[str, ...] = ()


def partitions(plan: Plan) -> tuple[GroupPreview, ...]:
    """Load, optimize and partition the models that a plan would build.

    Raises:
        EpctxError: a stage failed.
    """
    calibrated = ranges.of(plan.manifest)
    with tempfile.TemporaryDirectory(prefix="epctx-plan-") as scratch:
        folder = Path(scratch)
        pool = Pool(work=folder / "work", logs=own_logs())
        with Scheduler(pool), load.located(plan.manifest.path):
            return tuple(
                _group(pool, planned, folder / f"g{number}", calibrated)
                for number, planned in enumerate(plan.groups)
            )


def _group(pool: Pool, planned: PlannedGroup, folder: Path, calibrated: Ranges) -> GroupPreview:
    with pool.lease(None) as lease:
        group = quantize.again(
            planned.group, calibrated, FreshDigests(), folder / "q", lease, calibrate=True
        )
        optimized: dict[str, Path] = {}
        digests: dict[str, Digest] = {}
        for number, source in enumerate(group.models):
            optimized[source.name] = folder / f"m{number}"
            job = Optimize.of(source, group.optimize, optimized[source.name])
            digests[source.name] = optimize.run(job, lambda job: one(lease, job)).digest
        partitioned = one(lease, Partition(group=group, optimized=optimized))
        pieces: dict[str, tuple[PieceReport, ...]] = {}
        for number, session in enumerate(planned.session_groups if group.pieces else ()):
            names = [model.name for model in session.models]
            cut = replace(
                Cut.of(
                    group,
                    {name: digests[name] for name in names},
                    providers.compile_memory(ep.provider for ep in group.execution_providers),
                ),
                folders={name: optimized[name] for name in names},
                folder=folder / f"c{number}",
            )
            try:
                reports = [model.reports for model in one(lease, cut).models]
            except ManifestError as error:
                raise of_group(error, group.name) from error
            pieces.update(zip(names, reports, strict=True))
    models = (replace(model, pieces=pieces.get(model.name, ())) for model in partitioned.models)
    refuse_unmatched(partitioned.unmatched, where=f"model group {group.name}")
    return GroupPreview(
        target=planned.target,
        group=group.name,
        models=aliased(models, group.execution_providers),
        silent=partitioned.silent,
    )
