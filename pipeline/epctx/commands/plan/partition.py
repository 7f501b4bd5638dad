"""Who takes which node, without compiling: `epctx plan --partition`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from epctx.actions.optimize import Optimize
from epctx.actions.partition import Partition
from epctx.actions.pieces import Cut
from epctx.cache.digests import FreshDigests
from epctx.engine import ranges
from epctx.engine.actions import optimize, quantize
from epctx.engine.actions.pieces import of_group
from epctx.engine.executor import Scheduler, one
from epctx.engine.plan import Plan, PlannedGroup
from epctx.engine.ranges import Ranges
from epctx.engine.results import aliased
from epctx.errors import ManifestError
from epctx.files.digest import Digest
from epctx.parsing import load
from epctx.parsing.schema import providers
from epctx.stages.exclusion import refuse_unmatched
from epctx.stages.report import ModelReport, PieceReport
from epctx.worker.pool import Pool, own_logs


class GroupPreview(Struct, frozen=True, kw_only=True):
    """The partitions of a model group's models, as its EPs answer before a compile.

    EPs of onnxruntime decide inside the partition that they are given (real-eps.md section 4). QNN
    and OpenVINO are asked what they would leave; the build report has what they left.

    Attributes:
        silent: EPs, by alias, that cannot be asked: their partitions are what they are offered.
    """

    target: str
    group: str
    models: tuple[ModelReport, ...]
    silent: tuple[str, ...] = ()


def partitions(plan: Plan) -> tuple[GroupPreview, ...]:
    """Load, optimize and partition what a plan would build.

    Raises:
        EpctxError: what a stage raised.
    """
    known = ranges.of(plan.manifest)
    with tempfile.TemporaryDirectory(prefix="epctx-plan-") as scratch:
        folder = Path(scratch)
        pool = Pool(work=folder / "work", logs=own_logs())
        with Scheduler(pool), load.located(plan.manifest.path):
            return tuple(
                _group(pool, planned, folder / f"g{number}", known)
                for number, planned in enumerate(plan.groups)
            )


def _group(pool: Pool, planned: PlannedGroup, folder: Path, known: Ranges) -> GroupPreview:
    with pool.lease(None) as lease:
        group = quantize.again(
            planned.group, known, FreshDigests(), folder / "q", lease, calibrate=True
        )
        optimized: dict[str, Path] = {}
        digests: dict[str, Digest] = {}
        for number, source in enumerate(group.models):
            optimized[source.name] = folder / f"m{number}"
            job = Optimize.of(source, group.optimize, optimized[source.name])
            digests[source.name] = optimize.run(job, lambda job: one(lease, job)).digest
        found = one(lease, Partition(group=group, optimized=optimized))
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
    models = (replace(model, pieces=pieces.get(model.name, ())) for model in found.models)
    refuse_unmatched(found.unmatched, where=f"model group {group.name}")
    return GroupPreview(
        target=planned.target,
        group=group.name,
        models=aliased(models, group.execution_providers),
        silent=found.silent,
    )
