"""How nodes of each operator are drawn: the arguments that it may be given, at their edges too.

What ONNX Runtime refuses is rejected by `Drawing.node`, so that these only have to be likely. What
would end the process (a division of integers by zero) or take all memory is not drawn at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.fuzz.graphs.drawing import (
    BITS2,
    BITS4,
    BOOL,
    FLOAT8,
    FLOATS,
    INT64,
    INTEGERS,
    SIGNED,
    STRING,
    Drawing,
    Rejected,
    Value,
)

INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)
INT32_MAX, INT32_MIN = 2**31 - 1, -(2**31)
EDGES = (INT64_MAX, INT64_MIN, INT32_MAX, INT32_MIN, INT64_MAX - 1, INT64_MIN + 1, -1000, 1000)
NUMBERS = (*FLOATS, *INTEGERS)
Draw = Callable[[Drawing], object]

UNARY: dict[str, Sequence[int]] = {
    "Identity": (),
    "Neg": (*FLOATS, *SIGNED),
    "Abs": NUMBERS,
    "Sign": NUMBERS,
    "Not": (BOOL,),
    "BitwiseNot": INTEGERS,
    "NonZero": (*NUMBERS, BOOL),
    "Size": (),
    "IsNaN": (*FLOATS, *FLOAT8),
    "IsInf": (*FLOATS, *FLOAT8),
    **dict.fromkeys(
        ("Relu", "Sqrt", "Exp", "Log", "Sigmoid", "Tanh", "Floor", "Ceil", "Round", "Erf",
         "Reciprocal", "Softplus", "Sin", "Softsign", "Elu", "LeakyRelu", "HardSigmoid"),
        FLOATS,
    ),
}  # fmt: skip
BINARY: dict[str, Sequence[int]] = {
    **dict.fromkeys(("Add", "Sub", "Mul"), NUMBERS),
    **dict.fromkeys(("Less", "Greater", "LessOrEqual", "GreaterOrEqual"), NUMBERS),
    "Equal": (*NUMBERS, BOOL, STRING),
    "Pow": NUMBERS,
    **dict.fromkeys(("And", "Or", "Xor"), (BOOL,)),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), INTEGERS),
    "PRelu": (*FLOATS, *INTEGERS),
}
REDUCTIONS = ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceSumSquare",
              "ReduceL1", "ReduceL2", "ReduceLogSumExp")  # fmt: skip


def unary(draw: Drawing) -> None:
    op_type = draw.random.choice(tuple(UNARY))
    draw.node(op_type, [draw.pick(UNARY[op_type])])


def binary(draw: Drawing) -> None:
    op_type = draw.random.choice(tuple(BINARY))
    left, right = alike(draw, BINARY[op_type])
    draw.node(op_type, [left, right])


def alike(draw: Drawing, kinds: Sequence[int]) -> tuple[Value, Value]:
    """Two values of one type, the second of a shape that the first's may be broadcast with."""
    left = draw.pick(kinds)
    fitting = [
        value
        for value in draw.scope.visible()
        if not value.is_sequence and value.kind == left.kind and _broadcasts(value, left)
    ]
    if fitting and draw.chance(0.6):
        right = draw.random.choice(fitting)
    elif draw.chance(0.3):
        neutral = draw.random.choice((0, 1))
        dtype = helper.tensor_dtype_to_np_dtype(left.kind)
        array = np.full(left.shape, neutral).astype(str if left.kind == STRING else dtype)
        right = draw.literal(array.astype(object) if left.kind == STRING else array, left.kind)
    else:
        shape = tuple(1 if draw.chance(0.3) else size for size in left.shape)
        right = draw.constant(left.kind, shape[draw.random.randint(0, len(shape)) :])
    return (left, right) if draw.chance(0.7) else (right, left)


def _broadcasts(one: Value, other: Value) -> bool:
    try:
        np.broadcast_shapes(one.shape, other.shape)
    except ValueError:
        return False
    return True


def divide(draw: Drawing) -> None:
    """Div and Mod; of integers where nothing is divided by zero, and the quotient is in range."""
    op_type = draw.random.choice(("Div", "Mod"))
    left, right = alike(draw, NUMBERS)
    fmod = {"fmod": 1} if op_type == "Mod" and (left.kind in FLOATS or draw.chance(0.5)) else {}
    if left.kind in INTEGERS:
        if right.tensor is None and draw.scope.repeats:
            raise Rejected("a divisor that may become zero")
        divisor = right.array()
        if not divisor.all() or (divisor == -1).any() or _in_body(draw, right):
            limits = np.iinfo(divisor.dtype)
            items = draw.random.choices((1, 2, 3, 7, int(limits.max)), k=right.size)
            right = draw.literal(np.array(items, divisor.dtype).reshape(right.shape), right.kind)
    draw.node(op_type, [left, right], **fmod)


def _in_body(draw: Drawing, value: Value) -> bool:
    return draw.scope.outer is not None and value.tensor is None


def variadic(draw: Drawing) -> None:
    op_type = draw.random.choice(("Max", "Min", "Sum", "Mean"))
    left, right = alike(draw, NUMBERS if op_type in ("Max", "Min") else FLOATS)
    draw.node(op_type, [left, right, left][: draw.random.randint(1, 3)])


def shift(draw: Drawing) -> None:
    left, right = alike(draw, INTEGERS[4:])
    draw.node("BitShift", [left, right], direction=draw.random.choice(("LEFT", "RIGHT")))


def ints_argument(
    draw: Drawing, op_type: str, name: str, items: Sequence[int] | None
) -> tuple[list[Value | None], dict[str, Any]]:
    """Integers as this opset's form of an operator takes them: as an input or an attribute."""
    how = draw.takes(op_type, name)
    if items is None or not how:
        return [], {}
    if how == "attribute":
        return [], {name: items}
    return [draw.ints(items)], {}


def reduction(draw: Drawing) -> None:
    op_type = draw.random.choice(REDUCTIONS[:4] if draw.chance(0.7) else REDUCTIONS)
    data = draw.pick((*FLOATS, *INTEGERS, BOOL) if draw.opset >= 20 else NUMBERS)
    _require_elements(data)
    axes = draw.axes(len(data.shape)) if draw.chance(0.7) else None
    more, attributes = ints_argument(draw, op_type, "axes", axes)
    if draw.chance(0.5):
        attributes["keepdims"] = draw.random.choice((0, 1, 1, 2))
    if draw.takes(op_type, "noop_with_empty_axes") and draw.chance(0.3):
        attributes["noop_with_empty_axes"] = draw.random.choice((0, 1, 1, 2, -1))
    draw.node(op_type, [data, *more], **attributes)


def _require_elements(data: Value) -> None:
    """Of nothing ONNX Runtime makes another shape than it infers: it is chance whether it takes
    the nodes that follow, in the source or in what a level makes of it."""
    if not data.size:
        raise Rejected("a reduction over nothing")


def along_axis(draw: Drawing) -> None:
    op_type = draw.random.choice(("Softmax", "LogSoftmax", "ArgMax", "ArgMin", "CumSum", "Hardmax"))
    data = draw.pick(NUMBERS if op_type[:3] in ("Arg", "Cum") else FLOATS, least_rank=1)
    _require_elements(data)
    axis = draw.axis(len(data.shape))
    if op_type == "CumSum":
        flags = {name: draw.random.randint(0, 1) for name in ("exclusive", "reverse")}
        draw.node(op_type, [data, draw.ints(axis)], **flags)
    else:
        draw.node(op_type, [data], axis=axis)


def shape(draw: Drawing) -> None:
    value = draw.pick()
    attributes: dict[str, Any] = {}
    if draw.takes("Shape", "start"):
        for name in ("start", "end"):
            if draw.chance(0.3):
                attributes[name] = draw.random.choice((-1, 0, 1, 2, -2, 9, -9))
    draw.node("Shape", [value], **attributes)


def slice_(draw: Drawing) -> None:
    data = draw.pick(least_rank=1)
    rank = len(data.shape)
    axes = draw.axes(rank) or [0]
    starts, ends, steps = [], [], []
    for axis in axes:
        size = data.shape[axis]
        near = range(-size - 2, size + 3)
        starts.append(draw.random.choice(EDGES if draw.chance(0.2) else near))
        ends.append(draw.random.choice(EDGES if draw.chance(0.4) else near))
        steps.append(draw.random.choice((1, 1, 1, -1, -1, 2, -2, 5, *EDGES)))
    if draw.takes("Slice", "starts") == "attribute":
        draw.node("Slice", [data], starts=starts, ends=ends, axes=axes)
        return
    kind = INT64
    if draw.chance(0.3):
        kind = TensorProto.INT32
        starts, ends, steps = (
            [max(INT32_MIN, min(INT32_MAX, item)) for item in each]
            for each in (starts, ends, steps)
        )
    given = [draw.ints(each, kind) for each in (starts, ends)]
    if draw.chance(0.2):
        draw.node("Slice", [data, *given])
    elif draw.chance(0.2):
        draw.node("Slice", [data, *given, None, draw.ints(steps, kind)])
    else:
        more = [draw.ints(axes, kind), draw.ints(steps, kind)]
        draw.node("Slice", [data, *given, *more[: draw.random.choice((1, 2, 2))]])


def squeeze(draw: Drawing) -> None:
    data = draw.pick()
    ones = [axis for axis, size in enumerate(data.shape) if size == 1]
    axes = draw.random.choice((None, ones[:1], ones, [], [axis - len(data.shape) for axis in ones]))
    more, attributes = ints_argument(draw, "Squeeze", "axes", axes)
    draw.node("Squeeze", [data, *more], **attributes)


def unsqueeze(draw: Drawing) -> None:
    data = draw.pick(most_rank=4)
    axes = draw.axes(len(data.shape) + draw.random.randint(1, 2))
    more, attributes = ints_argument(draw, "Unsqueeze", "axes", axes)
    draw.node("Unsqueeze", [data, *more], **attributes)


def reshape(draw: Drawing) -> None:
    data = draw.pick()
    wanted = _factors(draw, data.size)
    for index in range(len(wanted)):
        if index < len(data.shape) and wanted[index] == data.shape[index] and draw.chance(0.3):
            wanted[index] = 0
    if wanted and draw.chance(0.4):
        wanted[draw.random.randrange(len(wanted))] = -1
    attributes: dict[str, Any] = {}
    if draw.takes("Reshape", "allowzero") and draw.chance(0.2):
        attributes["allowzero"] = draw.random.choice((0, 1, 2))
    draw.node("Reshape", [data, draw.ints(wanted)], **attributes)


def _factors(draw: Drawing, size: int) -> list[int]:
    found: list[int] = []
    while size > 1 and len(found) < 3:
        factor = draw.random.choice([each for each in range(1, size + 1) if size % each == 0])
        found.append(factor)
        size //= factor
    return [*found, size] if draw.chance(0.8) or size != 1 else found


def reshaped_by_shape(draw: Drawing) -> None:
    """What exporters write: a shape that nodes make of another value's."""
    data, like = draw.pick(), draw.pick()
    (wanted,) = draw.node("Shape", [like])
    if draw.chance(0.5) and like.shape:
        index = draw.ints(draw.axis(len(like.shape)))
        (one,) = draw.node("Gather", [wanted, index], axis=0)
        more, attributes = ints_argument(draw, "Unsqueeze", "axes", [0])
        (one,) = draw.node("Unsqueeze", [one, *more], **attributes)
        (wanted,) = draw.node("Concat", [one, draw.ints([-1])], axis=0)
    draw.node(draw.random.choice(("Reshape", "Expand")), [data, wanted])


def expand(draw: Drawing) -> None:
    data = draw.pick(most_rank=4)
    sizes = [draw.random.choice((1, 2, size)) for size in data.shape]
    draw.node("Expand", [data, draw.ints([2] * draw.random.randint(0, 1) + sizes)])


def tile(draw: Drawing) -> None:
    data = draw.pick(most_rank=4)
    draw.node("Tile", [data, draw.ints([draw.random.choice((0, 1, 1, 2, 3)) for _ in data.shape])])


def transpose(draw: Drawing) -> None:
    data = draw.pick()
    if draw.chance(0.2):
        draw.node("Transpose", [data])
        return
    draw.node("Transpose", [data], perm=draw.random.sample(range(len(data.shape)), len(data.shape)))


def flatten(draw: Drawing) -> None:
    data = draw.pick()
    rank = len(data.shape)
    axis = draw.random.randint(-rank if draw.opset >= 11 else 0, rank)
    draw.node("Flatten", [data], **({"axis": axis} if draw.chance(0.8) else {}))


def concat(draw: Drawing) -> None:
    first = draw.pick(least_rank=1)
    axis = draw.axis(len(first.shape))
    others = [v for v in draw.scope.visible() if not v.is_sequence and v.kind == first.kind]
    parts = [
        first,
        *(draw.random.choice((first, *others)) for _ in range(draw.random.randint(0, 2))),
    ]
    fitting = [v for v in parts if len(v.shape) == len(first.shape)]
    draw.node("Concat", fitting, axis=axis)


def split(draw: Drawing) -> None:
    data = draw.pick(least_rank=1)
    axis = draw.axis(len(data.shape))
    size = data.shape[axis]
    first = draw.random.randint(0, size)
    sizes = draw.random.choice((None, [first, size - first], [size], [0, size, 0]))
    more, attributes = ints_argument(draw, "Split", "split", sizes)
    count = len(sizes) if sizes is not None else draw.random.randint(1, 3)
    if sizes is None and draw.takes("Split", "num_outputs"):
        attributes["num_outputs"] = count
    draw.node("Split", [data, *more], count, axis=axis, **attributes)


def pad(draw: Drawing) -> None:
    data = draw.pick((*NUMBERS, BOOL, *FLOAT8))
    rank = len(data.shape)
    mode = draw.random.choice(("constant", "constant", "edge", "reflect", "wrap"))
    pads = [draw.random.choice((0, 0, 1, 2, -1)) for _ in range(2 * rank)]
    if draw.takes("Pad", "pads") == "attribute":
        draw.node("Pad", [data], pads=pads, mode=mode, value=draw.random.choice((0.0, 1.5)))
        return
    inputs: list[Value | None] = [data, draw.ints(pads)]
    if draw.chance(0.5):
        inputs.append(draw.constant(data.kind, draw.random.choice(((), (), (1,)))))
    if draw.takes("Pad", "axes") and draw.chance(0.4):
        axes = draw.axes(rank)
        inputs[1] = draw.ints(pads[: 2 * len(axes)])
        inputs += [None] * (3 - len(inputs)) + [draw.ints(axes)]
    draw.node("Pad", inputs, mode=mode)


def indices(draw: Drawing, size: int, shape: tuple[int, ...]) -> Value:
    """Indices into an axis, counted from either end."""
    if not size:
        shape = (0,)
    items = [draw.random.randint(-size, max(size - 1, 0)) for _ in range(math.prod(shape))]
    kind = draw.random.choice((INT64, INT64, TensorProto.INT32))
    array = np.array(items, np.int64).reshape(shape)
    return draw.literal(array.astype(helper.tensor_dtype_to_np_dtype(kind)), kind)


def gather(draw: Drawing) -> None:
    data = draw.pick(least_rank=1)
    axis = draw.axis(len(data.shape))
    draw.node("Gather", [data, indices(draw, data.shape[axis], draw.shape(2))], axis=axis)


def gather_elements(draw: Drawing) -> None:
    data = draw.pick(least_rank=1)
    axis = draw.axis(len(data.shape))
    smaller = tuple(draw.random.randint(min(1, size), size) for size in data.shape)
    where = indices(draw, data.shape[axis], smaller)
    op_type = draw.random.choice(("GatherElements", "ScatterElements"))
    if op_type == "GatherElements":
        draw.node(op_type, [data, where], axis=axis)
        return
    updates = draw.constant(data.kind, where.shape)
    draw.node(op_type, [data, where, updates], axis=axis, **scattering(draw, op_type))


def gather_nd(draw: Drawing) -> None:
    data = draw.pick(least_rank=1)
    depth = draw.random.randint(1, len(data.shape))
    count = draw.random.choice(((), (1,), (2,), (3,), (0,)))
    rows = [
        [draw.random.randint(-size, max(size - 1, 0)) for size in data.shape[:depth]]
        for _ in range(math.prod(count))
    ]
    where = draw.literal(np.array(rows, np.int64).reshape(*count, depth), INT64)
    op_type = draw.random.choice(("GatherND", "ScatterND"))
    if op_type == "GatherND":
        draw.node(op_type, [data, where])
        return
    updates = draw.constant(data.kind, (*count, *data.shape[depth:]))
    draw.node(op_type, [data, where, updates], **scattering(draw, op_type))


def scattering(draw: Drawing, op_type: str) -> dict[str, Any]:
    """The reduction of a scatter, now and then."""
    if not draw.takes(op_type, "reduction") or draw.chance(0.6):
        return {}
    return {"reduction": draw.random.choice(("none", "add", "mul", "max", "min"))}


def where(draw: Drawing) -> None:
    left, right = alike(draw, ())
    size = np.broadcast_shapes(left.shape, right.shape)
    condition = draw.constant(BOOL, size)
    if draw.chance(0.3):
        condition = draw.literal(np.full(size, draw.chance(0.5)), BOOL)
    elif draw.chance(0.4):
        condition = draw.pick((BOOL,))
    draw.node("Where", [condition, left, right])


def fill(draw: Drawing) -> None:
    attributes: dict[str, Any] = {}
    if draw.chance(0.8):
        value = draw.constant(draw.kind(), (1,))
        attributes["value"] = value.tensor
    draw.node("ConstantOfShape", [draw.ints(list(draw.shape()))], **attributes)


def eye(draw: Drawing) -> None:
    data = draw.pick(least_rank=2, most_rank=2)
    dtype = (
        {"dtype": draw.random.choice([k for k in NUMBERS if k in draw.kinds])}
        if draw.chance(0.6)
        else {}
    )
    draw.node("EyeLike", [data], k=draw.random.choice((0, 1, -1, 9, -9, -2)), **dtype)


def range_(draw: Drawing) -> None:
    kind = draw.random.choice((*SIGNED[1:], TensorProto.FLOAT, TensorProto.DOUBLE))
    start, step = draw.random.randint(-5, 5), draw.random.choice((1, 2, -1, -3))
    limit = start + draw.random.randint(-12, 12)
    draw.node("Range", [draw.ints(item, kind) for item in (start, limit, step)])


def compress(draw: Drawing) -> None:
    data = draw.pick(least_rank=1)
    if draw.chance(0.4):
        draw.node("Compress", [data, draw.constant(BOOL, (min(data.size, 5),))])
        return
    axis = draw.axis(len(data.shape))
    length = max(0, data.shape[axis] - draw.random.randint(0, 1))
    draw.node("Compress", [data, draw.constant(BOOL, (length,))], axis=axis)


def one_hot(draw: Drawing) -> None:
    where = draw.pick((*INTEGERS, *FLOATS), most_rank=3)
    depth = draw.ints(draw.random.choice(([1], [3], 4, [5])))
    values = draw.constant(draw.kind(), (2,))
    axis = draw.random.randint(-len(where.shape) - 1, len(where.shape))
    draw.node("OneHot", [where, depth, values], axis=axis)


def top_k(draw: Drawing) -> None:
    data = draw.pick(NUMBERS, least_rank=1)
    axis = draw.axis(len(data.shape))
    k = draw.ints([draw.random.randint(0, data.shape[axis])])
    draw.node("TopK", [data, k], 2, axis=axis)


def trilu(draw: Drawing) -> None:
    data = draw.pick(least_rank=2)
    k = [draw.ints(draw.random.choice((0, 1, -1, 5, -5)))] if draw.chance(0.6) else []
    draw.node("Trilu", [data, *k], upper=draw.random.randint(0, 1))


def blocks(draw: Drawing) -> None:
    op_type = draw.random.choice(("DepthToSpace", "SpaceToDepth"))
    size = (1, 8, 1, 2) if op_type == "DepthToSpace" else (1, 1, 4, 2)
    data = draw.constant(draw.random.choice(NUMBERS), size)
    attributes: dict[str, Any] = {"blocksize": draw.random.choice((1, 2))}
    if op_type == "DepthToSpace" and draw.takes(op_type, "mode"):
        attributes["mode"] = draw.random.choice(("DCR", "CRD"))
    draw.node(op_type, [data], **attributes)


def cast(draw: Drawing) -> None:
    data = draw.pick()
    to = draw.kind() if draw.chance(0.7) else draw.random.choice(draw.kinds)
    saturate = {"saturate": draw.random.randint(0, 1)} if to in FLOAT8 else {}
    if draw.chance(0.2) and draw.opset >= 15:
        draw.node("CastLike", [data, draw.pick((to,))], **saturate)
    else:
        draw.node("Cast", [data], to=to, **saturate)


def quantize(draw: Drawing) -> None:
    kinds = [k for k in (*FLOAT8, *BITS4, *BITS2, *INTEGERS[:2], *INTEGERS[4:6]) if k in draw.kinds]
    kind = draw.random.choice(kinds if draw.opset >= 19 else (TensorProto.UINT8, TensorProto.INT8))
    data = draw.pick((TensorProto.FLOAT, TensorProto.FLOAT16)[: 1 if draw.opset < 19 else 2])
    dtype = helper.tensor_dtype_to_np_dtype(data.kind)
    scale = draw.literal(np.array(draw.random.choice((0.5, 0.1, 2.0)), dtype), data.kind)
    zero = draw.literal(np.zeros((), helper.tensor_dtype_to_np_dtype(kind)), kind)
    (quantized,) = draw.node("QuantizeLinear", [data, scale, zero])
    draw.node("DequantizeLinear", [quantized, scale, zero])


def matmul(draw: Drawing) -> None:
    left = draw.pick((*FLOATS, TensorProto.INT32, INT64), least_rank=1)
    inner = left.shape[-1]
    right = draw.constant(left.kind, (inner, draw.random.randint(1, 3)))
    if len(left.shape) == 2 and left.kind in FLOATS and draw.chance(0.4):
        draw.node("Gemm", [left, right, draw.constant(left.kind, right.shape[1:])])
    else:
        draw.node("MatMul", [left, right])


def dropout(draw: Drawing) -> None:
    data = draw.pick(FLOATS)
    if draw.opset >= 12 and draw.chance(0.5):
        training = draw.literal(np.array(False), BOOL)
        draw.node("Dropout", [data, draw.literal(np.array(0.5, np.float32), 1), training])
    else:
        draw.node("Dropout", [data])


def clip(draw: Drawing) -> None:
    data = draw.pick(NUMBERS)
    if draw.opset < 11:
        draw.node("Clip", [data], min=-1.0, max=2.0)
    else:
        bounds = sorted(draw.array(data.kind, (2,)).tolist(), key=lambda item: (item != item, item))
        dtype = helper.tensor_dtype_to_np_dtype(data.kind)
        low, high = (draw.literal(np.array(item).astype(dtype), data.kind) for item in bounds)
        inputs = ([data, low, high], [data, low], [data, None, high])
        draw.node("Clip", draw.random.choice(inputs))


def twice(draw: Drawing) -> None:
    """What a rewrite rule looks for: an operator of its own result."""
    op_type = draw.random.choice(("Not", "Neg", "Relu", "Transpose", "Reshape", "Cast", "Identity"))
    data = draw.pick({"Not": (BOOL,), "Neg": (*FLOATS, *SIGNED), "Relu": FLOATS}.get(op_type, ()))
    if op_type == "Cast":
        (wide,) = draw.node("Cast", [data], to=draw.random.choice(NUMBERS))
        draw.node("Cast", [wide], to=draw.random.choice((data.kind, *INTEGERS)))
    elif op_type == "Reshape":
        (flat,) = draw.node("Reshape", [data, draw.ints([-1])])
        draw.node("Reshape", [flat, draw.ints(list(data.shape))])
    elif op_type == "Transpose":
        rank = len(data.shape)
        (one,) = draw.node(op_type, [data], perm=draw.random.sample(range(rank), rank))
        draw.node(op_type, [one], perm=draw.random.sample(range(rank), rank))
    else:
        (one,) = draw.node(op_type, [data])
        draw.node(op_type, [one])


def string(draw: Drawing) -> None:
    data = draw.pick((STRING,), most_rank=2)
    op_type = draw.random.choice(
        ("StringNormalizer", "StringConcat", "StringSplit", "RegexFullMatch")
    )
    if op_type == "StringNormalizer":
        draw.node(op_type, [data], case_change_action=draw.random.choice(("UPPER", "NONE")))
    elif op_type == "StringConcat":
        draw.node(op_type, [data, draw.constant(STRING, ())])
    elif op_type == "StringSplit":
        draw.node(op_type, [data], 2)
    else:
        draw.node(op_type, [data], pattern="[a-z]*")


def sequence(draw: Drawing) -> None:
    if draw.chance(0.4):
        first = draw.pick()
        if draw.chance(0.3) and first.shape:
            draw.node("SplitToSequence", [first], axis=draw.axis(len(first.shape)))
        else:
            draw.node("SequenceConstruct", [first] * draw.random.randint(1, 3))
        return
    found = draw.pick_sequence()
    op_type = draw.random.choice(
        ("SequenceAt", "SequenceAt", "SequenceLength", "SequenceInsert", "SequenceErase",
         "ConcatFromSequence", "Identity")
    )  # fmt: skip
    position = draw.ints(draw.random.choice((0, -1, 1)))
    if op_type == "SequenceInsert":
        more = [position] if draw.chance(0.5) else []
        draw.node(op_type, [found, draw.pick((found.kind,)), *more])
    elif op_type == "ConcatFromSequence":
        draw.node(op_type, [found], axis=draw.random.choice((0, -1)), new_axis=0)
    else:
        draw.node(
            op_type, [found, *([position] if op_type in ("SequenceAt", "SequenceErase") else [])]
        )


def input_(draw: Drawing) -> None:
    if draw.scope.outer is None:
        draw.input()


OPERATORS: dict[Draw, int] = {
    unary: 8, binary: 8, divide: 3, variadic: 3, shift: 1, reduction: 6, along_axis: 3, shape: 6,
    slice_: 7, squeeze: 4, unsqueeze: 3, reshape: 4, reshaped_by_shape: 4, expand: 2, tile: 2,
    transpose: 3, flatten: 2, concat: 4, split: 3, pad: 3, gather: 4, gather_elements: 3,
    gather_nd: 3, where: 4, fill: 3, eye: 1, range_: 2, compress: 2, one_hot: 2, top_k: 1, trilu: 2,
    blocks: 1, cast: 8, quantize: 4, matmul: 2, dropout: 2, clip: 2, twice: 4, string: 2,
    sequence: 5, input_: 3,
}  # fmt: skip
"""What draws nodes, with how often it does."""
