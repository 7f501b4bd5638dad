"""Records of what a manifest asks for, as they are in keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from epctx.cache.digests import FileDigests
from epctx.errors import ModelError
from epctx.files.digest import Digest
from epctx.files.regular import absent
from epctx.keys.records import (
    CalibrateRecord,
    CalibrationRecord,
    ComposedModel,
    InputsRecord,
    ReferenceRecord,
    VerifiedModel,
)
from epctx.keys.source_digests import SourceDigests
from epctx.keys.toolchain import Toolchain
from epctx.manifest import (
    CompositionPart,
    ModelGroup,
    ModelSource,
    VerifyInputs,
)

Facts = Mapping[str, str]


def calibration(
    optimized: Digest, group: ModelGroup, samples: Sequence[Digest]
) -> CalibrationRecord:
    """What the ranges of a float model are found with.

    Args:
        optimized: digest of the optimized model.
        group: of the model; it is quantized.
        samples: digests of the files with samples.
    """
    settings = group.quantize
    assert settings is not None
    asked = settings.calibration
    shaping = {
        "exclude_nodes": sorted(set(settings.exclude_nodes)),
        "pieces": group.pieces,
        "weight_only": settings.weight_only,
    }
    return CalibrationRecord(
        model=str(optimized),
        preset=group.preset,
        settings={
            "activations": settings.activations,
            "exclude_op_types": sorted(set(settings.exclude_op_types)),
            "method": settings.method,
            "symmetric": settings.symmetric,
            "weights": settings.weights,
            **{name: value for name, value in shaping.items() if value},
        },
        samples=tuple(map(str, samples)),
        count=asked.count,
    )


def calibrate(calibration: Digest, devices: Facts, code: Facts) -> CalibrateRecord:
    """The record of one model's calibrate action; `calibration` is the key of its record."""
    return CalibrateRecord(calibration=str(calibration), devices=devices, toolchain=code)


def part(
    part: CompositionPart,
    group: ModelGroup,
    outputs: Mapping[str, Digest],
    source: tuple[ModelSource, SourceDigests],
    toolchain: Toolchain,
) -> ComposedModel:
    """A part of a composition, as it is in the key of that.

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
        source=verified(*source),
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


def verified(
    source: ModelSource, found: SourceDigests, reference: SourceDigests | None = None
) -> VerifiedModel:
    """Return a model as it is in the keys of what runs and judges it.

    Args:
        found: digests of the source.
        reference: those of its reference, if it has one.
    """
    asked = source.reference
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
