"""Compile: the models of a session group become EPContext models and their binaries."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from epctx import codec
from epctx.actions.action import SESSIONS, Action, Code, StageStarted, WorkerContext
from epctx.errors import EpctxError
from epctx.files.digest import Digest
from epctx.files.outputs import GroupOutput
from epctx.manifest import ExternalInitializers, ModelGroup, PartitionSettings, ProviderSpec
from epctx.providers.onnxruntime.host import Cpu
from epctx.stages.exclusion import Unmatched
from epctx.stages.report import ModelReport, PartitionReport

if TYPE_CHECKING:
    from epctx.graph.model import OptimizedModel
    from epctx.graph.partition.outline import Outlined
    from epctx.keys.toolchain import Toolchain
    from epctx.providers.base import ExecutionProvider, PartitionedModel
    from epctx.providers.onnxruntime.whole_model import GeneratingModel
    from epctx.stages.compile import CompiledGroup

_OUTSIDE: Final = ExternalInitializers(file="{model}.data")
"""File of a piece's initializers: weights that no EP takes stay on disk until the model is
assembled.
"""
MODELS: Final = "models.json"
"""File in the scratch folder with the reports so far, for a compile that fails."""


class CompileResult(Struct, frozen=True, kw_only=True):
    """Files of a compile, and the partitions of each model.

    Attributes:
        models: reports, in which partitions name their EP by its index in the list, as text. They
            have no passes: other passes may lead to the same optimized model.
        unmatched: entries of `partition.exclude` that match nothing, for each model.
        traces: JSON files that EPs wrote about the compile, by stem.
        cpu: CPU on which a real EP compiled, added by the engine; None if all EPs compile alike
            everywhere.
    """

    output: GroupOutput
    models: tuple[ModelReport, ...]
    unmatched: tuple[tuple[Unmatched, ...], ...]
    traces: Mapping[str, Any] = {}
    cpu: Cpu | None = None


class CompiledModel(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model of a session group.

    Attributes:
        name: the manifest's key, which names files and graphs.
        optimized: digest of the optimized graph and its weights: if the passes undo an edit of the
            source, nothing is compiled again.
        piece: number of the piece, from 1 on; 0 for the whole model.
    """

    name: str
    optimized: str
    piece: int = 0

    @property
    def label(self) -> str:
        """Name under which it is compiled: in the path that the EP sees, and in its graphs."""
        return f"{self.name}.{self.piece}" if self.piece else self.name


class Live(Struct, frozen=True, kw_only=True):
    """Open sessions of a compile, for the actions that run them.

    Attributes:
        generating: models for their runs; None if no EP compiles with sessions that can run.
    """

    compiled: CompiledGroup
    generating: Mapping[str, GeneratingModel] | None


class Compile(Action[CompileResult], frozen=True, kw_only=True):
    """Partition, compile and dump one session group.

    Attributes:
        models: models in the sharing group's order; the first names the binary, the last writes it.
        embed_mode: 0 for an external binary, 1 for an embedded one.
        node_name_prefix: prefix of the names of EPContext nodes and files.
        session_options: ONNX Runtime session config entries.
        external_initializers: file of initializers; None if they stay inside the models.
        eps: EPs in priority order, with paths in their options; the key has the
            `keys.records.ProviderRecord` of each.
        optimized: a model's label to the folder that Optimize, or Cut, wrote.
        group: the model group, whose sources are checked after a fault.
        folder: existing folder for the outputs, perhaps with those of other session groups.
        scratch: an empty folder for the EPs, and for `MODELS`.
    """

    result = CompileResult
    kind = "compile"
    code = Code(
        ("stages/partition.py", "stages/exclusion.py", "stages/compile.py"),
        SESSIONS,
    )
    beside = ("eps", "optimized", "group", "folder", "scratch")
    writes = ("folder", "scratch")
    failed: ClassVar = {"scratch": MODELS}

    models: tuple[CompiledModel, ...]
    embed_mode: Literal[0, 1]
    node_name_prefix: str
    partition: PartitionSettings
    session_options: Mapping[str, str]
    external_initializers: ExternalInitializers | None
    eps: tuple[ProviderSpec, ...]
    optimized: Mapping[str, Path] = {}
    group: ModelGroup | None = None
    folder: Path = Path()
    scratch: Path = Path()

    @classmethod
    def of(cls, group: ModelGroup, optimized: Mapping[str, Digest], piece: int = 0) -> Compile:
        """Return the compile of a session group, without folders.

        Args:
            group: its model group.
            optimized: its models in order, with their optimized digests.
            piece: number of the piece of each model. The group's limits, and its file of
                initializers, hold for whole models only.
        """
        partition, initializers = group.partition, group.external_initializers
        if piece:
            partition = replace(partition, require_coverage=None, max_partitions=None)
            initializers = _OUTSIDE
        return cls(
            models=tuple(
                CompiledModel(name=name, optimized=str(digest), piece=piece)
                for name, digest in optimized.items()
            ),
            embed_mode=group.embed_mode,
            node_name_prefix=group.node_name_prefix,
            partition=partition,
            session_options=group.session_options,
            external_initializers=initializers,
            eps=group.execution_providers,
            group=group,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Labels of the models."""
        return tuple(model.label for model in self.models)

    def facts(self, toolchain: Toolchain) -> dict[str, Any]:
        """Add the records of the EPs.

        Raises:
            ProviderUnavailable: an EP is not installed, or its package is broken.
            ManifestError: an EP refuses its options.
        """
        providers = [toolchain.provider(spec) for spec in self.eps]
        return {"providers": providers, **super().facts(toolchain)}

    def run(self, worker: WorkerContext) -> CompileResult:
        """Raises the errors of `stages.partition` and `stages.compile`."""
        from epctx.graph import store
        from epctx.providers import registry
        from epctx.stages import compile, partition

        providers = [registry.create(spec) for spec in self.eps]
        # Models of several names may share one optimized model.
        optimized = [replace(store.read(self.optimized[name]), name=name) for name in self.names]
        partitioned = []
        for model in optimized:
            worker.started(StageStarted(stage="partition", model=model.name))
            result = partition.run(model, providers, self.partition)
            partitioned.append(replace(result, optional=any(each.piece for each in self.models)))
        reporter = _Reporter(self.scratch, providers, optimized, partitioned)
        for each in reporter.before:
            partition.require_coverage(each, self.partition)
        unmatched = tuple(partition.unmatched(model, self.partition) for model in optimized)
        worker.started(StageStarted(stage="compile", model=self.names[0]))
        try:
            compiled = self._compiled(worker, providers, partitioned)
        except EpctxError as error:
            raise self._attributed(error, optimized) from error
        reports = reporter.of(compiled)
        for report in reports:
            partition.require(report, self.partition)
        worker.started(StageStarted(stage="dump"))
        output = compile.dump(
            compiled, self.folder, external_initializers=self.external_initializers
        )
        traces = {k: v.content for n in self.names for k, v in compiled.traces(n).items()}
        return CompileResult(output=output, models=reports, unmatched=unmatched, traces=traces)

    def _attributed(self, error: EpctxError, optimized: Sequence[OptimizedModel]) -> EpctxError:
        """Return the error of the source or of a third party's pass, if one of them is at fault."""
        from epctx.graph.passes import registry
        from epctx.stages import load, optimize

        if type(error) is not EpctxError or error.model is None or self.group is None:
            return error
        model = next(each for each in optimized if each.name == error.model)
        name = next(each.name for each in self.models if each.label == error.model)
        source = next(each for each in self.group.models if each.name == name)
        foreign = (each.name for each in model.passes if each.changed and registry.owner(each.name))
        theirs = (optimize.failed(name, "made a broken graph", error.why) for name in foreign)
        return load.refusal(source) or next(theirs, error)

    def _compiled(
        self,
        worker: WorkerContext,
        providers: Sequence[ExecutionProvider],
        partitioned: Sequence[PartitionedModel],
    ) -> CompiledGroup:
        """Compile; the sessions stay open as long as the worker wants them to."""
        from epctx.providers.base import SessionGroupSpec
        from epctx.stages import compile, record

        first = self.models[0]
        spec = SessionGroupSpec(
            models=self.names,
            embed_mode=self.embed_mode,
            node_name_prefix=self.node_name_prefix,
            session_options=self.session_options,
            folder=self.scratch / "session_group",
            binary=f"{first.name}_{first.piece}" if first.piece else "",
        )
        spec.folder.mkdir()
        generating = None
        if worker.kept_open:
            generating = record.prepare(partitioned, providers, self.scratch)

        def compiling(model: str, provider: ExecutionProvider) -> None:
            worker.started(StageStarted(stage="compile", model=model, provider=provider.name))

        # The scratch folder of an isolated EP is removed while this process ends.
        if not any(provider.isolated for provider in providers):
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


class _Reporter:
    """Writes reports on the models so far, for a compile that fails.

    Attributes:
        before: reports on the models as partitioned.
    """

    def __init__(
        self,
        scratch: Path,
        providers: Sequence[ExecutionProvider],
        optimized: Sequence[OptimizedModel],
        partitioned: Sequence[PartitionedModel],
    ) -> None:
        from epctx.graph.partition.outline import Outlined
        from epctx.stages import partition

        self._scratch = scratch
        self._providers = providers
        self._optimized = optimized
        self._outlined: list[Outlined] = [
            Outlined(model.model, partition.name_of) for model in partitioned
        ]
        self.before = self._write(partitioned, None)

    def of(self, compiled: CompiledGroup) -> tuple[ModelReport, ...]:
        """Return the reports on the compiled models for the result."""
        return tuple(
            replace(each, passes=()) for each in self._write(compiled.partitioned, compiled)
        )

    def _write(
        self, partitioned: Sequence[PartitionedModel], compiled: CompiledGroup | None
    ) -> tuple[ModelReport, ...]:
        from epctx.graph.partition.contexts import placement

        def ops(model: str) -> dict[str, tuple[str, ...]]:
            traces = {} if compiled is None else compiled.traces(model)
            return join_ops(each.ops for each in traces.values())

        models = zip(self._optimized, partitioned, self._outlined, strict=True)
        reports = tuple(
            replace(
                model_report(model, each, self._providers),
                outline=outline.owned(each.partitions),
                placement=None if compiled is None else placement(compiled.models[each.name]),
                ops=ops(each.name),
            )
            for model, each, outline in models
        )
        (self._scratch / MODELS).write_bytes(codec.encode(reports))
        return reports


def join_ops(parts: Iterable[Mapping[str, tuple[str, ...]]]) -> dict[str, tuple[str, ...]]:
    """Join an EP's operators by node name: nodes that ONNX Runtime inserted in several parts can
    have the same name.
    """
    joined: dict[str, tuple[str, ...]] = {}
    for part in parts:
        for name, ops in part.items():
            joined[name] = (*joined.get(name, ()), *ops)
    return joined


def model_report(
    optimized: OptimizedModel,
    partitioned: PartitionedModel,
    providers: Sequence[ExecutionProvider],
) -> ModelReport:
    """Return the report on a partitioned model, with places of its EPs."""
    unstable = (providers[p.provider].why_unstable(p.nodes) for p in partitioned.partitions)
    return ModelReport(
        name=partitioned.name,
        passes=optimized.passes,
        nodes=partitioned.nodes,
        coverage=partitioned.coverage,
        partitions=tuple(
            PartitionReport(
                provider=str(p.provider),
                nodes=len(p.nodes),
                inputs=tuple(str(value.name) for value in p.inputs),
                outputs=tuple(str(value.name) for value in p.outputs),
            )
            for p in partitioned.partitions
        ),
        declined=partitioned.declined,
        unstable=tuple(dict.fromkeys(filter(None, unstable))),
    )
