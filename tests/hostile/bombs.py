"""Small files that ask for much: models whose cost in memory or time is not that of their bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
from onnx import TensorProto, helper

from tests.hostile import project
from tests.hostile.models import FLOAT, graph, model, node, of, value
from tests.hostile.table import Room, add

KIND = "bomb"
ENDLESS = "a loop without an end"


def bomb(
    name: str,
    make: Callable[[], onnx.ModelProto | bytes],
    says: str,
    *,
    limits: dict[str, int] | None = None,
    **rest: Any,
) -> None:
    """A row: the model, under the limits given, is refused."""

    def put(room: Room) -> None:
        project.replace_model(room, make())
        if name == ENDLESS:
            project.manifest(room, _timeout)
        for key, limit in (limits or {}).items():
            room.environment[f"EPCTX_LIMIT_{key}"] = str(limit)

    add(KIND, name, put, says=says, **{"code": 4, **rest})


def varint(number: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def field(number: int, payload: bytes) -> bytes:
    """A field with a length."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def raw(graph_fields: bytes) -> bytes:
    """A model file of a graph of these fields."""
    return b"\x08\x0a" + field(7, graph_fields) + field(8, b"\x10\x15")


def nested(levels: int) -> bytes:
    """If nodes in bodies of If nodes."""
    inner = b""
    for _ in range(levels):
        inner = field(1, field(4, b"If") + field(5, field(6, inner)))
    return raw(inner)


def deep_type(levels: int) -> bytes:
    """A sequence of sequences of ..."""
    kind = b""
    for _ in range(levels):
        kind = field(4, field(1, kind))
    return raw(field(11, field(1, b"x") + field(2, kind)))


PROCESS: dict[str, Any] = {"how": "process", "seconds": 120.0, "memory": 1200}

bomb(
    "2,000,000 empty nodes",
    lambda: raw(field(1, b"") * 2_000_000),
    "raise EPCTX_LIMIT_MODEL_NODES",
    **PROCESS,
)
bomb("12,000,000 empty types", lambda: raw(field(13, b"") * 12_000_000), "_FIELDS", **PROCESS)
bomb(
    "more fields than allowed",
    lambda: raw(field(1, b"") * 5000),
    "raise EPCTX_LIMIT_MODEL_FIELDS",
    limits={"MODEL_FIELDS": 1000},
)
bomb(
    "a type of 1,000,000 dimensions",
    lambda: raw(field(11, field(2, field(1, field(2, field(1, b"") * 1_000_000))))),
    "raise EPCTX_LIMIT_MODEL_STRUCTURE_BYTES",
    limits={"MODEL_STRUCTURE_BYTES": 1_000_000},
)
bomb(
    "metadata of 1,000,000 empty entries",
    lambda: raw(b"") + field(14, b"") * 1_000_000,
    "a.onnx",
)
bomb("a type of 100,000 dimensions", lambda: _ranked(100_000), "100,001 dimensions")
bomb("bodies in bodies, 30 deep", lambda: nested(30), "a.onnx")
bomb("bodies in bodies, 100 deep", lambda: nested(100), "a.onnx: is not an ONNX model")
bomb("bodies in bodies, 10,000 deep", lambda: nested(10_000), "a.onnx: is not an ONNX model")
bomb("a sequence of sequences, 10,000 deep", lambda: deep_type(10_000), "a.onnx: is not an ONNX")
bomb("groups of the old format, 100,000 deep", lambda: b"\x0b" * 100_000, "a.onnx: is")
bomb("a name of 10 MiB", lambda: _long_name(10 << 20), "characters more")
bomb("a name of escape sequences", lambda: _named("\x1b[2J\x1b]0;owned\x07"), "is made twice")
bomb("a name of line breaks", lambda: _named("n\n::error::owned\n"), "is made twice")
bomb("8 sparse tensors of 512 MiB", lambda: _sparse([1 << 27], 8), "raise EPCTX_LIMIT_DENSE_BYTES")
bomb(
    "a sparse tensor past 2^63",
    lambda: _sparse([1 << 40, 1 << 40], 1),
    "ONNX Runtime does not load it",
)
bomb(
    "a sparse tensor with a negative dimension",
    lambda: _sparse([-4], 1),
    "expected to be non-negative",
)
bomb(
    "a fill of 2^40 values",
    lambda: _filled([1 << 20, 1 << 20]),
    "the source model itself does not run",
    code=0,
    **PROCESS,
)
bomb(
    "a range of 2^40 numbers",
    lambda: _ranged(1 << 40),
    "the source model itself does not run",
    code=0,
    **PROCESS,
)
SHORT: dict[str, Any] = {"limits": {"NATIVE_MEMORY": 400 << 20}, **PROCESS, "seconds": 60.0}


def stepped(step: int, what: str) -> None:
    """A row: a Slice with a step that nodes compute, which onnx cuts to 32 bits."""
    name = f"a computed step of {step}, which onnx takes for {what}"
    bomb(name, lambda: _stepped(step), "g@default: verified", code=0, **SHORT)


stepped(1 << 32, "none")
stepped(-(1 << 63), "none")
stepped((1 << 63) - 1, "a step back")
bomb(
    "a shape joined with itself 22 times",
    lambda: _joined(22),
    "g@default: verified",
    code=0,
    **{**SHORT, "memory": 2400},
)
bomb(ENDLESS, lambda: _endless(), "no result within 4 s", **{**PROCESS, "code": 10})


def _ranked(rank: int) -> onnx.ModelProto:
    made = of(node("Relu", ["x"], ["y"]))
    made.graph.input[0].type.tensor_type.shape.dim.extend(
        [onnx.TensorShapeProto.Dimension(dim_value=1)] * rank
    )
    return made


def _long_name(length: int) -> onnx.ModelProto:
    name = "n" * length
    return of(node("Relu", ["x"], [name]), node("Relu", ["x"], [name]), node("Abs", [name], ["y"]))


def _named(name: str) -> onnx.ModelProto:
    return of(node("Relu", ["x"], [name]), node("Relu", ["x"], [name]), node("Abs", [name], ["y"]))


def _sparse(dims: list[int], count: int) -> onnx.ModelProto:
    made = of(node("Relu", ["x"], ["y"]))
    for number in range(count):
        sparse = made.graph.sparse_initializer.add(dims=dims)
        sparse.values.CopyFrom(helper.make_tensor(f"s{number}", FLOAT, [1], [1.0]))
        sparse.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, [1], [0]))
    return made


def _filled(dims: list[int]) -> onnx.ModelProto:
    shape = helper.make_tensor("s", TensorProto.INT64, [len(dims)], dims)
    fill = node("ConstantOfShape", ["s"], ["f"])
    return of(
        fill, node("ReduceSum", ["f"], ["r"]), node("Add", ["x", "r"], ["y"]), weights=[shape]
    )


def _ranged(limit: int) -> onnx.ModelProto:
    ends = [
        helper.make_tensor(name, TensorProto.INT64, [], [number])
        for name, number in (("a", 0), ("b", limit), ("c", 1))
    ]
    nodes = (
        node("Range", ["a", "b", "c"], ["r"]),
        node("ReduceSum", ["r"], ["s"], keepdims=0),
        node("Cast", ["s"], ["f"], to=FLOAT),
        node("Add", ["x", "f"], ["y"]),
    )
    return of(*nodes, weights=ends)


def _stepped(step: int) -> onnx.ModelProto:
    """A Slice of x's shape, with a step that nodes compute."""
    ends = [
        helper.make_tensor(name, TensorProto.INT64, [1], [number])
        for name, number in (("a", 0), ("b", 2**62), ("c", 0), ("d", step), ("e", 0))
    ]
    nodes = (
        node("Shape", ["x"], ["s"]),
        node("Add", ["d", "e"], ["step"]),
        node("Slice", ["s", "a", "b", "c", "step"], ["t"]),
        node("Cast", ["t"], ["f"], to=FLOAT),
        node("ReduceSum", ["f"], ["sum"], keepdims=0),
        node("Add", ["x", "sum"], ["y"]),
    )
    return of(*nodes, weights=ends)


def _joined(times: int) -> onnx.ModelProto:
    """A shape of 2 to the power of `times` dimensions, or more, that is no tensor's."""
    nodes = [node("Shape", ["x"], ["s0"])]
    nodes += [node("Concat", [f"s{i}", f"s{i}"], [f"s{i + 1}"], axis=0) for i in range(times)]
    nodes += [
        node("Cast", [f"s{times}"], ["f"], to=FLOAT),
        node("ReduceMean", ["f"], ["m"], keepdims=0),
        node("Add", ["x", "m"], ["y"]),
    ]
    return of(*nodes, weights=[])


def _endless() -> onnx.ModelProto:
    body = graph(
        [node("Identity", ["c"], ["d"]), node("Sin", ["v"], ["w"])],
        name="body",
        inputs=("i", "c", "v"),
        outputs=("d", "w"),
    )
    for info, kind in ((body.input[0], 7), (body.input[1], 9), (body.output[0], 9)):
        info.CopyFrom(value(info.name, kind, []))
    trips = helper.make_tensor("n", TensorProto.INT64, [], [2**63 - 1])
    go = helper.make_tensor("go", TensorProto.BOOL, [], [True])
    return model(graph([node("Loop", ["n", "go", "x"], ["y"], body=body)], weights=[trips, go]))


def _timeout(m: dict[str, Any]) -> None:
    m["model_groups"]["g"]["timeout"] = "4s"
