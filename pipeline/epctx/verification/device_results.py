"""Results that a kit's check_device.py wrote on a device: untrusted JSON, read with limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from epctx import codec, limits
from epctx.errors import UsageError
from epctx.files.entries import read_document

Seconds = Annotated[float, Meta(ge=0)]


class Device(Struct, frozen=True, kw_only=True):
    """A device that models were loaded on. `drivers`: its drivers and their versions."""

    ep: str
    kind: str
    vendor: str = ""
    drivers: Mapping[str, str]
    metadata: Mapping[str, str] = {}


class ResultSet(Struct, frozen=True, kw_only=True):
    """An input set that was run, and the names of its outputs."""

    label: str
    outputs: tuple[str, ...]


class DeviceModel(Struct, frozen=True, kw_only=True):
    """Results of one model, `<target>/<group>/<model>`.

    Attributes:
        files: SHA-256 of each loaded file, by name.
        problems: failures, in words.
        compatibility: ONNX Runtime's verdict on the device, by EP.
        load, first, median, p99: seconds of loading and of inferences; None if the model was not
            run.
        outputs: a `.npz` beside the results, with its `sha256`; None if the model was not run.
    """

    model: str
    files: Mapping[str, str] = {}
    problems: tuple[str, ...] = ()
    compatibility: Mapping[str, str] = {}
    load: Seconds | None = None
    first: Seconds | None = None
    median: Seconds | None = None
    p99: Seconds | None = None
    runs: Annotated[int, Meta(ge=0)] = 0
    sets: tuple[ResultSet, ...] = ()
    outputs: str | None = None
    sha256: str | None = None


class DeviceResults(Struct, frozen=True, kw_only=True):
    """Results file of check_device.py. `expect_driver`: driver that the kit or user requires."""

    version: Literal[1]
    made: str
    host: Mapping[str, str]
    packages: Mapping[str, str]
    built_with: Mapping[str, str]
    expect_driver: str | None
    devices: tuple[Device, ...]
    models: tuple[DeviceModel, ...]


def read(path: Path) -> DeviceResults:
    """Read the results of a device.

    Raises:
        UsageError: the file cannot be read, or has other content.
    """
    most, remedy = limits.RECORD_BYTES, "name the file that check_device.py wrote"
    with UsageError.if_refused("cannot be read", file=path.as_posix(), remedy=remedy):
        content = read_document(path, most.value)
    try:
        if len(content) > most.value:
            raise msgspec.DecodeError(f"it is larger than {most}")
        results = codec.decode(content, DeviceResults)
    except msgspec.DecodeError as error:
        message = "was not written by check_device.py"
        raise UsageError(message, file=path.as_posix(), why=str(error), remedy=remedy) from error
    names = [each.model for each in results.models]
    if len(names) != len(set(names)):
        message = "has several results for one model"
        raise UsageError(message, file=path.as_posix(), remedy=remedy)
    return results
