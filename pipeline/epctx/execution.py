"""How a worker carries out its jobs: the stages, in the design's order (section 3)."""

from __future__ import annotations

import sys
from collections.abc import Callable

from epctx import codec
from epctx.graph import store
from epctx.graph.model import OptimizedModel, PartitionedModel
from epctx.jobs import (
    CompileJob,
    CompileResult,
    OptimizeJob,
    OptimizeResult,
    StageStarted,
    VerifyJob,
)
from epctx.manifest import ModelGroup
from epctx.providers import registry
from epctx.providers.base import SessionGroupSpec
from epctx.report import ModelReport, PartitionReport
from epctx.stages import compile, dump, load, optimize, partition
from epctx.worker import Message

Started = Callable[[StageStarted], None]


def execute(message: Message, started: Started) -> object:
    """Carry out the job in `message`; `started` hears of each stage before it begins."""
    if message.optimize is not None:
        return _optimize(codec.decode(bytes(message.optimize), OptimizeJob), started)
    if message.compile is not None:
        return _compile(codec.decode(bytes(message.compile), CompileJob), started)
    assert message.verify is not None
    return _verify(codec.decode(bytes(message.verify), VerifyJob), started)


def _optimize(job: OptimizeJob, started: Started) -> OptimizeResult:
    started(StageStarted(stage="load", model=job.source.name))
    loaded = load.run(job.source)
    started(StageStarted(stage="optimize", model=job.source.name))
    job.folder.mkdir(parents=True)
    optimized = optimize.run(loaded, job.settings, job.folder)
    store.write(optimized, job.folder)
    return OptimizeResult(
        digest=optimized.digest,
        sources=loaded.sources,
        passes=optimized.passes,
        peak_memory=peak_memory(),
    )


def _compile(job: CompileJob, started: Started) -> CompileResult:
    group = job.group
    providers = [registry.create(spec) for spec in group.execution_providers]
    optimized = [store.read(job.optimized[name]) for name in job.models]
    partitioned = []
    for model in optimized:
        started(StageStarted(stage="partition", model=model.name))
        partitioned.append(partition.run(model, providers, group.partition))
    reports = [_report(group, o, p) for o, p in zip(optimized, partitioned, strict=True)]
    started(StageStarted(stage="compile"))
    spec = SessionGroupSpec(
        models=job.models,
        embed_mode=group.embed_mode,
        node_name_prefix=group.node_name_prefix,
        session_options=group.session_options,
        folder=job.scratch,
    )
    with compile.run(partitioned, providers, spec) as compiled:
        started(StageStarted(stage="dump"))
        output = dump.run(compiled, job.folder, external_initializers=group.external_initializers)
    return CompileResult(output=output, models=tuple(reports), peak_memory=peak_memory())


def _report(
    group: ModelGroup, optimized: OptimizedModel, partitioned: PartitionedModel
) -> ModelReport:
    # Taken before the compile, which changes the graph.
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
    )


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
