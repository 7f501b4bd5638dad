"""A session's inputs and outputs, and whether what a caller feeds fits them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import onnx
import onnxruntime as ort
from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.runtime.values import Value
from epctx.text import did_you_mean

Dim = int | str | None
_ELEMENTS: Final = {
    number: {"FLOAT": "float", "DOUBLE": "double"}.get(name, name.lower())
    for name, number in onnx.TensorProto.DataType.items()
}
"""onnxruntime's names of the element types."""
_NUMBERS: Final = {name: number for number, name in _ELEMENTS.items()}


class NodeArg(Struct, frozen=True, kw_only=True):
    """An input or output of a model, as onnxruntime describes it.

    Attributes:
        name: its name.
        type: like `tensor(float)`, `seq(tensor(int64))`.
        shape: sizes, names of dimensions, None for an unknown one; empty if the rank is unknown.
        ranked: whether the rank is known.
    """

    name: str
    type: str
    shape: list[Dim]
    ranked: bool

    @classmethod
    def of(cls, value: onnx.ValueInfoProto) -> NodeArg:
        """From a graph's own description."""
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
        """From an onnxruntime session's, which does not tell an unknown rank from a scalar."""
        return cls(name=arg.name, type=arg.type, shape=list(arg.shape), ranked=bool(arg.shape))

    def value_info(self) -> onnx.ValueInfoProto:
        """The same in ONNX's words."""
        info = onnx.ValueInfoProto(name=self.name)
        _parse(self.type, info.type)
        if self.ranked:
            shape = info.type.tensor_type.shape
            for dim in self.shape:
                key = "dim_value" if isinstance(dim, int) else "dim_param"
                shape.dim.add(**({} if dim is None else {key: dim}))
        return info

    def misfit(self, value: Value) -> str | None:
        """Why a value does not fit, a clause; None if it does, or if only onnxruntime can tell."""
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
    """Make sure that `feeds` are the inputs: none missing, none unknown, each of its type.

    Args:
        inputs: all inputs.
        overridable: those that may be left out.
        feeds: what is fed.

    Raises:
        UsageError: they are not.
    """
    known = {arg.name: arg for arg in inputs}
    for name, value in feeds.items():
        if name not in known:
            raise UsageError(
                f"the model has no input {name!r}",
                remedy=did_you_mean(name, known),
                code=Code.INPUT_MISFIT,
            )
        why = known[name].misfit(value)
        if why is not None:
            raise UsageError(
                f"input {name!r} does not fit",
                why=why,
                remedy="feed what `get_inputs()` says",
                code=Code.INPUT_MISFIT,
            )
    missing = [name for name in known if name not in feeds and name not in overridable]
    if missing:
        raise UsageError(
            f"inputs are missing: {', '.join(missing)}",
            remedy="feed all that `get_inputs()` says",
            code=Code.INPUT_MISFIT,
        )


def check_outputs(outputs: Sequence[NodeArg], names: Sequence[str] | None) -> list[str]:
    """The names asked for; all if None or empty.

    Raises:
        UsageError: one that the model does not have.
    """
    known = [arg.name for arg in outputs]
    for name in names or ():
        if name not in known:
            raise UsageError(f"the model has no output {name!r}", remedy=did_you_mean(name, known))
    return list(names or known)


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
