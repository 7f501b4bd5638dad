"""Values for the inputs of a model: seeded and random, or from files.

A generated value depends only on the seed, the number of the set and the input's name, not on the
order of inputs or on other inputs.

Files are numpy's (`.npz` by name, `.npy` for a model of one input) or ONNX's TensorProtos (`.pb`).
The files `input_K.pb` in one folder form one set, as in ONNX's test data (`test_data_set_N`). Each
belongs to the input that it names, else to the K-th input.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

import ml_dtypes
import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs
from msgspec import Struct, field
from msgspec.structs import replace

from epctx import limits
from epctx.error_codes import Code
from epctx.errors import ManifestError, ModelError, about
from epctx.graph.inputs import Array, Hint, InputSpec, Range
from epctx.text import did_you_mean

Feeds = dict[str, Array]
FEW: Range = (0, 1)
"""Default range of integers: valid for flags, masks, types and any index."""


def problems(inputs: Sequence[InputSpec], *, count: int) -> list[str]:
    """Return why `count` input sets cannot be generated; empty if they can."""
    reasons = [spec.problem for spec in inputs if spec.problem is not None]
    if not reasons:
        size = count * sum(map(_bytes, inputs))
        if size > limits.INPUT_BYTES.value:
            reasons.append(
                f"its generated inputs would take {size:,} bytes, more than {limits.INPUT_BYTES} "
                f"({limits.INPUT_BYTES.variable})"
            )
    return reasons


def _bytes(spec: InputSpec) -> int:
    assert spec.dtype is not None
    return math.prod(int(dim or 0) for dim in spec.shape) * spec.dtype.itemsize


def generate(
    inputs: Sequence[InputSpec],
    *,
    seed: int,
    index: int,
    ranges: Mapping[str, Range] | None = None,
) -> Feeds:
    """Generate input set number `index`: one value for each of `inputs`, which must have no
    `problems`.

    Without a range, values follow the graph (`InputSpec.hint`). Without a hint, floats are standard
    normal; 8- and 16-bit integers, which are quantized data, use their whole range; wider integers
    are 0 or 1; booleans are equally likely. Ranges are inclusive.

    Raises:
        ManifestError: a range is empty, outside its input's type, or without an integer in it.
    """
    given = ranges or {}
    return {spec.name: _generate(spec, _generator(seed, index, spec), given) for spec in inputs}


def assumed(inputs: Sequence[InputSpec], given: Mapping[str, Range]) -> str:
    """Describe the values that `generate` makes for inputs, as in `'x' 0 to 255 (why)`."""

    def words(spec: InputSpec) -> str:
        if spec.name in given:
            low, high = given[spec.name]
            return f"{low:g} to {high:g} (as given)"
        if spec.hint is not None and spec.hint.values:
            listed = ", ".join(f"{value:g}" for value in spec.hint.values)
            return f"{listed} ({spec.hint.why})"
        if spec.dtype is not None and spec.dtype.kind == "b":
            return "true or false"
        if spec.hint is not None:
            return f"{spec.hint.low:g} to {spec.hint.high:g} ({spec.hint.why})"
        if spec.dtype is None or spec.dtype.kind not in "iu":
            return "normal about 0"
        return "all of its type" if spec.dtype.itemsize <= 2 else "0 or 1"

    return ", ".join(f"'{spec.name}' {words(spec)}" for spec in inputs)


def digest(feeds: Feeds) -> str:
    """Return the SHA-256 of an input set: names, types, shapes and values, by name."""
    hasher = hashlib.sha256()
    for name in sorted(feeds):
        array = feeds[name]
        hasher.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
        if array.dtype.kind == "O":  # strings: the array holds only references
            hasher.update(json.dumps(array.reshape(-1).tolist()).encode())
        else:
            hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()


def _generator(seed: int, index: int, spec: InputSpec) -> np.random.Generator:
    name = int.from_bytes(hashlib.sha256(spec.name.encode()).digest()[:16], "little")
    return np.random.Generator(np.random.PCG64([seed % 2**64, index, name]))


def _generate(spec: InputSpec, rng: np.random.Generator, ranges: Mapping[str, Range]) -> Array:
    assert spec.problem is None and spec.dtype is not None, spec.problem
    shape = tuple(int(dim) for dim in spec.shape if dim is not None)
    given = ranges.get(spec.name)
    values = () if given or spec.hint is None else spec.hint.values
    if values and len(values) in (1, math.prod(shape)):
        return np.resize(np.array(values), shape).astype(spec.dtype)
    if spec.dtype.kind == "b":
        low, high = _integers(spec, given or (0, 1), 0, 1)
        return rng.integers(low, high, shape, np.int64, endpoint=True).astype(np.bool_)
    if spec.dtype.kind in "iu":
        bounds = ml_dtypes.iinfo(spec.dtype)  # type: ignore[no-untyped-call]  # has no stubs
        whole = (int(bounds.min), int(bounds.max))
        default = spec.hint or (whole if spec.dtype.itemsize <= 2 else FEW)
        low_f, high_f = _within(default, whole)
        low, high = _integers(spec, given or (math.ceil(low_f), math.floor(high_f)), *whole)
        dtype = np.uint64 if spec.dtype.kind == "u" else np.int64
        return rng.integers(low, high, shape, dtype, endpoint=True).astype(spec.dtype)
    limit = float(ml_dtypes.finfo(spec.dtype).max)  # type: ignore[no-untyped-call]  # has no stubs
    if given is None:
        if spec.hint is None:
            return rng.standard_normal(shape, np.float64).astype(spec.dtype)
        given = _within(spec.hint, (-limit, limit))
    low_f, high_f = _floats(spec, given, limit)
    return rng.uniform(low_f, high_f, shape).astype(spec.dtype)


def _within(hint: Range | Hint, whole: Range) -> Range:
    """Clip a range to the range of a type."""
    return max(hint[0], whole[0]), min(hint[1], whole[1])


def _integers(spec: InputSpec, given: Range, least: int, most: int) -> tuple[int, int]:
    low, high = given
    if not low <= high:
        raise _bad_range(spec, given, "its low end is above its high end")
    if not (least <= low and high <= most):
        raise _bad_range(spec, given, f"{spec.kind} holds [{least}, {most}]")
    if low != int(low) or high != int(high):
        raise _bad_range(spec, given, f"{spec.kind} holds integers only")
    return int(low), int(high)


def _floats(spec: InputSpec, given: Range, limit: float) -> Range:
    low, high = given
    if not low <= high:
        raise _bad_range(spec, given, "its low end is above its high end")
    if not (-limit <= low and high <= limit):
        raise _bad_range(spec, given, f"{spec.kind} holds [-{limit:g}, {limit:g}]")
    if high - low == np.inf:
        raise _bad_range(spec, given, "its width is too large for float64")
    return low, high


def _bad_range(spec: InputSpec, given: Range, why: str) -> ManifestError:
    return ManifestError(
        f"the range [{given[0]:g}, {given[1]:g}] of input '{spec.name}' cannot be used",
        where="verify.inputs.ranges",
        why=why,
        remedy="change it to [low, high], both inclusive",
        code=Code.VERIFY_INPUTS,
    )


_INPUT = re.compile(r"input_(\d+)\.pb")
_OUTPUT = re.compile(r"output_\d+\.pb")
_REMEDY = "give each input by its name, with the type and shape that the model takes"


class InputSet(Struct, frozen=True, kw_only=True):
    """Values from files, not yet fitted to a model.

    Attributes:
        label: for people: `cases/a.npz`, `test_data_set_0`.
        named: by input name.
        positional: by the number of the input.
        unnamed: the values of a `.npy`, which has neither name nor number.
    """

    label: str
    named: Feeds = field(default_factory=dict)
    positional: Mapping[int, Array] = field(default_factory=dict)
    unnamed: Array | None = None


def read(files: Iterable[Path], *, key: str | None = None) -> tuple[InputSet, ...]:
    """Read the input sets of files, in their order. Files `output_K.pb` are ignored.

    Args:
        files: the files.
        key: manifest key that lists the files; None if they are not from the manifest.

    Raises:
        ModelError: a file is missing, of an unknown kind, or damaged.
    """
    sets: dict[Path, InputSet] = {}
    for path in files:
        with about(key=key):
            _read(sets, path)
    return tuple(sets.values())


def _read(sets: dict[Path, InputSet], path: Path) -> None:
    if path.exists() and not path.is_file():  # reading a pipe would block
        raise _broken(path, "it is not a regular file")
    if path.exists():
        _require_bounded(path, path.stat().st_size)
    if path.suffix in (".npz", ".npy"):
        sets[path] = _read_numpy(path)
    elif path.suffix == ".pb":
        if not _OUTPUT.fullmatch(path.name):
            _add_tensor(sets, path)
    else:
        raise ModelError(
            "is not a file of model inputs", file=str(path), remedy="use .npz, .npy or .pb files"
        )


def fit(values: InputSet, inputs: Sequence[InputSpec]) -> Feeds:
    """Return the set's value for each of `inputs`.

    Raises:
        ManifestError: a name is unknown or missing, or a value has another type or shape.
    """
    named = dict(values.named)
    for position, array in values.positional.items():
        if position >= len(inputs):
            raise _unfit(
                values, f"has a value for input {position}, but the model has {len(inputs)} inputs"
            )
        named.setdefault(inputs[position].name, array)
    if values.unnamed is not None:
        if len(inputs) != 1:
            raise _unfit(
                values, f"has one value without a name, but the model has {len(inputs)} inputs"
            )
        named[inputs[0].name] = values.unnamed
    specs = {spec.name: spec for spec in inputs}
    for name in named:
        if name not in specs:
            raise _unfit(
                values,
                f'names "{name}", which is not an input of the model',
                did_you_mean(name, specs),
            )
    missing = [name for name in specs if name not in named]
    if missing:
        raise _unfit(values, f"has no value for input {', '.join(map(repr, missing))}")
    return {name: _checked(values, spec, named[name]) for name, spec in specs.items()}


def _read_numpy(path: Path) -> InputSet:
    """Read each kind with its own reader, since `numpy.load` takes a damaged file for a pickle."""
    try:
        with path.open("rb") as stream:
            if path.suffix == ".npy":
                return InputSet(label=path.name, unnamed=_array(stream))
            with zipfile.ZipFile(stream) as archive:
                # A small file may unpack to a thousand times its size; each entry states its
                # unpacked size.
                _require_bounded(path, sum(entry.file_size for entry in archive.infolist()))
                names = archive.namelist()
                named = {n.removesuffix(".npy"): _array(archive.open(n)) for n in names}
                return InputSet(label=path.name, named=named)
    except ModelError:
        raise
    except OSError as error:
        raise _broken(path, error) from error
    except Exception as error:  # numpy's readers raise any class, also zlib's and tokenize's
        if "allow_pickle" in str(error):  # only arrays of objects fail this way
            raise _broken(path, "it holds Python objects, which epctx does not read") from error
        raise _broken(path, error, f"is damaged, or is not a {path.suffix} file") from error


def _array(stream: IO[bytes]) -> Array:
    array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _require_bounded(path: Path, size: int) -> None:
    limit = limits.UNPACKED_BYTES
    if size > limit.value:
        raise ModelError(
            f"holds {size} bytes, more than {limit}", file=str(path), remedy=limit.remedy
        )


def _add_tensor(sets: dict[Path, InputSet], path: Path) -> None:
    name, array = _read_tensor(path)
    number = _INPUT.fullmatch(path.name)
    key = path.parent if number else path
    values = sets.setdefault(key, InputSet(label=key.name))
    if name:
        if name in values.named:
            raise _broken(path, f"it is a second tensor named '{name}' in {key.name}")
        sets[key] = replace(values, named={**values.named, name: array})
    elif number:
        positional = {**values.positional, int(number.group(1)): array}
        sets[key] = replace(values, positional=positional)
    else:
        sets[key] = replace(values, unnamed=array)


def _read_tensor(path: Path) -> tuple[str, Array]:

    tensor = onnx.TensorProto()
    try:
        try:
            tensor.ParseFromString(path.read_bytes())
        except DecodeError as error:
            raise _broken(path, error, "is damaged, or is not a .pb file") from error
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ValueError("its data is in another file")
        return tensor.name, onnx.numpy_helper.to_array(tensor)
    except (OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise _broken(path, error) from error


def _broken(path: Path, why: object, what: str = "cannot be read as model inputs") -> ModelError:
    if isinstance(why, FileNotFoundError):
        return ModelError("does not exist", file=str(path), remedy="check the path")
    reason = getattr(why, "strerror", None) or str(why)
    write = "write it with numpy.savez(file, input_name=array, ...), without object arrays"
    return ModelError(
        what,
        file=str(path),
        why=reason,
        remedy=f"copy it again from where it was made, or {write}" if "damaged" in what else write,
    )


def _checked(values: InputSet, spec: InputSpec, array: Array) -> Array:
    """Convert a value to the model's type. A `.npy` keeps the bits of ml_dtypes but not their
    names.
    """
    if spec.dtype is None:
        what = f"gives input '{spec.name}', which is of type {spec.kind}"
        raise _unfit(values, what, spec.remedy or _REMEDY)
    if array.dtype.kind == "V" and array.dtype != spec.dtype and spec.dtype.kind == "V":
        if array.dtype.itemsize != spec.dtype.itemsize or array.dtype.fields:
            raise _unfit(values, f"has {array.dtype} for input '{spec.name}', which is {spec.kind}")
        array = array.view(spec.dtype)
    if spec.dtype.kind == "O" and array.dtype.kind in "US":
        array = array.astype(object)
    if array.dtype != spec.dtype:
        raise _unfit(values, f"has {array.dtype} for input '{spec.name}', which is {spec.kind}")
    fits = len(array.shape) == len(spec.shape) and all(
        not isinstance(want, int) or want == have
        for want, have in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        have = ", ".join(map(str, array.shape))
        raise _unfit(values, f"has shape [{have}] for input '{spec.name}', which is {spec}")
    return array


def _unfit(values: InputSet, what: str, remedy: str = _REMEDY) -> ManifestError:
    return ManifestError(what, where=values.label, remedy=remedy)
