"""What keys are digests of where no action says it itself: versioned, canonical (design section 9).

A record holds all that can change what its action makes, and nothing else: never a path, never the
name of a target, a group, a manifest or an EP's alias, no time limit, no number of jobs. Change the
`version` of a record with the meaning of a field; epctx's own code is in every record anyway.

Digests are written `blake3:<hex>`. In all records `toolchain` is of epctx's sources and of the
libraries that carry out the action (`Toolchain.of`), `devices` of what runs models here (CPU,
drivers), and `budget` is in seconds, None being no limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from epctx.files import digest
from epctx.files.digest import Digest
from epctx.manifest import OptionValue, Tolerance


class CalibrationRecord(Struct, frozen=True, kw_only=True):
    """What the ranges of a model's tensors are found with: their name in `<stem>.ranges.json`.

    Neither host nor library is in it: ranges that were found once hold everywhere.

    Attributes:
        model: digest of the optimized float model.
        preset: whose settings: qnn, openvino, cpu.
        settings: of `quantize`, those that calibration looks at.
        samples: digests of the files with samples, in the manifest's order; none: generated.
        count: how many samples at most; None: all.
    """

    action: Literal["calibration"] = "calibration"
    version: Literal[1] = 1
    model: str
    preset: str
    settings: Mapping[str, Any]
    samples: tuple[str, ...]
    count: int | None


class CalibrateRecord(Struct, frozen=True, kw_only=True):
    """Key of *calibrate*, of one model: it runs the model, so it depends on this host.

    Attributes:
        calibration: the digest of its CalibrationRecord.
    """

    action: Literal["calibrate"] = "calibrate"
    version: Literal[1] = 1
    calibration: str
    devices: Mapping[str, str]
    toolchain: Mapping[str, str]


class ProviderRecord(Struct, frozen=True, kw_only=True):
    """An EP of the model group, bound to its options.

    Attributes:
        provider: ONNX Runtime's name of it.
        options: as the EP is given them; of one that is a path, the digest of what is there.
        code: who brings it, and the digest of its code: `epctx blake3:…`, `package 1.2 blake3:…`.
        toolchain: what its fingerprint says: versions, digests of libraries.
        host: facts of the host that its bytes depend on.
    """

    provider: str
    options: Mapping[str, OptionValue]
    code: str
    toolchain: Mapping[str, str]
    host: Mapping[str, str]


class InputsRecord(Struct, frozen=True, kw_only=True):
    """`verify.inputs`: what the models are run with.

    Attributes:
        seed: of the generator; 0 where files are given.
        count: input sets; 0 where files are given.
        ranges: input name to (low, high), both inclusive.
        dimensions: sizes of dimensions that models leave open.
        files: digests of files with inputs, in the manifest's order.
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
    """A model to verify: its name, and the source model that it is compared with.

    Attributes:
        model, data, dimensions, shapes: as in Optimize.
        reference: what else it is compared with.
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
        part: its name: of files that clash, and of metadata in which parts differ.
        name: of the model.
        outputs: the files of its session group: name to digest.
        prefix: before its names.
        links: input to the part and the output that feed it.
        inputs: input to the composition's input that feeds it.
        providers: its group's EPs, in priority order.
        source: with what it is compared, for the range of inputs and its precision.
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
    """The key of an action: BLAKE3 of its record's canonical JSON, be it a struct or plain."""
    return digest.of_json(msgspec.to_builtins(record))
