"""The jobs that worker processes carry out, as types that cross the process border as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from epctx.errors import Failure
from epctx.files.digest import Digest
from epctx.files.outputs import GroupOutput, OutputFile
from epctx.graph.model import PassRecord, SourceFile
from epctx.graph.native import Reach
from epctx.manifest import (
    ModelGroup,
    ModelSource,
    OptimizeSettings,
    Preset,
    QuantizeSettings,
    VerifySettings,
)
from epctx.quantization.report import QuantizeReport
from epctx.runtime.trial import RunJob
from epctx.stages.exclusion import Unmatched
from epctx.stages.report import CompositionReport, ModelReport
from epctx.verification.findings import FolderReport
from epctx.verification.request import Composed, VerifyRequest


class OptimizeJob(Struct, frozen=True, kw_only=True):
    """Load and optimize one model; write it, weights by reference, to the new folder `folder`.

    Attributes:
        reach: how far onnx's inference may go on it.
    """

    source: ModelSource
    settings: OptimizeSettings
    folder: Path
    reach: Reach = "data"


MODELS = "models.json"
"""In the scratch folder of a CompileJob: the models as far as it got, for when it fails."""


class CompileJob(Struct, frozen=True, kw_only=True):
    """Partition, compile and dump one session group.

    Attributes:
        group: the model group that it belongs to.
        models: the session group's models, in order.
        optimized: model name to the folder that an OptimizeJob wrote.
        folder: where the outputs go; exists, may hold other session groups' outputs.
        scratch: an empty folder for the EPs, and for `MODELS`.
        recorded: where what the generating sessions compute is kept; None: they are not run.
        check: what is to be verified of `folder` when all of it is written, `SHA256SUMS` too, which
            this job writes then; None: that is not for this job to do.
    """

    group: ModelGroup
    models: tuple[str, ...]
    optimized: Mapping[str, Path]
    folder: Path
    scratch: Path
    recorded: Path | None = None
    check: VerifyRequest | None = None


class QuantizeJob(Struct, frozen=True, kw_only=True):
    """Quantize one model; write it to the new folder `folder`.

    Attributes:
        name: of the model.
        optimized: the folder that an OptimizeJob wrote.
        preset: whose settings, resolved.
        ranges: of its tensors, as they were found before; None: they are to be found.
        others: the other models of its group: samples may be of them.
    """

    name: str
    optimized: Path
    settings: QuantizeSettings
    preset: Preset
    ranges: str | None
    others: tuple[ModelSource, ...]
    folder: Path


class QuantizeResult(Struct, frozen=True, kw_only=True):
    """What a QuantizeJob wrote.

    Attributes:
        sources: its files: the model first.
        ranges: of its tensors; None: only weights are quantized.
    """

    sources: tuple[SourceFile, ...]
    ranges: str | None
    report: QuantizeReport
    peak_memory: int


class SourceJob(Struct, frozen=True, kw_only=True):
    """Run source models on the inputs that verification uses, and keep what they give.

    Attributes:
        folder: where it is kept.
    """

    sources: tuple[ModelSource, ...]
    settings: VerifySettings
    folder: Path


class SourceResult(Struct, frozen=True, kw_only=True):
    """What a SourceJob found. `unfed`: models that run on other inputs than were generated only,
    and why.
    """

    unfed: Mapping[str, str]
    peak_memory: int


class PartitionJob(Struct, frozen=True, kw_only=True):
    """Partition optimized models, as a CompileJob would, and compile nothing.

    Attributes:
        group: the model group that they belong to.
        optimized: model name to the folder that an OptimizeJob wrote.
    """

    group: ModelGroup
    optimized: Mapping[str, Path]


class StageStarted(Struct, frozen=True, kw_only=True):
    """A worker has begun a stage, of a model where the stage goes model by model.

    Attributes:
        provider: the EP that works on it now, by ONNX Runtime's name of it: its code may crash.
        number: of the input set that it is run on, from 1 on; 0: it is not run on one, or the stage
            is no run.
        of: how many input sets it is run on.
        peak_memory: of the process so far, in bytes, if it runs.
        ago: seconds since, if it is told later.
    """

    stage: Literal[
        "load",
        "optimize",
        "quantize",
        "source",
        "partition",
        "compile",
        "dump",
        "verify",
        "compose",
        "golden",
    ]
    model: str | None = None
    provider: str | None = None
    number: int = 0
    of: int = 0
    peak_memory: int = 0
    ago: float = 0.0


class OptimizeResult(Struct, frozen=True, kw_only=True):
    """What an OptimizeJob found.

    Attributes:
        digest: of the optimized graph and its weights' content.
        notes: as `LoadedModel` has them.
    """

    digest: Digest
    sources: tuple[SourceFile, ...]
    passes: tuple[PassRecord, ...]
    notes: tuple[str, ...] = ()
    peak_memory: int


class CompileResult(Struct, frozen=True, kw_only=True):
    """What a CompileJob wrote, and who took which part of each model.

    Attributes:
        unmatched: for each model, entries of `partition.exclude` that match nothing in it.
        recorded: the generating sessions were run.
        unrun: of each model that they did not run, why: the EP's fault if the source does run.
        checked: what `check` found.
    """

    output: GroupOutput
    models: tuple[ModelReport, ...]
    unmatched: tuple[tuple[Unmatched, ...], ...]
    recorded: bool
    unrun: tuple[Failure, ...] = ()
    checked: FolderReport | None
    peak_memory: int


class PartitionResult(Struct, frozen=True, kw_only=True):
    """Who would take which part of each model; `unmatched` as in CompileResult.

    Attributes:
        silent: EPs, by alias, that do not say before a compile what of it they would leave.
    """

    models: tuple[ModelReport, ...]
    unmatched: tuple[tuple[Unmatched, ...], ...]
    silent: tuple[str, ...] = ()


class ComposeJob(Struct, frozen=True, kw_only=True):
    """Join built models into one.

    Attributes:
        contents: of each group the BLAKE3 digests of its files, by name.
        folder: where the composition goes: empty.
    """

    composed: Composed
    contents: Mapping[str, Mapping[str, Digest]]
    folder: Path


class ComposeResult(Struct, frozen=True, kw_only=True):
    """What a ComposeJob wrote, without SHA256SUMS; how it is wired."""

    files: tuple[OutputFile, ...]
    report: CompositionReport
    peak_memory: int


class GoldenJob(Struct, frozen=True, kw_only=True):
    """Write golden inputs and outputs of a group, or of a composition.

    Attributes:
        group, composed: one of them.
        built: its folder.
        folder: where they go: new.
        two_answers: files of the group's models whose outputs are those of the kernels.
    """

    group: ModelGroup | None = None
    composed: Composed | None = None
    built: Path
    folder: Path
    two_answers: tuple[str, ...] = ()


class GoldenResult(Struct, frozen=True, kw_only=True):
    """The files that a GoldenJob wrote, SHA256SUMS too."""

    files: tuple[OutputFile, ...]


Job = (
    OptimizeJob
    | QuantizeJob
    | SourceJob
    | PartitionJob
    | CompileJob
    | ComposeJob
    | GoldenJob
    | VerifyRequest
    | RunJob
)
