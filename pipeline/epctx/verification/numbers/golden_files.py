"""Golden inputs and expected outputs on disk, for a device that has no source model.

    golden/golden.json      input sets of each model, names of inputs and outputs, tolerance
    golden/<model>.npz      arrays `<set number>/inputs/<name>` and `…/outputs/<name>`
    golden/SHA256SUMS       sums of the files above

The same arrays give the same bytes: no time or system is recorded, nothing is compressed. Reading
unpickles nothing. It refuses compressed members, so it takes no more memory than the file has
bytes.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
from msgspec import Struct

from epctx import codec, limits
from epctx.errors import VerificationError
from epctx.files import outputs
from epctx.graph.inputs import Array
from epctx.inference.feeds import Feeds
from epctx.limits import Limit
from epctx.manifest import Tolerance
from epctx.verification.numbers.tolerances import Precisions

FOLDER: Final = outputs.GOLDEN
RECORD: Final = "golden.json"
_TIME: Final = (1980, 1, 1, 0, 0, 0)
_UNIX: Final = 3


class GoldenSet(Struct, frozen=True, kw_only=True):
    """An input set of a model: its label, names of its inputs and outputs."""

    label: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class GoldenModel(Struct, frozen=True, kw_only=True):
    """A model's input sets, and how its outputs are judged.

    Attributes:
        precision: precision of each output of the source model; one for all in files of epctx 0.1.
        probabilities: outputs that end in a Sigmoid or Softmax.
        tolerance: limits of the manifest; None in a field for the default of the EP.
    """

    precision: Precisions
    tolerance: Tolerance
    sets: tuple[GoldenSet, ...]
    probabilities: tuple[str, ...] = ()


class Golden(Struct, frozen=True, kw_only=True):
    """Content of golden.json: models by name."""

    version: Literal[1] = 1
    models: Mapping[str, GoldenModel]


class GoldenCase(Struct, frozen=True, kw_only=True):
    """An input set with its values, and the golden outputs."""

    label: str
    inputs: Feeds
    outputs: Feeds


def write(path: Path, cases: Sequence[GoldenCase]) -> None:
    """Write a model's `.npz`. Raises OSError."""
    with zipfile.ZipFile(path, "x", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for number, case in enumerate(cases):
            for kind, arrays in (("inputs", case.inputs), ("outputs", case.outputs)):
                for name, array in sorted(arrays.items()):
                    _write(archive, f"{number}/{kind}/{name}.npy", array)


def _write(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    info = zipfile.ZipInfo(name, _TIME)
    info.create_system = _UNIX
    info.external_attr = 0o644 << 16
    plain = array.astype(str) if array.dtype.kind == "O" else array
    with archive.open(info, "w", force_zip64=True) as stream:
        np.lib.format.write_array(
            stream, np.asarray(plain, order="C"), version=(1, 0), allow_pickle=False
        )


def read_record(folder: Path) -> Golden:
    """Read the golden.json of a golden folder.

    Raises:
        VerificationError: it is missing or broken.
    """
    path = folder / RECORD
    try:
        _require_bounded(path, limits.RECORD_BYTES)
        return codec.decode(path.read_bytes(), Golden)
    except (OSError, msgspec.MsgspecError) as error:
        raise _broken(path, error) from error


def read(folder: Path, name: str, model: GoldenModel) -> tuple[GoldenCase, ...]:
    """Read the input sets of a model.

    Raises:
        VerificationError: the file is missing, broken or compressed.
    """
    path = folder / f"{name}.npz"
    try:
        _require_bounded(path, limits.UNPACKED_BYTES)
        with zipfile.ZipFile(path) as archive:
            return tuple(_case(archive, number, each) for number, each in enumerate(model.sets))
    except VerificationError:
        raise
    except (
        Exception
    ) as error:  # numpy's readers promise no classes: those of zipfile, tokenize, ...
        raise _broken(path, error) from error


def _require_bounded(path: Path, limit: Limit) -> None:
    size = path.stat().st_size
    if size > limit.value:
        raise VerificationError(
            f"has {size:,} bytes, more than {limit}",
            where=f"{FOLDER}/{path.name}",
            remedy=limit.remedy,
        )


def _case(archive: zipfile.ZipFile, number: int, given: GoldenSet) -> GoldenCase:
    return GoldenCase(
        label=given.label,
        inputs={
            name: _read(archive, f"{number}/inputs/{name}.npy")
            for name in dict.fromkeys(given.inputs)
        },
        outputs={
            name: _read(archive, f"{number}/outputs/{name}.npy")
            for name in dict.fromkeys(given.outputs)
        },
    )


def _read(archive: zipfile.ZipFile, name: str) -> Array:
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    with archive.open(info) as stream:
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
        return array


def _broken(path: Path, error: Exception) -> VerificationError:
    why = str(error.args[0] if isinstance(error, KeyError) else error)
    return VerificationError(
        "cannot be read as golden inputs and outputs",
        where=f"{FOLDER}/{path.name}",
        why="it does not exist" if isinstance(error, FileNotFoundError) else why,
        remedy="write them with `epctx build --golden`, and ship the folder with the model",
    )
