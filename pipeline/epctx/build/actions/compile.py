"""Compile: the models of a session group become EPContext models and their binaries."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct
from msgspec.structs import replace

from epctx import codec
from epctx.build.action import Action, StageStarted, WorkerContext
from epctx.files.outputs import GroupOutput
from epctx.manifest import ModelGroup
from epctx.stages.exclusion import Unmatched
from epctx.stages.report import ModelReport, PartitionReport

if TYPE_CHECKING:
    from epctx.graph.model import OptimizedModel
    from epctx.graph.partition.outline import Outlined
    from epctx.providers.base import ExecutionProvider, PartitionedModel
    from epctx.providers.onnxruntime.whole_model import GeneratingModel
    from epctx.stages.compile import CompiledGroup

MODELS: Final = "models.json"
"""In the scratch folder: the models as far as it got, for when it fails."""


class CompileResult(Struct, frozen=True, kw_only=True):
    """What was written, and who took which part of each model.

    Attributes:
        unmatched: for each model, entries of `partition.exclude` that match nothing in it.
    """

    output: GroupOutput
    models: tuple[ModelReport, ...]
    unmatched: tuple[tuple[Unmatched, ...], ...]


class Live(Struct, frozen=True, kw_only=True):
    """What stays open for who runs the sessions that compile.

    Attributes:
        generating: the models as they are run; None: no EP compiles with sessions that can be.
    """

    compiled: CompiledGroup
    generating: Mapping[str, GeneratingModel] | None


class Compile(Action[CompileResult], frozen=True, kw_only=True):
    """Partition, compile and dump one session group.

    Attributes:
        group: the model group that it belongs to.
        models: the session group's models, in order.
        optimized: model name to the folder that Optimize wrote.
        folder: where the outputs go; exists, may hold other session groups' outputs.
        scratch: an empty folder for the EPs, and for `MODELS`.
    """

    result = CompileResult
    writes = ("folder", "scratch")
    failed: ClassVar = {"scratch": MODELS}
    isolates = True

    group: ModelGroup
    models: tuple[str, ...]
    optimized: Mapping[str, Path]
    folder: Path
    scratch: Path

    def run(self, worker: WorkerContext) -> CompileResult:
        """Raises what `stages.partition`, `stages.compile` and `stages.dump` raise."""
        from epctx.graph.optimized import store
        from epctx.providers import registry
        from epctx.stages import dump, partition

        group = self.group
        providers = [registry.create(spec) for spec in group.execution_providers]
        # Models of several names may share one optimized model.
        optimized = [replace(store.read(self.optimized[name]), name=name) for name in self.models]
        partitioned = []
        for model in optimized:
            worker.started(StageStarted(stage="partition", model=model.name))
            partitioned.append(partition.run(model, providers, group.partition))
        told = _Told(self, providers, optimized, partitioned)
        for each in partitioned:
            partition.require_coverage(each, group.partition)
        unmatched = tuple(partition.unmatched(model, group.partition) for model in optimized)
        worker.started(StageStarted(stage="compile", model=self.models[0]))
        compiled = self._compiled(worker, providers, partitioned)
        reports = told.of(compiled)
        for settled, report in zip(compiled.partitioned, reports, strict=True):
            assert report.placement is not None
            partition.require(settled, report.placement.context_nodes, group.partition)
        worker.started(StageStarted(stage="dump"))
        output = dump.run(compiled, self.folder, external_initializers=group.external_initializers)
        return CompileResult(output=output, models=reports, unmatched=unmatched)

    def _compiled(
        self,
        worker: WorkerContext,
        providers: Sequence[ExecutionProvider],
        partitioned: Sequence[PartitionedModel],
    ) -> CompiledGroup:
        """Compile; the sessions stay open as long as the worker wants them to."""
        from epctx.build import record_outputs
        from epctx.providers.base import SessionGroupSpec
        from epctx.stages import compile

        spec = SessionGroupSpec(
            models=self.models,
            embed_mode=self.group.embed_mode,
            node_name_prefix=self.group.node_name_prefix,
            session_options=self.group.session_options,
            folder=self.scratch / "session_group",
        )
        spec.folder.mkdir()
        generating = None
        if worker.kept_open:
            generating = record_outputs.prepare(partitioned, providers, self.scratch)

        def compiling(model: str, provider: ExecutionProvider) -> None:
            worker.started(StageStarted(stage="compile", model=model, provider=provider.name))

        if not any(provider.isolated for provider in providers):  # else while this process ends
            worker.sessions.push(self._remove_scratch)
        compiled = worker.sessions.enter_context(
            compile.run(partitioned, providers, spec, compiling)
        )
        worker.live = Live(compiled=compiled, generating=generating)
        return compiled

    def _remove_scratch(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            shutil.rmtree(self.scratch, ignore_errors=True)


class _Told:
    """What is told of the models so far; also if what comes next fails."""

    def __init__(
        self,
        action: Compile,
        providers: Sequence[ExecutionProvider],
        optimized: Sequence[OptimizedModel],
        partitioned: Sequence[PartitionedModel],
    ) -> None:
        from epctx.graph.partition.outline import Outlined
        from epctx.stages import partition

        self._action = action
        self._providers = providers
        self._optimized = optimized
        self._outlined: list[Outlined] = [
            Outlined(model.model, partition.name_of) for model in partitioned
        ]
        self._write(partitioned, None)

    def of(self, compiled: CompiledGroup) -> tuple[ModelReport, ...]:
        """Return the models that were compiled."""
        return self._write(compiled.partitioned, compiled)

    def _write(
        self, partitioned: Sequence[PartitionedModel], compiled: CompiledGroup | None
    ) -> tuple[ModelReport, ...]:
        from epctx.graph.partition.contexts import placement

        found = zip(self._optimized, partitioned, self._outlined, strict=True)
        reports = tuple(
            replace(
                model_report(self._action.group, model, settled, self._providers),
                outline=outline.owned(settled.partitions),
                placement=None if compiled is None else placement(compiled.models[settled.name]),
            )
            for model, settled, outline in found
        )
        (self._action.scratch / MODELS).write_bytes(codec.encode(reports))
        return reports


def model_report(
    group: ModelGroup,
    optimized: OptimizedModel,
    partitioned: PartitionedModel,
    providers: Sequence[ExecutionProvider],
) -> ModelReport:
    """Return what is told of a model that was partitioned."""
    from epctx.providers.hooks import TellsUnstable

    unstable = (
        provider.why_unstable(p.nodes)
        for p in partitioned.partitions
        if isinstance(provider := providers[p.provider], TellsUnstable)
    )
    aliases = [spec.alias for spec in group.execution_providers]
    return ModelReport(
        name=partitioned.name,
        passes=optimized.passes,
        nodes=partitioned.nodes,
        coverage=partitioned.coverage,
        partitions=tuple(
            PartitionReport(
                provider=aliases[p.provider],
                nodes=len(p.nodes),
                inputs=tuple(str(value.name) for value in p.inputs),
                outputs=tuple(str(value.name) for value in p.outputs),
            )
            for p in partitioned.partitions
        ),
        declined=partitioned.declined,
        unstable=tuple(dict.fromkeys(filter(None, unstable))),
    )
