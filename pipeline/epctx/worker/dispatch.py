"""The jobs of a worker, carried out by the stages (design section 3)."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
from msgspec import Struct
from msgspec.structs import replace

from epctx import codec
from epctx.errors import Failure
from epctx.files import outputs
from epctx.graph import locations, native
from epctx.graph.model import OptimizedModel, Placement
from epctx.graph.optimized import store
from epctx.graph.partition.contexts import placement
from epctx.graph.partition.outline import Outlined
from epctx.manifest import ModelGroup
from epctx.providers import registry
from epctx.providers.base import ExecutionProvider, PartitionedModel, SessionGroupSpec
from epctx.providers.hooks import TellsUnstable
from epctx.runtime import trial
from epctx.runtime.trial import RunJob
from epctx.stages import compile, compose, dump, load, optimize, partition, quantize, verify
from epctx.stages.report import CompositionReport, ModelReport, PartitionReport
from epctx.verification.findings import FolderReport
from epctx.verification.numbers import golden
from epctx.verification.numbers.runs import Pause
from epctx.verification.request import VerifyRequest
from epctx.worker import record_outputs, run_sources
from epctx.worker.jobs import (
    MODELS,
    CompileJob,
    CompileResult,
    ComposeJob,
    ComposeResult,
    GoldenJob,
    GoldenResult,
    OptimizeJob,
    OptimizeResult,
    PartitionJob,
    PartitionResult,
    QuantizeJob,
    QuantizeResult,
    SourceJob,
    SourceResult,
    StageStarted,
)
from epctx.worker.protocol import Message

if sys.platform != "win32":
    import resource

Started = Callable[[StageStarted], None]
Settle = Callable[[Any, float | None], None]
"""Hears what the job's result is if it is ended so many seconds later; None: it is not to be."""
_SENDING: Final = 20
"""Between two pauses that are told lies so many times what it took to tell the first."""
_FAILED = "onnx's shape inference did not end on it, or crashed:"
_NOTES: Mapping[native.Reach, Sequence[str]] = {
    "data": (),
    "types": (f"{_FAILED} shapes that follow from values are not known",),
    "nothing": (f"{_FAILED} only the shapes that it declares are known",),
}


def _unsettled(result: object, left: float | None) -> None:
    """Nobody ends a job."""


def execute(message: Message, started: Started, settle: Settle = _unsettled) -> object:
    """Carry out the job in `message`; `started` hears of each stage before it begins.

    Raises:
        EpctxError: what the stages raise; what the system refuses is a StorageError.
    """
    with outputs.refusals():
        return _execute(message, started, settle)


def _execute(message: Message, started: Started, settle: Settle) -> object:
    encoded = bytes(message.job)
    match message.kind:
        case "OptimizeJob":
            job = codec.decode(encoded, OptimizeJob)
            with native.inferring(job.reach):
                return _optimize(job, started)
        case "QuantizeJob":
            return _quantize(codec.decode(encoded, QuantizeJob), started)
        case "SourceJob":
            return _source(codec.decode(encoded, SourceJob), started, settle)
        case "PartitionJob":
            return _partition(codec.decode(encoded, PartitionJob), started)
        case "CompileJob":
            return _compile(codec.decode(encoded, CompileJob), started, settle)
        case "ComposeJob":
            return _compose(codec.decode(encoded, ComposeJob), started)
        case "GoldenJob":
            return _golden(codec.decode(encoded, GoldenJob), started)
        case "VerifyRequest":
            return _verify(codec.decode(encoded, VerifyRequest), started, settle)
        case "RunJob":
            return trial.run(codec.decode(encoded, RunJob))
    raise ValueError(f"no such job: {message.kind}")


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
        notes=(*loaded.notes, *_NOTES[job.reach]),
        peak_memory=peak_memory(),
    )


def _quantize(job: QuantizeJob, started: Started) -> QuantizeResult:
    started(StageStarted(stage="quantize", model=job.name))

    job.folder.mkdir(parents=True)
    optimized = replace(store.read(job.optimized), name=job.name)
    made = quantize.run(
        optimized, job.settings, job.preset, job.folder, ranges=job.ranges, others=job.others
    )
    return QuantizeResult(
        sources=made.files,
        ranges=made.ranges,
        report=made.report,
        peak_memory=peak_memory(),
    )


def _source(job: SourceJob, started: Started, settle: Settle) -> SourceResult:
    if job.settings.budget is not None:  # verification runs what did not end
        settle(SourceResult(unfed={}, peak_memory=0), job.settings.budget)

    def running(model: str) -> None:
        started(StageStarted(stage="source", model=f"{model} (source)"))

    unfed = run_sources.run_sources(job, running)
    return SourceResult(unfed=unfed, peak_memory=peak_memory())


def _partition(job: PartitionJob, started: Started) -> PartitionResult:
    group = job.group
    providers = [registry.create(spec) for spec in group.execution_providers]
    reports, unmatched = [], []
    silent: frozenset[int] = frozenset()
    sources = {source.name: source.path for source in group.models}
    for name, folder in job.optimized.items():
        started(StageStarted(stage="partition", model=name))
        # The limits are for builds: who asks for a preview wants to see why they are missed.
        optimized = replace(store.read(folder), name=name)
        foreseen, silent = partition.foresee(optimized, providers, group.partition)
        reports.append(_located(_report(group, optimized, foreseen, providers), sources[name]))
        unmatched.append(partition.unmatched(optimized, group.partition))
    aliases = [spec.alias for spec in group.execution_providers]
    return PartitionResult(
        models=tuple(reports),
        unmatched=tuple(unmatched),
        silent=tuple(aliases[index] for index in sorted(silent)),
    )


def _located(report: ModelReport, source: Path) -> ModelReport:
    """The report, with where in the source what is left to the default EP comes from."""
    if not report.declined:
        return report
    found = locations.locations(source, {each.node for each in report.declined})
    return replace(
        report,
        declined=tuple(
            replace(each, location=found.get(each.node, "")) for each in report.declined
        ),
    )


def _compile(job: CompileJob, started: Started, settle: Settle) -> CompileResult:
    group = job.group
    providers = [registry.create(spec) for spec in group.execution_providers]
    # Models of several names may share one optimized model.
    optimized = [replace(store.read(job.optimized[name]), name=name) for name in job.models]
    partitioned = []
    for model in optimized:
        started(StageStarted(stage="partition", model=model.name))
        partitioned.append(partition.run(model, providers, group.partition))
    outlined = [Outlined(model.model, partition.name_of) for model in partitioned]

    def told(
        found: Sequence[PartitionedModel], placed: Sequence[Placement | None]
    ) -> tuple[ModelReport, ...]:
        """The models so far, of which the build tells also if what comes next fails."""
        reports = tuple(
            replace(
                _report(group, model, settled, providers),
                outline=outline.owned(settled.partitions),
                placement=place,
            )
            for model, settled, place, outline in zip(
                optimized, found, placed, outlined, strict=True
            )
        )
        (job.scratch / MODELS).write_bytes(codec.encode(reports))
        return reports

    told(partitioned, [None] * len(partitioned))
    for each in partitioned:
        partition.require_coverage(each, group.partition)
    unmatched = tuple(partition.unmatched(model, group.partition) for model in optimized)
    started(StageStarted(stage="compile", model=job.models[0]))
    spec = SessionGroupSpec(
        models=job.models,
        embed_mode=group.embed_mode,
        node_name_prefix=group.node_name_prefix,
        session_options=group.session_options,
        folder=job.scratch / "session_group",
    )
    spec.folder.mkdir()
    recording = None if job.recorded is None else _Recording(job, partitioned, providers)

    def compiling(model: str, provider: ExecutionProvider) -> None:
        started(StageStarted(stage="compile", model=model, provider=provider.name))

    def running(model: str, provider: str) -> None:
        started(StageStarted(stage="verify", model=model, provider=provider))

    with compile.run(partitioned, providers, spec, compiling) as compiled:
        placed = [placement(compiled.models[settled.name]) for settled in compiled.partitioned]
        reports = told(compiled.partitioned, placed)
        for settled, found in zip(compiled.partitioned, placed, strict=True):
            partition.require(settled, found.context_nodes, group.partition)
        started(StageStarted(stage="dump"))
        output = dump.run(compiled, job.folder, external_initializers=group.external_initializers)
        result = CompileResult(
            output=output,
            models=reports,
            unmatched=unmatched,
            recorded=True,
            checked=None,
            peak_memory=peak_memory(),
        )
        unrun = None
        if recording is not None:
            pausing = _Pausing(started, settle)
            unrun = recording.record(compiled, running, lambda each: pausing(each, lambda: result))
            settle(result, None)
    if not any(provider.isolated for provider in providers):
        shutil.rmtree(job.scratch, ignore_errors=True)  # else while this process ends
    result = replace(result, recorded=unrun is not None, unrun=unrun or ())
    if job.check is not None:
        outputs.write_sums(job.folder, output.files)
        request = replace(job.check, written=output.files)
        whole = result

        def told_so_far(found: FolderReport, left: float | None) -> None:
            settle(replace(whole, checked=found), left)

        result = replace(result, checked=_verify(request, started, told_so_far))
    return replace(result, peak_memory=peak_memory())


class _Recording:
    """What the sessions that compile compute: prepared before, and recorded after the compile."""

    def __init__(
        self,
        job: CompileJob,
        models: Sequence[PartitionedModel],
        providers: Sequence[ExecutionProvider],
    ) -> None:

        self._outputs = record_outputs
        self._job = job
        self._sessions = record_outputs.prepare(models, providers, job.scratch)

    def record(
        self,
        compiled: compile.CompiledGroup,
        running: Callable[[str, str], None],
        pausing: Callable[[Pause], None],
    ) -> tuple[Failure, ...] | None:
        """As `record_outputs.record`; None, too: no EP compiles with a session."""
        if self._sessions is None:
            return None
        return self._outputs.record(self._sessions, compiled, self._job, running, pausing)


def _compose(job: ComposeJob, started: Started) -> ComposeResult:

    composition = job.composed.composition
    started(StageStarted(stage="compose", model=composition.name))
    found = compose.run(job.composed, job.contents, job.folder)
    wired = found.wiring
    report = CompositionReport(
        parts={part.name: f"{part.group}/{part.model}" for part in composition.parts},
        links={str(port): str(origin) for port, origin in wired.links.items()},
        inputs={name: tuple(map(str, ports)) for name, ports in wired.inputs.items()},
        outputs={name: str(port) for name, port in wired.outputs.items()},
    )
    return ComposeResult(files=found.files, report=report, peak_memory=peak_memory())


def _golden(job: GoldenJob, started: Started) -> GoldenResult:

    started(StageStarted(stage="golden"))
    if job.group is not None:
        return GoldenResult(files=golden.make(job.group, job.built, job.folder, job.two_answers))
    assert job.composed is not None
    return GoldenResult(files=golden.make_composed(job.composed, job.built, job.folder))


def _verify(request: VerifyRequest, started: Started, settle: Settle) -> FolderReport:
    started(StageStarted(stage="verify"))

    def running(model: str) -> None:
        started(StageStarted(stage="verify", model=model))

    return verify.run(request, running, _Pausing(started, settle))


class _Pausing(Struct):
    """Tells before a run which one it is, and what holds if the job is ended in it.

    A result may be large, and a run short: then not every one is told.
    """

    started: Started
    settle: Settle
    _next: float = 0.0
    _bound: bool = False

    def __call__(self, pause: Pause, result: Callable[[], object]) -> None:
        begun, bound = time.monotonic(), pause.left is not None
        if begun < self._next and bound == self._bound:
            return
        if bound or self._bound:
            self.settle(result(), pause.left)
        self._bound = bound
        if pause.of:
            self.started(
                StageStarted(
                    stage="verify",
                    model=pause.model,
                    number=pause.number,
                    of=pause.of,
                    peak_memory=peak_memory(),
                )
            )
        now = time.monotonic()
        self._next = now + _SENDING * (now - begun)


def _report(
    group: ModelGroup,
    optimized: OptimizedModel,
    partitioned: PartitionedModel,
    providers: Sequence[ExecutionProvider],
) -> ModelReport:
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


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes."""
    if sys.platform != "win32":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return int(psutil.Process().memory_info().peak_wset)
