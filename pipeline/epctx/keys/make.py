"""The records of a manifest's actions; `toolchain` is always that of this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from epctx.cache.digests import FileDigests
from epctx.errors import ModelError
from epctx.files import digest
from epctx.files.digest import Digest
from epctx.files.regular import absent
from epctx.keys.records import (
    CalibrateRecord,
    CalibrationRecord,
    CompiledModel,
    CompileRecord,
    ComposedModel,
    ComposeRecord,
    FolderRecord,
    InputsRecord,
    OptimizeRecord,
    QuantizeRecord,
    RecordingRecord,
    ReferenceRecord,
    VerifiedModel,
    VerifyRecord,
)
from epctx.keys.source_digests import SourceDigests
from epctx.keys.toolchain import Toolchain
from epctx.manifest import (
    Calibration,
    Composition,
    CompositionPart,
    ModelGroup,
    ModelSource,
    OptimizeSettings,
    QuantizeSettings,
    VerifyInputs,
)

_NO_BYTES: Final = ("calibration", "preset", "tolerance")
"""Of `quantize`, what is in the record otherwise, or reaches no byte."""


def optimize(
    source: ModelSource, found: SourceDigests, settings: OptimizeSettings, toolchain: Toolchain
) -> OptimizeRecord:
    """The record of one model's optimize action.

    Raises:
        ManifestError: a pass that does not exist.
    """
    return OptimizeRecord(
        model=str(found.model),
        data=tuple(map(str, found.data)),
        dimensions=dict(source.dimensions),
        shapes=dict(source.shapes),
        level=settings.level,
        passes=settings.passes,
        extensions=toolchain.passes(settings.passes),
        toolchain=toolchain.of("optimize"),
    )


def calibration(
    optimized: Digest, settings: QuantizeSettings, preset: str, samples: Sequence[Digest]
) -> CalibrationRecord:
    """What the ranges of a float model are found with.

    Args:
        optimized: digest of the optimized model.
        settings: of its group.
        preset: whose settings, resolved.
        samples: digests of the files with samples.
    """
    asked = settings.calibration
    return CalibrationRecord(
        model=str(optimized),
        preset=preset,
        settings={
            "activations": settings.activations,
            "exclude_op_types": sorted(set(settings.exclude_op_types)),
            "method": settings.method,
            "symmetric": settings.symmetric,
            "weights": settings.weights,
        },
        samples=tuple(map(str, samples)),
        count=asked.count,
    )


def calibrate(calibration: Digest, toolchain: Toolchain) -> CalibrateRecord:
    """The record of one model's calibrate action; `calibration` is the key of its record."""
    return CalibrateRecord(
        calibration=str(calibration),
        devices=toolchain.devices(()),
        toolchain=toolchain.of("quantize"),
    )


def quantize(
    calibration: CalibrationRecord,
    settings: QuantizeSettings,
    ranges: str | None,
    toolchain: Toolchain,
) -> QuantizeRecord:
    """The record of one model's quantize action; `ranges` as they were found or are locked."""
    return QuantizeRecord(
        model=calibration.model,
        preset=calibration.preset,
        settings=settings_of(settings),
        ranges=None if ranges is None else str(digest.of_bytes(ranges.encode())),
        samples=calibration.samples,
        toolchain=toolchain.of("quantize"),
    )


def settings_of(settings: QuantizeSettings) -> dict[str, Any]:
    """What `quantize` says that changes bytes, beside the preset and the samples."""
    known: dict[str, Any] = msgspec.to_builtins(replace(settings, calibration=Calibration()))
    return {name: value for name, value in known.items() if name not in _NO_BYTES}


def compile(
    group: ModelGroup,
    optimized: Mapping[str, Digest],
    toolchain: Toolchain,
) -> CompileRecord:
    """The record of a session group's compile action.

    Args:
        group: the model group that it belongs to.
        optimized: the session group's models in order, each with its optimized digest.

    Raises:
        ProviderUnavailable: an EP is not installed, or its package is broken.
        ManifestError: an EP refuses its options.
    """
    return CompileRecord(
        models=tuple(
            CompiledModel(name=name, optimized=str(content)) for name, content in optimized.items()
        ),
        embed_mode=group.embed_mode,
        node_name_prefix=group.node_name_prefix,
        partition=group.partition,
        session_options=dict(group.session_options),
        external_initializers=group.external_initializers,
        providers=tuple(toolchain.provider(spec) for spec in group.execution_providers),
        toolchain=toolchain.of("compile"),
    )


def recording(
    group: ModelGroup,
    compiled: Digest,
    inputs: InputsRecord | None,
    devices: Mapping[str, str],
    toolchain: Toolchain,
) -> RecordingRecord:
    """The record of what a session group's generating sessions computed on `inputs`; None: that
    they are not to be run.

    Args:
        devices: what runs them.
    """
    return RecordingRecord(
        compile=str(compiled),
        inputs=inputs,
        numbers=group.verify.numbers,
        budget=None if inputs is None else group.verify.budget,
        devices=devices,
        toolchain=toolchain.of("verify"),
    )


def folder(
    sessions: Sequence[Digest], outputs: Mapping[str, Digest], toolchain: Toolchain
) -> FolderRecord:
    """The record of what is verified of a model group's folder as a whole.

    Args:
        sessions: the keys of its session groups' verify actions.
        outputs: every file of the folder, by name.
    """
    return FolderRecord(
        sessions=tuple(map(str, sessions)),
        outputs={name: str(content) for name, content in outputs.items()},
        toolchain=toolchain.of("verify"),
    )


def verify(
    group: ModelGroup,
    *,
    compiled: Digest,
    outputs: Mapping[str, Digest],
    models: Sequence[tuple[ModelSource, SourceDigests]],
    references: Mapping[str, SourceDigests],
    inputs: InputsRecord | None,
    devices: Mapping[str, str],
    toolchain: Toolchain,
) -> VerifyRecord:
    """The record of a session group's verify action.

    Args:
        group: the model group that it belongs to.
        compiled: the key of its compile action.
        outputs: file name to digest.
        models: the session group's models in order, each with its source's digests.
        references: those of the models' references, by the model's name.
        inputs: what they are run with; None: they are not.
        devices: what runs them.
    """
    settings = group.verify
    return VerifyRecord(
        compile=str(compiled),
        outputs={name: str(content) for name, content in outputs.items()},
        models=tuple(_verified(source, found, references) for source, found in models),
        inputs=inputs,
        tolerance=settings.tolerance,
        numbers="skipped" if inputs is None and settings.numbers != "off" else settings.numbers,
        budget=None if inputs is None else settings.budget,
        allow_nonfinite=settings.allow_nonfinite,
        devices=devices,
        toolchain=toolchain.of("verify"),
    )


def compose(
    composition: Composition,
    parts: Sequence[ComposedModel],
    *,
    inputs: InputsRecord | None,
    devices: Mapping[str, str],
    toolchain: Toolchain,
) -> ComposeRecord:
    """The record of a composition's compose action.

    Args:
        composition: what the manifest says.
        parts: as they were built.
        inputs: what it is run with; None: it is not.
        devices: what runs it here.
    """
    settings, outputs = composition.verify, composition.outputs
    return ComposeRecord(
        name=composition.name,
        parts=tuple(parts),
        outputs=None if outputs is None else {n: (o.part, o.output) for n, o in outputs.items()},
        embed_mode=composition.embed_mode,
        given=inputs,
        tolerance=settings.tolerance,
        numbers="skipped" if inputs is None and settings.numbers != "off" else settings.numbers,
        devices=devices,
        toolchain=toolchain.of("compose"),
    )


def part(
    part: CompositionPart,
    group: ModelGroup,
    outputs: Mapping[str, Digest],
    source: tuple[ModelSource, SourceDigests],
    toolchain: Toolchain,
) -> ComposedModel:
    """A part's part of that record.

    Args:
        part: what the manifest says.
        group: that built it.
        outputs: the files of its session group: name to digest.
        source: what it was built from.
    """
    return ComposedModel(
        part=part.name,
        name=part.model,
        outputs={name: str(content) for name, content in outputs.items()},
        prefix=part.prefix,
        links={name: (origin.part, origin.output) for name, origin in part.links.items()},
        inputs=dict(part.inputs),
        providers=tuple(toolchain.provider(spec) for spec in group.execution_providers),
        source=_verified(*source, {}),
    )


def inputs(settings: VerifyInputs, digests: FileDigests) -> InputsRecord:
    """What models are run with.

    Raises:
        ModelError: a file cannot be read.
    """
    given = bool(settings.files)
    return InputsRecord(
        seed=0 if given else settings.seed,
        count=0 if given else settings.count,
        ranges={} if given else dict(settings.ranges),
        dimensions={} if given else dict(settings.dimensions),
        files=tuple(str(_given(path, digests, "verify.inputs.files")) for path in settings.files),
    )


def sample(path: Path, digests: FileDigests) -> Digest:
    """A file that models are calibrated with.

    Raises:
        ModelError: it cannot be read.
    """
    return _given(path, digests, "quantize.calibration.files")


def _given(path: Path, digests: FileDigests, key: str) -> Digest:
    if not path.exists():
        raise absent(path)
    with ModelError.if_refused("cannot be read", file=str(path), remedy=f"correct `{key}`"):
        return digests.of(path)


def _verified(
    source: ModelSource, found: SourceDigests, references: Mapping[str, SourceDigests]
) -> VerifiedModel:
    asked, reference = source.reference, references.get(source.name)
    return VerifiedModel(
        name=source.name,
        model=str(found.model),
        data=tuple(map(str, found.data)),
        dimensions=dict(source.dimensions),
        shapes=dict(source.shapes),
        reference=None
        if asked is None or reference is None
        else ReferenceRecord(
            model=str(reference.model),
            data=tuple(map(str, reference.data)),
            tolerance=asked.tolerance,
        ),
    )
