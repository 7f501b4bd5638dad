"""Records behind keys, for fields that no action has itself (design section 9).

A record holds everything that can change the result of its action, and nothing else: no path, no
name of a target, group, manifest or EP alias, no time limit, no number of jobs. If the meaning of a
field changes, change the `version` of its record. The keys of actions contain the code of epctx
anyway; the digest of a `CalibrationRecord` does not.

Digests are written `blake3:<hex>`. `toolchain` holds digests of epctx's sources and versions of the
libraries that run the action (`Toolchain.of`). `devices` describes the CPU and the drivers that run
models.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from epctx.cache.digests import FileDigests
from epctx.errors import ModelError
from epctx.files import digest
from epctx.files.digest import Digest
from epctx.files.regular import absent
from epctx.keys.source_digests import SourceDigests
from epctx.keys.toolchain import ProviderRecord, Toolchain
from epctx.manifest import (
    CompositionPart,
    ModelGroup,
    ModelSource,
    Tolerance,
    VerifyInputs,
)


class CalibrationRecord(Struct, frozen=True, kw_only=True):
    """Inputs of a calibration; its digest names the ranges in `<stem>.ranges.json`.

    It names neither the host nor a library, since measured ranges are valid everywhere.

    Attributes:
        model: digest of the optimized float model.
        preset: preset of the settings: qnn, openvino, cpu.
        settings: settings of `quantize` that calibration uses.
        samples: digests of the sample files, in the manifest's order; empty for generated samples.
        count: maximum number of samples; None for all.
    """

    action: Literal["calibration"] = "calibration"
    version: Literal[1] = 1
    model: str
    preset: str
    settings: Mapping[str, Any]
    samples: tuple[str, ...]
    count: int | None


class CalibrateRecord(Struct, frozen=True, kw_only=True):
    """Key of *calibrate* for one model. It runs the model, so it depends on the host.

    Attributes:
        calibration: digest of its CalibrationRecord.
    """

    action: Literal["calibrate"] = "calibrate"
    version: Literal[1] = 1
    calibration: str
    devices: Mapping[str, str]
    toolchain: Mapping[str, str]


class InputsRecord(Struct, frozen=True, kw_only=True):
    """Inputs of the models (`verify.inputs`).

    Attributes:
        seed: seed of the generator; 0 with files.
        count: number of input sets; 0 with files.
        ranges: (low, high), both inclusive, by input name.
        dimensions: sizes of open dimensions.
        files: digests of the input files, in the manifest's order.
    """

    seed: int
    count: int
    ranges: Mapping[str, tuple[float, float]]
    dimensions: Mapping[str, tuple[int, ...]]
    files: tuple[str, ...]


class ReferenceRecord(Struct, frozen=True, kw_only=True):
    """`reference` of a model; `model` and `data` as in Optimize."""

    model: str
    data: tuple[str, ...]
    tolerance: Tolerance


class VerifiedModel(Struct, frozen=True, kw_only=True):
    """A model to verify: its name, and the source model to compare with.

    Attributes:
        model, data, dimensions, shapes: as in Optimize.
        reference: another model to compare with; None if there is none.
    """

    name: str
    model: str
    data: tuple[str, ...]
    dimensions: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    reference: ReferenceRecord | None


class ComposedModel(Struct, frozen=True, kw_only=True):
    """A part of a composition.

    Attributes:
        part: its name, which separates files and metadata of parts.
        name: name of the model.
        outputs: digests of the files of its session group, by name.
        prefix: prefix of its names.
        links: part and output that feed an input, by input.
        inputs: composition input that feeds an input, by input.
        providers: EPs of its group, in priority order.
        source: its source model, for input ranges and precision.
    """

    part: str
    name: str
    outputs: Mapping[str, str]
    prefix: str
    links: Mapping[str, tuple[str, str]]
    inputs: Mapping[str, str]
    providers: tuple[ProviderRecord, ...]
    source: VerifiedModel


def key(record: object) -> Digest:
    """Return the key of an action: BLAKE3 of its record's canonical JSON."""
    return digest.of_json(msgspec.to_builtins(record))


Facts = Mapping[str, str]


def calibration(
    optimized: Digest, group: ModelGroup, samples: Sequence[Digest]
) -> CalibrationRecord:
    """Return the inputs of a float model's calibration.

    Args:
        optimized: digest of the optimized model.
        group: the quantized group of the model.
        samples: digests of the sample files.
    """
    settings = group.quantize
    assert settings is not None
    calibration_settings = settings.calibration
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
        count=calibration_settings.count,
    )


def calibrate(calibration: Digest, devices: Facts, code: Facts) -> CalibrateRecord:
    """Return the record of a calibrate action; `calibration` is the digest of its inputs."""
    return CalibrateRecord(calibration=str(calibration), devices=devices, toolchain=code)


def part(
    part: CompositionPart,
    group: ModelGroup,
    outputs: Mapping[str, Digest],
    source: tuple[ModelSource, SourceDigests],
    toolchain: Toolchain,
) -> ComposedModel:
    """Return the record of a part of a composition.

    Args:
        part: the part in the manifest.
        group: the group that built it.
        outputs: digests of the files of its session group, by name.
        source: the source of its model.
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
    """Return the record of the inputs of models.

    Raises:
        ModelError: a file cannot be read.
    """
    from_files = bool(settings.files)
    return InputsRecord(
        seed=0 if from_files else settings.seed,
        count=0 if from_files else settings.count,
        ranges={} if from_files else dict(settings.ranges),
        dimensions={} if from_files else dict(settings.dimensions),
        files=tuple(str(_given(path, digests, "verify.inputs.files")) for path in settings.files),
    )


def sample(path: Path, digests: FileDigests) -> Digest:
    """Return the digest of a calibration file.

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
    source: ModelSource, digests: SourceDigests, reference: SourceDigests | None = None
) -> VerifiedModel:
    """Return the record of a model, for the keys of its runs and verification.

    Args:
        digests: digests of the source.
        reference: digests of its reference, if it has one.
    """
    settings = source.reference
    return VerifiedModel(
        name=source.name,
        model=str(digests.model),
        data=tuple(map(str, digests.data)),
        dimensions=dict(source.dimensions),
        shapes=dict(source.shapes),
        reference=None
        if settings is None or reference is None
        else ReferenceRecord(
            model=str(reference.model),
            data=tuple(map(str, reference.data)),
            tolerance=settings.tolerance,
        ),
    )


_ABSENT = object()


class Change(Struct, frozen=True, kw_only=True):
    """A field that differs.

    Attributes:
        field: its path in the record: `providers[0].options.soc_model`.
        old: its old value as JSON; None if it is new.
        new: its new value as JSON; None if it is gone.
    """

    field: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        if self.old is None:
            return f"{self.field}: {self.new} is new"
        if self.new is None:
            return f"{self.field}: {self.old} is gone"
        return f"{self.field}: {self.old} is now {self.new}"


def between(old: object, new: object) -> tuple[Change, ...]:
    """Return the fields that differ between two records, in the new one's order. A record is a
    struct, or its JSON as `msgspec.Raw`.
    """
    return tuple(_differences("", _plain(old), _plain(new)))


def _plain(record: object) -> object:
    if isinstance(record, msgspec.Raw):
        return msgspec.json.decode(record)
    return msgspec.json.decode(msgspec.json.encode(record))


def _differences(path: str, old: object, new: object) -> Iterator[Change]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys([*new, *old]):
            field = f"{path}.{name}" if path else str(name)
            yield from _differences(field, old.get(name, _ABSENT), new.get(name, _ABSENT))
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            sides = (side[index] if index < len(side) else _ABSENT for side in (old, new))
            yield from _differences(f"{path}[{index}]", *sides)
    elif old != new or type(old) is not type(new):
        yield Change(field=path, old=_text(old), new=_text(new))


def _text(value: object) -> str | None:
    if value is _ABSENT:
        return None
    return json.dumps(value, ensure_ascii=False)
