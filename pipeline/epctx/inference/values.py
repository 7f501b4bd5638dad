"""Values passed between sessions and kernels, and the inputs and outputs that they must match.

Values are OrtValues, over numpy arrays where possible.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.text import did_you_mean

Value = Any
"""An OrtValue, or the Python object that onnxruntime's `run` uses for types without an OrtValue in
Python (strings, sequences, maps)."""

_BEYOND_NUMPY: Final = {
    np.dtype(ml_dtypes.bfloat16): onnx.TensorProto.BFLOAT16,
    np.dtype(ml_dtypes.float8_e4m3fn): onnx.TensorProto.FLOAT8E4M3FN,
    np.dtype(ml_dtypes.float8_e4m3fnuz): onnx.TensorProto.FLOAT8E4M3FNUZ,
    np.dtype(ml_dtypes.float8_e5m2): onnx.TensorProto.FLOAT8E5M2,
    np.dtype(ml_dtypes.float8_e5m2fnuz): onnx.TensorProto.FLOAT8E5M2FNUZ,
}
_LISTED: Final = 8
"""Maximum number of a map's keys that a name lists."""
_BY_ELEMENT_TYPE: Final = {element: dtype for dtype, element in _BEYOND_NUMPY.items()}


def to_value(given: object) -> Value:
    """Turn a caller's input into a value, without copying an array's buffer where possible."""
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
    """Turn a value into a caller's result. Numpy arrays own their memory."""
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
    """Yield the results of a run by name, and the parts of a sequence as `name[0]`, `name[1]`, ...

    An empty sequence becomes an empty array `name[]`, so that it is visible. A map becomes an array
    of its values in the order of its keys, which the name lists: `name{0, 1}`. A sequence of maps
    with the same keys becomes one array with a row per map.

    Args:
        kinds: types of the results, as in `seq(map(int64,tensor(double)))`.
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


def suffix(flat_name: str, name: str) -> str | None:
    """Return the suffix that `flat` added to an output's name, "" if none; None if the name belongs
    to another output.
    """
    rest = flat_name.removeprefix(name)
    return rest if flat_name.startswith(name) and rest[:1] in ("", "[", "{") else None


def _have_same_keys(rows: Sequence[object]) -> bool:
    first, *others = rows
    return isinstance(first, Mapping) and all(
        isinstance(row, Mapping) and row.keys() == first.keys() for row in others
    )


def _words(keys: Sequence[object]) -> str:
    """List the keys of a map, as in `{'a', 'b'}`; for many keys the first ones and a digest
    of all.
    """
    if len(keys) <= _LISTED:
        return f"{{{', '.join(map(repr, keys))}}}"
    digest = hashlib.sha256(repr(keys).encode()).hexdigest()[:8]
    return f"{{{', '.join(map(repr, keys[:_LISTED]))}, ... {len(keys)} keys, {digest}}}"


def of_tensor(tensor: onnx.TensorProto, folder: str) -> Value:
    """Turn an initializer into a value. External data is read from `folder`."""
    return to_value(onnx.numpy_helper.to_array(tensor, base_dir=folder))


Dim = int | str | None
_ELEMENTS: Final = {
    number: {"FLOAT": "float", "DOUBLE": "double"}.get(name, name.lower())
    for name, number in onnx.TensorProto.DataType.items()
}
"""onnxruntime's names of the element types."""
_NUMBERS: Final = {name: number for number, name in _ELEMENTS.items()}


class NodeArg(Struct, frozen=True, kw_only=True):
    """Description of an input or output of a model, as in onnxruntime.

    Attributes:
        name: its name.
        type: type in onnxruntime's notation, as in `tensor(float)` or `seq(tensor(int64))`.
        shape: sizes, names of dimensions, None for an unknown one; empty if the rank is unknown.
        ranked: whether the rank is known.
    """

    name: str
    type: str
    shape: list[Dim]
    ranked: bool

    @classmethod
    def of(cls, value: onnx.ValueInfoProto) -> NodeArg:
        """Read a graph's own description."""
        tensor = value.type.tensor_type
        ranked = tensor.HasField("shape")
        return cls(
            name=value.name,
            type=_type(value.type),
            shape=[_dim(dim) for dim in tensor.shape.dim],
            ranked=ranked,
        )

    @classmethod
    def of_session(cls, arg: ort.NodeArg) -> NodeArg:
        """Read an onnxruntime session's description, where an unknown rank looks like a scalar."""
        return cls(name=arg.name, type=arg.type, shape=list(arg.shape), ranked=bool(arg.shape))

    def value_info(self) -> onnx.ValueInfoProto:
        """Convert the description to a ValueInfoProto."""
        info = onnx.ValueInfoProto(name=self.name)
        _parse(self.type, info.type)
        if self.ranked:
            shape = info.type.tensor_type.shape
            for dim in self.shape:
                key = "dim_value" if isinstance(dim, int) else "dim_param"
                shape.dim.add(**({} if dim is None else {key: dim}))
        return info

    def misfit(self, value: Value) -> str | None:
        """Return why a value does not match, as a clause; None if it matches, or if only
        onnxruntime can tell.
        """
        if not isinstance(value, ort.OrtValue) or not value.is_tensor():
            return None
        if not self.type.startswith("tensor(") or value.data_type() != self.type:
            return f"it is {value.data_type()}, not {self.type}"
        shape = value.shape()
        fixed = (not isinstance(d, int) or d == s for d, s in zip(self.shape, shape, strict=False))
        if self.ranked and (len(shape) != len(self.shape) or not all(fixed)):
            return f"its shape is {shape}, not {self.shape}"
        return None


def check_feeds(
    inputs: Sequence[NodeArg], overridable: Collection[str], feeds: Mapping[str, Value]
) -> None:
    """Check that `feeds` match the inputs: no name missing or unknown, and every type right.

    Args:
        inputs: all inputs.
        overridable: inputs that may be left out.
        feeds: values by input name.

    Raises:
        UsageError: the feeds do not match the inputs.
    """
    args = {arg.name: arg for arg in inputs}
    for name, value in feeds.items():
        if name not in args:
            raise UsageError(
                f"the model has no input {name!r}",
                remedy=did_you_mean(name, args),
                code=Code.INPUT_MISFIT,
            )
        why = args[name].misfit(value)
        if why is not None:
            raise UsageError(
                f"the value of input {name!r} does not fit",
                why=why,
                remedy="feed the type and shape that `get_inputs()` returns",
                code=Code.INPUT_MISFIT,
            )
    missing = [name for name in args if name not in feeds and name not in overridable]
    if missing:
        raise UsageError(
            f"inputs are missing: {', '.join(missing)}",
            remedy="feed every input that `get_inputs()` returns",
            code=Code.INPUT_MISFIT,
        )


def check_outputs(outputs: Sequence[NodeArg], names: Sequence[str] | None) -> list[str]:
    """Return the requested output names; all outputs if None or empty.

    Raises:
        UsageError: the model does not have an output of this name.
    """
    available = [arg.name for arg in outputs]
    for name in names or ():
        if name not in available:
            raise UsageError(
                f"the model has no output {name!r}", remedy=did_you_mean(name, available)
            )
    return list(names or available)


def _type(of: onnx.TypeProto) -> str:
    kind = of.WhichOneof("value")
    if kind == "tensor_type":
        return f"tensor({_ELEMENTS[of.tensor_type.elem_type]})"
    if kind == "sparse_tensor_type":
        return f"sparse_tensor({_ELEMENTS[of.sparse_tensor_type.elem_type]})"
    if kind == "sequence_type":
        return f"seq({_type(of.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({_type(of.optional_type.elem_type)})"
    if kind == "map_type":
        return f"map({_ELEMENTS[of.map_type.key_type]},{_type(of.map_type.value_type)})"
    return ""


def _parse(text: str, into: onnx.TypeProto) -> None:
    """The inverse of `_type`."""
    kind, _, inner = text.removesuffix(")").partition("(")
    if kind == "tensor":
        into.tensor_type.elem_type = _NUMBERS[inner]
    elif kind == "sparse_tensor":
        into.sparse_tensor_type.elem_type = _NUMBERS[inner]
    elif kind == "seq":
        _parse(inner, into.sequence_type.elem_type)
    elif kind == "optional":
        _parse(inner, into.optional_type.elem_type)
    elif kind == "map":
        key, _, value = inner.partition(",")
        into.map_type.key_type = _NUMBERS[key]
        _parse(value, into.map_type.value_type)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    kind = dim.WhichOneof("value")
    return None if kind is None else getattr(dim, kind)
