"""Values between sessions and kernels: OrtValues, over numpy arrays where that can be."""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort

Value = Any
"""An OrtValue; or, where onnxruntime makes none from Python (strings, sequences, maps), what its
`run` takes and gives."""

_BEYOND_NUMPY: Final = {
    np.dtype(ml_dtypes.bfloat16): onnx.TensorProto.BFLOAT16,
    np.dtype(ml_dtypes.float8_e4m3fn): onnx.TensorProto.FLOAT8E4M3FN,
    np.dtype(ml_dtypes.float8_e4m3fnuz): onnx.TensorProto.FLOAT8E4M3FNUZ,
    np.dtype(ml_dtypes.float8_e5m2): onnx.TensorProto.FLOAT8E5M2,
    np.dtype(ml_dtypes.float8_e5m2fnuz): onnx.TensorProto.FLOAT8E5M2FNUZ,
}
_LISTED: Final = 8
"""So many keys of a map are named."""
_BY_ELEMENT_TYPE: Final = {element: dtype for dtype, element in _BEYOND_NUMPY.items()}


def to_value(given: object) -> Value:
    """What a caller feeds, as a value; an array's buffer is used as it is where it can be."""
    if isinstance(given, ort.OrtValue):
        return given
    if given is None or isinstance(given, list | tuple | dict):
        return given
    array = np.asarray(given)
    if array.dtype.kind in "OUS":
        return array
    array = np.asarray(array, array.dtype.newbyteorder("="), order="C")
    element = _BEYOND_NUMPY.get(array.dtype)
    if element is not None:
        storage = array.view(np.dtype(f"u{array.dtype.itemsize}"))
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(storage, element)
    return ort.OrtValue.ortvalue_from_numpy(array)


def to_python(value: Value) -> Value:
    """What a caller gets: numpy arrays that own their memory or keep it alive, else the value."""
    if not isinstance(value, ort.OrtValue) or not value.is_tensor():
        return value
    dtype = _BY_ELEMENT_TYPE.get(value.element_type())
    if dtype is None:
        return np.array(value.numpy())
    shape = tuple(value.shape())
    raw = ctypes.string_at(value.data_ptr(), math.prod(shape) * dtype.itemsize)
    return np.frombuffer(raw, dtype).reshape(shape).copy()


def flat(
    names: Sequence[str], results: Sequence[object], kinds: Sequence[str]
) -> Iterator[tuple[str, object]]:
    """What a run gives, by name; the parts of a sequence as `name[0]`, `name[1]`, ...

    An empty sequence is an empty array, `name[]`, so that nobody overlooks it. A map is an array of
    its values, in the order of its keys, which are in its name: `name{0, 1}`. A sequence of maps
    with the same keys is one array, with a row for each.

    Args:
        kinds: the types of the results, as in `seq(map(int64,tensor(double)))`.
    """
    for name, result, kind in zip(names, results, kinds, strict=True):
        rows = [result] if isinstance(result, Mapping) else result
        if isinstance(rows, list) and rows and _have_same_keys(rows):
            keys = sorted(rows[0])
            array = np.array([[row[key] for key in keys] for row in rows])
            if array.dtype == np.float64 and "double" not in kind:
                array = array.astype(np.float32)
            if array.dtype.kind == "U":
                array = array.astype(object)
            yield f"{name}{_words(keys)}", array[0] if rows is not result else array
        elif isinstance(result, list):
            parts = [f"{name}[{index}]" for index in range(len(result))]
            yield from flat(parts, result, [kind] * len(parts))
            if not result:
                yield f"{name}[]", np.zeros(0, np.float32)
        else:
            yield name, result


def suffix(told: str, name: str) -> str | None:
    """What `flat` has added to an output's name, maybe nothing; None: it is of another output."""
    rest = told.removeprefix(name)
    return rest if told.startswith(name) and rest[:1] in ("", "[", "{") else None


def _have_same_keys(rows: Sequence[object]) -> bool:
    first, *others = rows
    return isinstance(first, Mapping) and all(
        isinstance(row, Mapping) and row.keys() == first.keys() for row in others
    )


def _words(keys: Sequence[object]) -> str:
    """The keys of a map, `{'a', 'b'}`; of many the first ones, and a digest of all."""
    if len(keys) <= _LISTED:
        return f"{{{', '.join(map(repr, keys))}}}"
    digest = hashlib.sha256(repr(keys).encode()).hexdigest()[:8]
    return f"{{{', '.join(map(repr, keys[:_LISTED]))}, ... {len(keys)} keys, {digest}}}"


def of_tensor(tensor: onnx.TensorProto, folder: str) -> Value:
    """An initializer, as a value; external data is read from `folder`."""
    return to_value(onnx.numpy_helper.to_array(tensor, base_dir=folder))
