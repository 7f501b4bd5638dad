"""Partition: a preview of a compile's partitions; nothing is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from epctx.actions.action import Action, StageStarted, WorkerContext
from epctx.actions.compile import model_report
from epctx.manifest import ModelGroup
from epctx.stages.exclusion import Unmatched
from epctx.stages.report import ModelReport


class PartitionResult(Struct, frozen=True, kw_only=True):
    """Parts of each model that EPs would take; `unmatched` and EPs as in CompileResult.

    Attributes:
        silent: aliases of EPs that do not foresee which nodes they would leave.
    """

    models: tuple[ModelReport, ...]
    unmatched: tuple[tuple[Unmatched, ...], ...]
    silent: tuple[str, ...] = ()


class Partition(Action[PartitionResult], frozen=True, kw_only=True):
    """Partition optimized models.

    Attributes:
        group: their model group.
        optimized: model name to the folder that Optimize wrote.
    """

    result = PartitionResult

    group: ModelGroup
    optimized: Mapping[str, Path]

    def run(self, worker: WorkerContext) -> PartitionResult:
        """Raises the errors of `stages.partition`. Missed limits are not errors: a preview shows
        why they are missed.
        """
        from epctx.graph import store
        from epctx.providers import registry
        from epctx.stages import partition

        group = self.group
        providers = [registry.create(spec) for spec in group.execution_providers]
        reports, unmatched = [], []
        silent: frozenset[int] = frozenset()
        sources = {source.name: source.path for source in group.models}
        for name, folder in self.optimized.items():
            worker.started(StageStarted(stage="partition", model=name))
            optimized = replace(store.read(folder), name=name)
            foreseen, silent = partition.foresee(optimized, providers, group.partition)
            report = model_report(optimized, foreseen, providers)
            reports.append(_located(report, sources[name]))
            unmatched.append(partition.unmatched(optimized, group.partition))
        aliases = [spec.alias for spec in group.execution_providers]
        return PartitionResult(
            models=tuple(reports),
            unmatched=tuple(unmatched),
            silent=tuple(aliases[index] for index in sorted(silent)),
        )


def _located(report: ModelReport, source: Path) -> ModelReport:
    """Add places in the source to the nodes that a report leaves to the default EP."""
    from epctx.graph.partition import outline

    if not report.declined:
        return report
    places = outline.node_locations(source, {each.node for each in report.declined})
    return replace(
        report,
        declined=tuple(
            replace(each, location=places.get(each.node, "")) for each in report.declined
        ),
    )
