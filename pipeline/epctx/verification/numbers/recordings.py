"""Outputs of generating sessions, kept by the inputs that they were computed from.

Shared QNN contexts can be checked without an NPU only in the sessions that made them (real-eps.md
section 6). The worker that compiles writes what they computed; verify compares it, so a tolerance
can change without a compile. One folder for each model and input set, with an `output_K.pb`
(TensorProto, named) for each output, as in ONNX's own test data.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from msgspec import Struct
from onnx import numpy_helper

from epctx import codec
from epctx.errors import StorageError
from epctx.graph.inputs import Array
from epctx.providers.base import Boundary
from epctx.runtime import feeds as feeds_
from epctx.runtime.feeds import Feeds
from epctx.verification.numbers.sizes import Sizes

T = TypeVar("T")

_REFUSAL = "not_recorded.json"
_SIZES = "sizes.json"
_BOUNDARIES = "boundaries.json"
_VARIANTS = "variants.json"


def write(folder: Path, model: str, feeds: Feeds, outputs: Mapping[str, Array]) -> None:
    """Keep the outputs, by name, of the manifest's `model` for these inputs: all, or none if its
    process ends meanwhile.

    Raises:
        StorageError: the disk refuses.
    """
    place = _place(folder, model, feeds)
    unfinished = place.with_suffix(".part")
    with _writing(place):
        unfinished.mkdir(parents=True, exist_ok=True)
        for number, (name, array) in enumerate(outputs.items()):
            tensor = numpy_helper.from_array(np.asarray(array), name)
            (unfinished / f"output_{number}.pb").write_bytes(tensor.SerializeToString())
        shutil.rmtree(place, ignore_errors=True)
        unfinished.rename(place)


def refuse(folder: Path, model: str, reason: str) -> None:
    """Keep why the generating sessions of the manifest's `model` cannot tell what it computes.

    Raises:
        StorageError: the disk refuses.
    """
    _keep(folder / model / _REFUSAL, reason)


def refusal(folder: Path, model: str) -> str | None:
    """What `refuse` has kept; None: nothing.

    Raises:
        StorageError: what was kept cannot be read.
    """
    return _kept(folder / model / _REFUSAL, str)


def read(folder: Path, model: str, feeds: Feeds) -> dict[str, Array] | None:
    """What was kept for these inputs; None: nothing was.

    Raises:
        StorageError: what was kept cannot be read.
    """
    place = _place(folder, model, feeds)
    if not place.is_dir():
        return None
    found: dict[str, Array] = {}
    for path in sorted(place.glob("output_*.pb")):
        try:
            tensor = onnx.TensorProto.FromString(path.read_bytes())
            found[tensor.name] = numpy_helper.to_array(tensor)
        except (OSError, DecodeError, ValueError, TypeError, KeyError) as error:
            raise _broken(path, error) from error
    return found


def write_sizes(folder: Path, model: str, found: Sequence[Sizes]) -> None:
    """Keep at which sizes of its open dimensions the manifest's `model` is run.

    Raises:
        StorageError: the disk refuses.
    """
    _keep(folder / model / _SIZES, tuple(found))


def read_sizes(folder: Path, model: str) -> tuple[Sizes, ...] | None:
    """What `write_sizes` has kept; None: nothing.

    Raises:
        StorageError: what was kept cannot be read.
    """
    return _kept(folder / model / _SIZES, tuple[Sizes, ...])


def write_boundaries(folder: Path, model: str, found: Sequence[Boundary]) -> None:
    """Keep what the EPContext nodes of the manifest's `model` were to its generating sessions.

    Raises:
        StorageError: the disk refuses.
    """
    _keep(folder / model / _BOUNDARIES, tuple(found))


def read_boundaries(folder: Path, model: str) -> tuple[Boundary, ...]:
    """What `write_boundaries` has kept; nothing where an EP does not tell.

    Raises:
        StorageError: what was kept cannot be read.
    """
    return _kept(folder / model / _BOUNDARIES, tuple[Boundary, ...]) or ()


class Variant(Struct, frozen=True, kw_only=True):
    """A device for which the files hold a model, among others; its sessions were made for it alone.

    Attributes:
        name: in words.
        place: the name under which what they compute is kept.
        begun: they were made.
        misfit: in what its graphs in the files are others; None: in nothing that can be told.
    """

    name: str
    place: str
    begun: bool = True
    misfit: str | None = None


def write_variants(folder: Path, model: str, found: Sequence[Variant]) -> None:
    """Keep for which devices the manifest's `model` was run.

    Raises:
        StorageError: the disk refuses.
    """
    _keep(folder / model / _VARIANTS, tuple(found))


def read_variants(folder: Path, model: str) -> tuple[Variant, ...]:
    """What `write_variants` has kept; where there is none, the sessions that compiled were run.

    Raises:
        StorageError: what was kept cannot be read.
    """
    return _kept(folder / model / _VARIANTS, tuple[Variant, ...]) or (
        Variant(name="", place=model),
    )


def _keep(place: Path, what: object) -> None:
    with _writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(codec.encode(what))


def _kept(place: Path, kind: type[T]) -> T | None:
    if not place.is_file():
        return None
    try:
        return codec.decode(place.read_bytes(), kind)
    except (OSError, msgspec.DecodeError) as error:
        raise _broken(place, error) from error


def _writing(place: Path) -> AbstractContextManager[None]:
    return StorageError.if_refused("cannot be written", file=str(place), remedy="free some space")


def _broken(place: Path, error: Exception) -> StorageError:
    return StorageError(
        "a recorded output is broken",
        file=str(place),
        why=str(error),
        remedy="build again without the cache",
    )


def _place(folder: Path, model: str, feeds: Feeds) -> Path:
    return folder / model / feeds_.digest(feeds)[:32]
