"""Shapes of inputs: symbolic dimensions fixed.

NPUs want static shapes; a manifest fixes them by `dimensions` (a symbolic name to its size) and
`shapes` (a graph input to its whole shape). Source: design sections 5 and 7 "load".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

import onnx

from epctx.error_codes import Code
from epctx.errors import ModelError
from epctx.graph.serde import protos
from epctx.text import nearest


def _raise(key: str, name: str, error: ModelError) -> NoReturn:
    raise error


def fix(
    model: onnx.ModelProto,
    dimensions: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    *,
    where: str,
    misfit: Callable[[str, str, ModelError], None] = _raise,
) -> None:
    """Give symbolic dimensions their sizes, wherever the main graph names them.

    A shape of a graph input fixes the names in it too: one name is one size in all of the graph. In
    bodies of control flow and in functions the same name is another size, as it is to ONNX Runtime.

    Args:
        dimensions: name of a symbolic dimension of a graph input, to its size (>= 1).
        shapes: name of a graph input, to its whole shape.
        misfit: called with `dimensions` or `shapes`, the name in it, and the error.

    Raises:
        ModelError: unless `misfit` is given: an unknown name, a rank or a static size that differs,
            or two sizes for one name.
    """
    inputs = {value.name: value for value in _true_inputs(model.graph)}
    sizes = _Sizes(inputs.values(), where)
    for name, size in dimensions.items():
        try:
            sizes.require_name(name)
            sizes.set(name, size, f"dimensions: {name}")
        except ModelError as error:
            misfit("dimensions", name, error)
    for name, shape in shapes.items():
        try:
            if name not in inputs:
                raise _unknown("shapes", "graph input", name, list(inputs), where)
            _set_shape(inputs[name], shape, sizes, where)
        except ModelError as error:
            misfit("shapes", name, error)
    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in protos.dimensions(value.type):
            if dim.dim_param in sizes.fixed:
                dim.dim_value = sizes.fixed[dim.dim_param]


def clear_unknown(model: onnx.ModelProto) -> None:
    """Make negative sizes and placeholder names unknown sizes, as ONNX Runtime does."""
    for value in protos.values(model):
        for dim in protos.dimensions(value.type):
            if dim.HasField("dim_value") and dim.dim_value < 0:
                dim.ClearField("dim_value")
            if dim.dim_param and protos.symbol(dim) is None:
                dim.ClearField("dim_param")


class _Sizes:
    """Sizes of symbolic names, each with the manifest key that gave it."""

    def __init__(self, inputs: Iterable[onnx.ValueInfoProto], where: str) -> None:
        self._where = where
        symbols = (protos.symbol(d) for value in inputs for d in protos.dimensions(value.type))
        self._names = [name for name in dict.fromkeys(symbols) if name is not None]
        self._givers: dict[str, str] = {}
        self.fixed: dict[str, int] = {}

    def require_name(self, name: str) -> None:
        if name not in self._names:
            raise _unknown(
                "dimensions", "symbolic dimension of an input", name, self._names, self._where
            )

    def set(self, name: str, size: int, giver: str) -> None:
        if size < 1:
            raise ModelError(
                f"{giver} is {size}",
                where=self._where,
                remedy="give a size of 1 or more",
                code=Code.SIZE_MISFIT,
            )
        if self.fixed.setdefault(name, size) != size:
            raise ModelError(
                f"dimension {name!r} is {self.fixed[name]} by `{self._givers[name]}` "
                f"and {size} by `{giver}`",
                where=self._where,
                remedy="one name is one size in all of a model: give it once",
                code=Code.SIZE_MISFIT,
            )
        self._givers.setdefault(name, giver)


def _set_shape(value: onnx.ValueInfoProto, shape: Sequence[int], sizes: _Sizes, where: str) -> None:
    key = f"shapes: {value.name}"
    if value.type.WhichOneof("value") != "tensor_type":
        raise ModelError(
            f"`{key}`: input {value.name!r} is not a tensor",
            where=where,
            remedy=f"take {value.name!r} out of `shapes`",
            code=Code.SIZE_MISFIT,
        )
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        for _ in shape:
            tensor.shape.dim.add()
        tensor.shape.SetInParent()  # a scalar has a shape, too
    if len(tensor.shape.dim) != len(shape):
        raise ModelError(
            f"`{key}` has {len(shape)} dimensions, the input has {len(tensor.shape.dim)}: "
            f"{protos.sizes(tensor.shape)}",
            where=where,
            remedy="give a size for each of its dimensions",
            code=Code.SIZE_MISFIT,
        )
    for position, (dim, size) in enumerate(zip(tensor.shape.dim, shape, strict=True)):
        if dim.HasField("dim_value") and dim.dim_value != size:
            raise ModelError(
                f"`{key}` gives dimension {position} the size {size}, the model {dim.dim_value}: "
                f"{protos.sizes(tensor.shape)}",
                where=where,
                remedy="a static dimension cannot be changed: export the model for this shape",
                code=Code.SIZE_MISFIT,
            )
        name = protos.symbol(dim)
        if name is not None:
            sizes.set(name, size, key)
        elif not dim.HasField("dim_value"):
            if size < 1:
                raise ModelError(
                    f"`{key}` has {size}",
                    where=where,
                    remedy="sizes are 1 or more",
                    code=Code.SIZE_MISFIT,
                )
            dim.dim_value = size


def _unknown(key: str, kind: str, name: str, names: list[str], where: str) -> ModelError:
    near = nearest(name, names)
    existing = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return ModelError(
        f"`{key}` names {name!r}, which is not a {kind}",
        where=where,
        why=f"the model has {existing}" if names else f"the model has no {kind}",
        remedy=f"did you mean {near!r}?" if near else f"take {name!r} out of `{key}`",
        code=Code.SIZE_MISFIT,
    )


def _true_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the graph inputs that are not initializers (before IR 4 all initializers were
    inputs).
    """
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]
