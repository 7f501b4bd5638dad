"""Kernels that compute: integers and booleans exactly, floats where IEEE 754 fixes the result.

numpy computes them, not onnxruntime: a result must not depend on which kernels a machine gets.
Operators that round more than once, or in an order of their choice, are left out on purpose
(MatMul, sums of floats, transcendentals). So is DequantizeLinear, which execution providers need to
see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from epctx.graph.passes.kernels.operation import Declined, Kernel, Operation, axis
from epctx.graph.passes.scratch import Array

IEEE = (np.dtype(np.float32), np.dtype(np.float64))
"""Float types whose arithmetic is folded.

float16 and bfloat16 are not folded: onnxruntime's CPU EP computes them in float32 and leaves out
the rounding between neighbouring nodes (1.31.1: Mul then Add of float16 differs in a quarter of the
elements), so a fold, though right by the standard, would differ from the run.
"""


def cast(op: Operation) -> Sequence[Array]:
    """Compute Cast and CastLike to the type of the node's output."""
    source, target = op.input(0), op.result_type()
    if target is None or target.bitwidth < 8 or target.is_string():
        raise Declined("a type of this size")
    if target == ir.DataType.BFLOAT16 and op.version < 13:
        raise Declined("a type that no other operator of this opset takes")
    to = np.dtype(target.numpy())
    if source.dtype == to:
        return [source]
    result = op.elementwise(_conversion(source.dtype, to), source)
    if target.is_floating_point():
        _check_next_casts(op, result)
    return [result]


def _check_next_casts(op: Operation, result: Array) -> None:
    """Decline values that are out of range for a following Cast.

    onnxruntime's CPU EP leaves out the first of two casts if it loses nothing, even at
    ORT_DISABLE_ALL, so it converts from another type than the second Cast says (1.31.1).
    """
    for node, _ in op.node.outputs[0].uses():
        following = node.outputs[0].dtype if node.op_type in ("Cast", "CastLike") else None
        if following is not None and following.is_integer() and following.bitwidth >= 8:
            op.in_memory(result.nbytes)
            _truncate(result, np.dtype(following.numpy()))


def _conversion(source: np.dtype[np.generic], to: np.dtype[np.generic]) -> Callable[..., Array]:
    """Return a conversion between two types; it declines values on which machines differ."""
    kinds = _kind(source) + _kind(to)
    if "?" in kinds:
        raise Declined("a type whose conversion onnxruntime rounds in its own way")
    if kinds == "fi":
        return lambda block: _truncate(block, to)
    if kinds in ("ff", "fb"):
        return lambda block: _round(_without_nan(block), to)
    if kinds == "if":
        return lambda block: _round(block, to)
    return lambda block: block.astype(to)


def _kind(dtype: np.dtype[np.generic]) -> str:
    """Return b for boolean, i for integer, f for float of 16 bits and more, ? otherwise."""
    if dtype.kind == "b":
        return "b"
    if dtype.kind in "iu":
        return "i"
    return "f" if dtype.name in ("float16", "bfloat16", "float32", "float64") else "?"


def _round(block: Array, to: np.dtype[np.generic]) -> Array:
    """Round to nearest even, once; decline values that float32 would round twice."""
    with np.errstate(over="ignore", invalid="ignore"):
        if to.itemsize == 2 and block.dtype.itemsize > 2:
            single = block.astype(np.float32)
            if block.dtype != single.dtype and not np.array_equal(
                single.astype(block.dtype), block
            ):
                raise Declined("a conversion through float32 rounds twice")
            block = single
        return block.astype(to)


def _truncate(block: Array, to: np.dtype[np.generic]) -> Array:
    """Convert to integer, towards zero; decline values out of range, where machines differ."""
    wide = np.trunc(block.astype(np.float64))
    limits = np.iinfo(to)  # type: ignore[type-var]  # an integer type: `_kind` said so
    # float64 holds the lower limit and the upper limit plus one of every integer type exactly.
    inside = (wide >= float(limits.min)) & (wide < float(limits.max) + 1.0 * (limits.bits < 54))
    if not inside.all():
        raise Declined("a float out of the integer's range")
    return wide.astype(to)


def _without_nan(block: Array) -> Array:
    if np.isnan(block).any():
        raise Declined("NaN, whose bits differ between machines")
    return block


def _inputs(
    op: Operation, kinds: str = "iu", what: str = "integers of one type"
) -> tuple[Array, ...]:
    """Return all inputs, which must have one type, of a kind among numpy's letters `kinds`."""
    inputs = tuple(op.input(index) for index in range(len(op.inputs)))
    dtype = inputs[0].dtype
    fits = dtype.kind in kinds and (dtype.kind != "f" or dtype in IEEE)
    if not fits or any(each.dtype != dtype for each in inputs):
        raise Declined(f"no {what}")
    return inputs


def _elementwise(
    function: Callable[..., Array], kinds: str = "iu", what: str = "integers of one type"
) -> Kernel:
    return lambda op: [op.elementwise(function, *_inputs(op, kinds, what))]


def _reduced(function: Callable[[Array, Array], Array]) -> Kernel:
    """Return an n-ary kernel from a binary function that may be applied in any order."""
    return lambda op: [reduce(partial(op.elementwise, function), _inputs(op))]


def _divide(left: Array, right: Array) -> Array:
    """Divide integers towards zero, as C does."""
    _check_divisor(left, right)
    quotient = np.floor_divide(left, right)
    if left.dtype.kind == "i":
        inexact = np.mod(left, right) != 0
        quotient = quotient + (inexact & ((left < 0) != (right < 0))).astype(left.dtype)
    return quotient


def _check_divisor(left: Array, right: Array) -> None:
    if not right.all():
        raise Declined("a division by zero")
    if left.dtype.kind == "i" and ((left == np.iinfo(left.dtype).min) & (right == -1)).any():
        raise Declined("a quotient out of range")


def _modulo(op: Operation) -> Sequence[Array]:
    """Compute Mod of integers, with the divisor's sign, or the dividend's if `fmod` is set.

    onnxruntime's CPU kernel computes fmod in float64 (1.31.1).
    """
    left, right = _inputs(op)
    function = np.fmod if op.integer("fmod", 0) else np.mod

    def checked(left: Array, right: Array) -> Array:
        _check_divisor(left, right)
        if function is np.fmod and any(_beyond_float64(each) for each in (left, right)):
            raise Declined("integers that float64 does not hold")
        result: Array = function(left, right)
        return result

    return [op.elementwise(checked, left, right)]


def _beyond_float64(integers: Array) -> bool:
    return bool((np.abs(integers.astype(np.float64)) >= 1 << 53).any())


def _shift(op: Operation) -> Sequence[Array]:
    """Compute BitShift by less than the width."""
    left, right = _inputs(op)
    function = np.left_shift if op.text("direction", "") == "LEFT" else np.right_shift

    def checked(left: Array, right: Array) -> Array:
        if ((right < 0) | (right >= left.dtype.itemsize * 8)).any():
            raise Declined("a shift backwards or by the whole width")
        result: Array = function(left, right)
        return result

    return [op.elementwise(checked, left, right)]


def _reduction(function: Callable[..., Array], bound: Callable[..., Array] | None = None) -> Kernel:
    """Return a reduction of integers, with axes as attribute or input; empty data is declined.

    `bound` computes a bound of all intermediate results from absolute values in float64.
    onnxruntime's CPU kernels compute sums and products in float64, and saturate (1.31.1). So a
    reduction is folded only if float64 and the type hold every step exactly.
    """

    def kernel(op: Operation) -> Sequence[Array]:
        data = op.input(0)
        if data.dtype.kind not in "iu" or not data.size:
            raise Declined("no integers")
        op.in_memory()
        axes = op.integers(1, "axes")
        if not axes:
            if op.integer("noop_with_empty_axes", 0) == 1:
                return [data]
            axes = tuple(range(data.ndim))
        along = tuple(axis(each, data.ndim) for each in axes)
        keep = op.integer("keepdims", 1) == 1
        if bound is not None:
            most = min(1 << 53, int(np.iinfo(data.dtype).max))
            if bound(np.abs(data.astype(np.float64)), axis=along).max() >= most:
                raise Declined("a result that float64 or its type may not hold")
        return [np.asarray(function(data, axis=along, keepdims=keep)).astype(data.dtype)]

    return kernel


def _product_bound(absolute: Array, axis: tuple[int, ...]) -> Array:
    bound: Array = np.prod(np.maximum(absolute, 1), axis=axis)
    return bound


def _cumulative_sum(op: Operation) -> Sequence[Array]:
    """Compute CumSum of integers."""
    data = op.input(0)
    if data.dtype.kind not in "iu":
        raise Declined("no integers")
    op.in_memory()
    along = axis(int(op.input(1).reshape(-1)[0]), data.ndim)
    backwards = bool(op.integer("reverse", 0))
    data = np.flip(data, along) if backwards else data
    result: Array = np.cumsum(data, axis=along, dtype=data.dtype)
    if op.integer("exclusive", 0):
        result = result - data
    return [np.flip(result, along) if backwards else result]


def _range(op: Operation) -> Sequence[Array]:
    """Compute Range of integers."""
    start, limit, delta = (int(each.reshape(-1)[0]) for each in _inputs(op))
    if delta == 0:
        raise Declined("a step of zero")
    count = len(range(start, limit, delta))
    op.in_memory(count * 8)
    numbers: npt.NDArray[np.int64] = start + delta * np.arange(count, dtype=np.int64)
    return [numbers.astype(op.input(0).dtype)]


def _float_kernel(function: Callable[..., Array]) -> Kernel:
    """Return a kernel of an IEEE 754 operation; NaN results are declined: their bits differ."""

    def checked(*blocks: Array) -> Array:
        with np.errstate(all="ignore"):
            return _without_nan(function(*blocks))

    return _elementwise(checked, "f", "floats of one type, float32 or float64")


KERNELS: Mapping[str, tuple[int, Kernel]] = {
    "Abs": (6, _elementwise(np.abs)),
    "Add": (7, _elementwise(np.add)),
    "And": (7, _elementwise(np.logical_and, "b", "booleans")),
    "BitShift": (11, _shift),
    "BitwiseAnd": (18, _elementwise(np.bitwise_and)),
    "BitwiseNot": (18, _elementwise(np.bitwise_not)),
    "BitwiseOr": (18, _elementwise(np.bitwise_or)),
    "BitwiseXor": (18, _elementwise(np.bitwise_xor)),
    "Cast": (6, cast),
    "CastLike": (15, cast),
    "CumSum": (11, _cumulative_sum),
    "Div": (7, _elementwise(_divide)),
    "Equal": (7, _elementwise(np.equal, "iub")),
    "Greater": (7, _elementwise(np.greater, "iub")),
    "GreaterOrEqual": (12, _elementwise(np.greater_equal, "iub")),
    "Less": (7, _elementwise(np.less, "iub")),
    "LessOrEqual": (12, _elementwise(np.less_equal, "iub")),
    "Max": (8, _reduced(np.maximum)),
    "Min": (8, _reduced(np.minimum)),
    "Mod": (10, _modulo),
    "Mul": (7, _elementwise(np.multiply)),
    "Neg": (6, _elementwise(np.negative)),
    "Not": (1, _elementwise(np.logical_not, "b", "booleans")),
    "Or": (7, _elementwise(np.logical_or, "b", "booleans")),
    "Range": (11, _range),
    "ReduceMax": (1, _reduction(np.max)),
    "ReduceMin": (1, _reduction(np.min)),
    "ReduceProd": (1, _reduction(np.prod, _product_bound)),
    "ReduceSum": (1, _reduction(np.sum, np.sum)),
    "Sign": (9, _elementwise(np.sign)),
    "Sub": (7, _elementwise(np.subtract)),
    "Xor": (7, _elementwise(np.logical_xor, "b", "booleans")),
}
"""Kernels by op type, with the first opset whose form they know; exact on every machine."""

FLOAT_KERNELS: Mapping[str, tuple[int, Kernel]] = {
    "Add": (7, _float_kernel(np.add)),
    "Div": (7, _float_kernel(np.divide)),
    "Mul": (7, _float_kernel(np.multiply)),
    "Sqrt": (6, _float_kernel(np.sqrt)),
    "Sub": (7, _float_kernel(np.subtract)),
}
"""Kernels of elementwise IEEE arithmetic, for level `extended`, in the form of KERNELS."""
