"""Values between sessions and kernels: OrtValues, over numpy arrays where that can be."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
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


def flat(names: Sequence[str], results: Sequence[object]) -> Iterator[tuple[str, object]]:
    """What a run gives, by name; the parts of a sequence as `name[0]`, `name[1]`, ..."""
    for name, result in zip(names, results, strict=True):
        if isinstance(result, list):
            yield from flat([f"{name}[{index}]" for index in range(len(result))], result)
        else:
            yield name, result


def of_tensor(tensor: onnx.TensorProto, folder: str) -> Value:
    """An initializer, as a value; external data is read from `folder`."""
    return to_value(onnx.numpy_helper.to_array(tensor, base_dir=folder))
