"""Input sets from files: numpy's (`.npz` by name, `.npy` for a model of one input) and ONNX's.

Of ONNX's TensorProto files (`.pb`), those named `input_K.pb` in one folder are one set, as in its
test data (`test_data_set_N`); each goes to the input that it names, else to the K-th.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

# protobuf ships no types.
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from msgspec import Struct, field
from msgspec.structs import replace

from epctx import limits
from epctx.errors import ManifestError, ModelError
from epctx.graph.inputs import Array, InputSpec
from epctx.runtime.feeds import Feeds
from epctx.text import did_you_mean

_INPUT = re.compile(r"input_(\d+)\.pb")
_OUTPUT = re.compile(r"output_\d+\.pb")
_REMEDY = "give each input by its name, with the type and shape that the model takes"


class InputSet(Struct, frozen=True, kw_only=True):
    """Values from files, not yet fitted to a model.

    Attributes:
        label: for people: `cases/a.npz`, `test_data_set_0`.
        named: by input name.
        positional: by the number of the input.
        unnamed: the values of a `.npy`, which has neither.
    """

    label: str
    named: Feeds = field(default_factory=dict)
    positional: Mapping[int, Array] = field(default_factory=dict)
    unnamed: Array | None = None


def read(files: Iterable[Path]) -> tuple[InputSet, ...]:
    """The input sets that files hold, in the files' order; `output_K.pb` is not an input.

    Raises:
        ModelError: a file is missing, of an unknown kind, or broken.
    """
    sets: dict[Path, InputSet] = {}
    for path in files:
        if path.exists() and not path.is_file():  # numpy would wait for a pipe
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
                "is not a file of inputs", file=str(path), remedy="use .npz, .npy or .pb files"
            )
    return tuple(sets.values())


def fit(values: InputSet, inputs: Sequence[InputSpec]) -> Feeds:
    """Give each of `inputs` its value of the set.

    Raises:
        ManifestError: a name is unknown or missing, or a value has another type or shape.
    """
    named = dict(values.named)
    for position, array in values.positional.items():
        if position >= len(inputs):
            raise _unfit(values, f"has a value for input {position}, the model has {len(inputs)}")
        named.setdefault(inputs[position].name, array)
    if values.unnamed is not None:
        if len(inputs) != 1:
            raise _unfit(
                values, f"has one value without a name, the model has {len(inputs)} inputs"
            )
        named[inputs[0].name] = values.unnamed
    known = {spec.name: spec for spec in inputs}
    for name in named:
        if name not in known:
            raise _unfit(values, f'names "{name}", which is no input', did_you_mean(name, known))
    missing = [name for name in known if name not in named]
    if missing:
        raise _unfit(values, f"has no value for input {', '.join(map(repr, missing))}")
    return {name: _checked(values, spec, named[name]) for name, spec in known.items()}


def _read_numpy(path: Path) -> InputSet:
    try:
        found = np.load(path, allow_pickle=False)
        if path.suffix == ".npy" and isinstance(found, np.ndarray):
            return InputSet(label=path.name, unnamed=found)
        if path.suffix != ".npz" or not isinstance(found, np.lib.npyio.NpzFile):
            raise _broken(path, f"it is not what {path.suffix} files hold")
        with found:
            _refuse_bomb(path, found.zip)
            return InputSet(label=path.name, named={name: found[name] for name in found.files})
    except ModelError:
        raise
    except Exception as error:  # numpy's readers promise no classes: those of zlib, tokenize, ...
        raise _broken(path, error) from error


def _refuse_bomb(path: Path, archive: zipfile.ZipFile | None) -> None:
    """What is packed may be a thousand times the file; no more than it says is unpacked."""
    _require_bounded(path, sum(entry.file_size for entry in archive.infolist()) if archive else 0)


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
    found = sets.setdefault(key, InputSet(label=key.name))
    if name:
        if name in found.named:
            raise _broken(path, f"a second tensor named '{name}' in {key.name}")
        sets[key] = replace(found, named={**found.named, name: array})
    elif number:
        positional = {**found.positional, int(number.group(1)): array}
        sets[key] = replace(found, positional=positional)
    else:
        sets[key] = replace(found, unnamed=array)


def _read_tensor(path: Path) -> tuple[str, Array]:

    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(path.read_bytes())
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ValueError("its data is in another file")
        return tensor.name, onnx.numpy_helper.to_array(tensor)
    except (OSError, DecodeError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise _broken(path, error) from error


def _broken(path: Path, why: object) -> ModelError:
    if isinstance(why, FileNotFoundError):
        return ModelError("does not exist", file=str(path), remedy="check the path")
    reason = getattr(why, "strerror", None) or str(why)
    return ModelError(
        "cannot be read as model inputs",
        file=str(path),
        why=reason,
        remedy="write it with numpy.savez(file, input_name=array, ...), without object arrays",
    )


def _checked(values: InputSet, spec: InputSpec, array: Array) -> Array:
    """The value as the model takes it; in `.npy`, ml_dtypes lose their name, not their bits."""
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
