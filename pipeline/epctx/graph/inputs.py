"""What a model must be fed: its inputs, their types and shapes, and what the graph says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from epctx.graph import input_ranges
from epctx.graph.input_ranges import Hint

if TYPE_CHECKING:
    import onnx

Array = npt.NDArray[np.generic]
Dim = int | str | None


class InputSpec(Struct, frozen=True, kw_only=True):
    """A graph input that a value has to be given for.

    Attributes:
        dtype: None: not a tensor, or of an element type that numpy cannot hold.
        shape: a size, a dimension's name, or None for an unknown one; () is a scalar.
        kind: its ONNX type for people: `float32`, `sequence`, ...
        hint: the range that is assumed of its values (`graph.input_ranges`); None: any.
    """

    name: str
    dtype: np.dtype[np.generic] | None
    shape: tuple[Dim, ...]
    kind: str
    hint: Hint | None = None

    @property
    def problem(self) -> str | None:
        """Why no value can be generated for it; None if one can."""
        if self.dtype is None or self.dtype.kind in "OUSc" or self.kind in _PACKED:
            return f"input '{self.name}' is of type {self.kind}, for which no values are generated"
        for dim in self.shape:
            if not isinstance(dim, int):
                named = f"'{dim}'" if dim else "without a name"
                return f"input '{self.name}' has a dimension {named} of unknown size"
        return None

    @property
    def remedy(self) -> str | None:
        """What to do where no file can give its values; None if one can."""
        if self.dtype is not None:
            return None
        return (
            "no file holds values of such a type: feed it with `epctx.runtime.InferenceSession`, "
            "or export the model with a tensor in its place"
        )

    @property
    def open(self) -> Mapping[int, str]:
        """Its dimensions of unknown size, by axis; one without a name is `input[axis]`."""
        return {
            axis: dim or f"{self.name}[{axis}]"
            for axis, dim in enumerate(self.shape)
            if not isinstance(dim, int)
        }

    def fixed(self, sizes: Mapping[str, int]) -> InputSpec:
        """The input with sizes for open dimensions, by what `open` calls them."""
        named = self.open
        return replace(
            self, shape=tuple(sizes.get(named.get(i, ""), dim) for i, dim in enumerate(self.shape))
        )

    def __str__(self) -> str:
        if self.dtype is None:
            return self.kind
        dims = ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.kind}[{dims}]"


_PACKED = frozenset({"int4", "uint4", "int2", "uint2", "float4_e2m1fn"})


def specs(model: onnx.ModelProto) -> tuple[InputSpec, ...]:
    """The inputs that a run of `model` must be given: graph inputs that are no initializer."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    initializers |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    hints = input_ranges.hints(model)
    return tuple(
        replace(spec(info), hint=hints.get(info.name))
        for info in model.graph.input
        if info.name not in initializers
    )


def spec(info: onnx.ValueInfoProto) -> InputSpec:
    """The name and type of a value."""
    import onnx

    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        word = (kind or "unknown_type").removesuffix("_type").replace("_", " ")
        return InputSpec(name=info.name, dtype=None, shape=(), kind=word)
    tensor = info.type.tensor_type
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    except KeyError:
        return InputSpec(name=info.name, dtype=None, shape=(), kind=f"type {tensor.elem_type}")
    shape = tuple(map(_dim, tensor.shape.dim))
    if not tensor.HasField("shape"):
        shape = (None,)
    word = "string" if tensor.elem_type == onnx.TensorProto.STRING else str(dtype)
    return InputSpec(name=info.name, dtype=dtype, shape=shape, kind=word)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    """A negative size, which some exporters write, is an unknown one, as to ONNX Runtime."""
    from epctx.graph.serde import protos

    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return protos.symbol(dim)
