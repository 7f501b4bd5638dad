"""Models that are broken: each is refused when it is loaded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import onnx
from onnx import TensorProto, helper

from tests.hostile import models, project
from tests.hostile.models import FLOAT, graph, model, node, of, value, weight
from tests.hostile.table import Room, add, row

KIND = "broken model"


def refused(name: str, make: Callable[[], onnx.ModelProto | bytes], says: str, **rest: Any) -> None:
    """A row: the model in the project's place is refused with 4."""
    options: dict[str, object] = {"code": 4, **rest}

    def put(room: Room) -> None:
        project.replace_model(room, make())

    add(KIND, name, put, says=says, **options)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------ bytes of the file


@row(KIND, "no file", code=4, says="a.onnx: does not exist")
def _(room: Room) -> None:
    (room.folder / "a.onnx").unlink()


refused("empty file", lambda: b"", "a.onnx: is empty")
refused("a text", lambda: b"hello, world\n" * 40, "a.onnx: is text, not an ONNX model")
refused(
    "a Git LFS pointer", lambda: b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"
)
refused("zeros", lambda: bytes(4096), "a.onnx: is not an ONNX model")
refused("bytes 0xff", lambda: b"\xff" * 4096, "a.onnx: is not an ONNX model")
refused("a zip archive", lambda: b"PK\x03\x04" + bytes(64), "zip archive")
refused("a web page", lambda: b"<!DOCTYPE html><html></html>", "web page")


def _whole() -> bytes:
    """A model with each kind of field: weights inside, a body, a function, metadata."""
    inner = graph([node("Abs", ["x"], ["t"], name="n")], name="b", inputs=(), outputs=("t",))
    constant = node(
        "Constant", [], ["c"], value=helper.make_tensor("v", TensorProto.BOOL, [], [True])
    )
    branch = node("If", ["c"], ["i"], name="if", then_branch=inner, else_branch=inner)
    function = helper.make_function(
        "own", "F", ["p"], ["q"], [node("Neg", ["p"], ["q"])], [helper.make_opsetid("", 21)]
    )
    call = node("F", ["i"], ["f"], domain="own")
    last = node("Add", ["f", "w"], ["y"])
    made = model(
        graph([constant, branch, call, last], weights=[weight()]),
        domains=[("own", 1)],
        functions=[function],
    )
    onnx.helper.set_model_props(made, {"key": "value"})
    data: bytes = made.SerializeToString()
    return data


def _ends(message: onnx.ModelProto) -> dict[str, int]:
    """Offsets of each class of place in a serialized model: in the middle of what they name."""
    data = message.SerializeToString()
    found = {}
    for name, piece in {
        "the producer": b"",
        "a node's name": b"if",
        "a body's node": b"Abs",
        "a function": b"Neg",
        "a tensor's data": helper.make_tensor("w", FLOAT, [4], [1.0] * 4).SerializeToString(),
        "an input's type": value("x", FLOAT, [4]).SerializeToString(),
        "metadata": b"value",
    }.items():
        at = data.rfind(piece) if piece else 3
        found[name] = at + max(1, len(piece) // 2)
    return found


def _cut(name: str, at: int) -> None:
    refused(f"cut in {name}", lambda: _whole()[:at], "a.onnx: is not an ONNX model")


for _name, _at in _ends(onnx.ModelProto.FromString(_whole())).items():
    _cut(_name, _at)


def _cut_at(part: float) -> None:
    @row(KIND, f"cut at {part:.0%} of the file", code=4, says="a.onnx: is not an ONNX model")
    def _(room: Room) -> None:
        path = room.folder / "a.onnx"
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * part)])


for _part in (0.01, 0.25, 0.5, 0.75, 0.99):
    _cut_at(_part)

refused(
    "a length that goes beyond the file",
    lambda: b"\x08\x0a\x3a\xff\xff\xff\xff\x07abc",
    "a.onnx: is not an ONNX model",
)
refused("a length of 2^64 - 1", lambda: b"\x3a" + b"\xff" * 9 + b"\x01", "a.onnx: is not an ONNX")
refused("an endless varint", lambda: b"\x08" + b"\xff" * 20, "a.onnx: is not an ONNX model")
refused("field number 0", lambda: b"\x02\x01a", "a.onnx: is not an ONNX model")
refused("a group that nobody closes", lambda: b"\x3b\x00" * 200, "a.onnx: is not an ONNX model")
refused("no graph", lambda: onnx.ModelProto(ir_version=10), "a.onnx: is not an ONNX model")


@row(KIND, "a model followed by junk", code=4, says="a.onnx: is not an ONNX model")
def _(room: Room) -> None:
    path = room.folder / "a.onnx"
    path.write_bytes(path.read_bytes() + b"\xff" * 64)


# ------------------------------------------------------------------------------------------- graph

RELU = functools.partial(node, "Relu", ["x"], ["y"])

refused(
    "a cycle of two nodes",
    lambda: of(
        node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Abs", ["b"], ["y"])
    ),
    "has a cycle",
)
refused("a node that reads itself", lambda: of(node("Add", ["x", "y"], ["y"])), "has a cycle")
refused(
    "a cycle through a body",
    lambda: of(
        node("Greater", ["b", "x"], ["c"], name="greater"),
        node("ReduceMax", ["c2"], ["d"], keepdims=0),
        node("Cast", ["c"], ["c2"], to=FLOAT),
        node("Cast", ["d"], ["e"], to=TensorProto.BOOL),
        node(
            "If",
            ["e"],
            ["b"],
            then_branch=graph([RELU(name="r")], inputs=()),
            else_branch=graph([node("Neg", ["x"], ["y"])], inputs=()),
        ),
        node("Abs", ["b"], ["y"]),
    ),
    "has a cycle",
)
refused(
    "two nodes make one name",
    lambda: of(RELU(), node("Abs", ["x"], ["y"])),
    "'y' is made twice",
)
refused(
    "a node makes an input's name", lambda: of(node("Relu", ["x"], ["x"]), RELU()), "made twice"
)
refused(
    "two nodes of one name",
    lambda: of(node("Relu", ["x"], ["a"], name="n"), node("Abs", ["a"], ["y"], name="n")),
    "two nodes are named 'n'",
)
refused("two inputs of one name", lambda: of(RELU(), inputs=("x", "x")), "made twice")
refused(
    "two outputs of one name (ONNX Runtime takes them)",
    lambda: of(RELU(), outputs=("y", "y")),
    "verified",
    code=0,
)
refused(
    "two weights of one name (ONNX Runtime takes them)",
    lambda: of(node("Add", ["x", "w"], ["y"]), weights=[weight(), weight()]),
    "verified",
    code=0,
)
refused(
    "a weight with a node's name",
    lambda: of(node("Add", ["x", "w"], ["y"]), weights=[weight(), weight("y")]),
    "'y' is made twice",
)
refused(
    "a node without its input", lambda: of(node("Add", ["x", "nobody"], ["y"])), "'nobody', which"
)
refused("too few inputs", lambda: of(node("Add", ["x"], ["y"])), "ONNX Runtime does not load it")
refused(
    "too many inputs", lambda: of(node("Relu", ["x", "x"], ["y"])), "ONNX Runtime does not load it"
)
refused(
    "too many outputs", lambda: of(node("Relu", ["x"], ["y", "z"])), "ONNX Runtime does not load it"
)
refused("no output", lambda: of(RELU(), outputs=()), "a.onnx: has no outputs")
refused("an output that nobody makes", lambda: of(RELU(), outputs=("y", "z")), "'z', which nothing")
refused(
    "a body that takes what is not there",
    lambda: of(
        node("Constant", [], ["c"], value=helper.make_tensor("v", TensorProto.BOOL, [], [True])),
        node(
            "If",
            ["c"],
            ["y"],
            name="if",
            then_branch=graph([node("Relu", ["nobody"], ["y2"])], inputs=(), outputs=("y2",)),
            else_branch=graph([node("Relu", ["x"], ["y3"])], inputs=(), outputs=("y3",)),
        ),
    ),
    "'nobody', which",
)
refused("no name of an operator", lambda: of(node("", ["x"], ["y"])), "a.onnx")
refused("an unknown operator", lambda: of(node("Frobnicate", ["x"], ["y"])), "Frobnicate")
refused(
    "an operator of a domain without opset",
    lambda: of(node("Relu", ["x"], ["y"], domain="com.example")),
    "com.example",
)
refused(
    "an unknown domain",
    lambda: model(
        graph([node("F", ["x"], ["y"], domain="com.example")]), domains=[("com.example", 1)]
    ),
    "com.example",
)
refused("an opset of the future", lambda: model(graph([RELU()]), opset=99), "uses opset 99")
refused("an opset of 0", lambda: model(graph([RELU()]), opset=0), "a.onnx")
refused("a negative opset", lambda: model(graph([RELU()]), opset=-1), "a.onnx")
refused("an opset of 2^63 - 1", lambda: model(graph([RELU()]), opset=2**63 - 1), "a.onnx")
refused(
    "two opsets of a domain (ONNX Runtime takes the last)",
    lambda: model(graph([RELU()]), domains=[("", 13)]),
    "verified",
    code=0,
)
refused("an IR version of the future", lambda: model(graph([RELU()]), ir_version=99), "a.onnx")
refused(
    "a negative IR version (ONNX Runtime takes it)",
    lambda: model(graph([RELU()]), ir_version=-5),
    "verified",
    code=0,
)
refused("no opset", lambda: _without_opset(), "a.onnx")
refused(
    "an attribute of another type",
    lambda: of(node("Softmax", ["x"], ["y"], axis="last")),
    "ONNX Runtime does not load it",
)
refused(
    "an attribute that is missing",
    lambda: of(node("Cast", ["x"], ["y"])),
    "ONNX Runtime does not load it",
)
refused(
    "an unknown attribute",
    lambda: of(node("Relu", ["x"], ["y"], shiny=1)),
    "ONNX Runtime does not load it",
)
refused(
    "shapes that do not fit",
    lambda: of(node("Add", ["x", "w"], ["y"]), weights=[_tensor([3])]),
    "a.onnx: types or shapes in it do not fit",
)
refused(
    "types that do not fit",
    lambda: of(node("Add", ["x", "w"], ["y"]), weights=[_tensor([4], TensorProto.INT64)]),
    "model a, node",
)
refused(
    "a Reshape to another size",
    lambda: of(
        node("Reshape", ["x", "s"], ["y"]),
        weights=[helper.make_tensor("s", TensorProto.INT64, [1], [5])],
    ),
    "a.onnx: the source model does not run: not on seed 0, set 0, inputs in the range of their",
)
refused("a negative input shape", lambda: _with_input([-4]), "a.onnx")
refused(
    "an input of 2^40 values",
    lambda: _with_input([1 << 20, 1 << 20]),
    "its generated inputs would take 4,398,046,511,104 bytes",
    code=0,
)
refused("an input whose size overflows", lambda: _with_input([1 << 32, 1 << 32, 16]), "a.onnx")
refused("an input without a type", lambda: _untyped(), "a.onnx")
refused("an input of a type that is none", lambda: _with_input([4], kind=999), "a.onnx")


def _without_opset() -> onnx.ModelProto:
    made = of(RELU())
    del made.opset_import[:]
    return made


def _tensor(dims: list[int], kind: int = FLOAT) -> onnx.TensorProto:
    return helper.make_tensor("w", kind, dims, [1] * dims[0])


def _with_input(dims: list[int], kind: int = FLOAT) -> onnx.ModelProto:
    made = of(RELU())
    for each in (made.graph.input[0], made.graph.output[0]):
        each.CopyFrom(value(each.name, FLOAT, dims))
        each.type.tensor_type.elem_type = kind
    return made


def _untyped() -> onnx.ModelProto:
    made = of(RELU())
    made.graph.input[0].ClearField("type")
    return made


# --------------------------------------------------------------------------------------- functions


def _functions(*bodies: tuple[str, str]) -> onnx.ModelProto:
    """Functions of these names, each calling the other one named."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    made = [
        helper.make_function(
            "own", name, ["p"], ["q"], [node(calls, ["p"], ["q"], domain=domain)], opsets
        )
        for name, calls, domain in (
            (n, c, "own" if c in dict(bodies) or c == "Nobody" else "") for n, c in bodies
        )
    ]
    call = node(bodies[0][0], ["x"], ["y"], domain="own")
    return model(graph([call]), domains=[("own", 1)], functions=made)


refused("a function that calls itself", lambda: _functions(("F", "F")), "F")
refused("two functions that call each other", lambda: _functions(("F", "G"), ("G", "F")), "G")
refused("a function that calls nobody", lambda: _functions(("F", "Nobody")), "Nobody")
refused("two functions of one name", lambda: _functions(("F", "Relu"), ("F", "Abs")), "F")
refused(
    "functions that double 40 times",
    lambda: _doubling(40),
    "a.onnx",
    seconds=30.0,
)
refused("functions nested 1000 deep", lambda: _chain(1000), "a.onnx", seconds=30.0)


def _doubling(times: int) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    made = []
    for level in range(times):
        inner = ("Relu", "") if level == 0 else (f"F{level - 1}", "own")
        body = [
            node(inner[0], ["p"], ["m"], domain=inner[1]),
            node(inner[0], ["m"], ["q"], domain=inner[1]),
        ]
        made.append(helper.make_function("own", f"F{level}", ["p"], ["q"], body, opsets))
    call = node(f"F{times - 1}", ["x"], ["y"], domain="own")
    return model(graph([call]), domains=[("own", 1)], functions=made)


def _chain(depth: int) -> onnx.ModelProto:
    names = [f"F{level}" for level in range(depth)]
    return _functions(*zip(names, [*names[1:], "Relu"], strict=True))


# --------------------------------------------------------------------------------- what is no text


def _not_utf8(name: str, change: Callable[[onnx.ModelProto], object]) -> None:
    """Python's protobuf refuses such texts: they are put into the bytes."""

    def make() -> bytes:
        made = of(node("Relu", ["x"], ["y"], name="name_of_node"))
        change(made)
        data: bytes = made.SerializeToString()
        assert data.count(b"SPOILED") >= 1
        return data.replace(b"SPOILED", b"SP\xff\xfeLED")

    refused(f"invalid UTF-8 in {name}", make, "UTF-8")


_not_utf8("a node's name", lambda m: setattr(m.graph.node[0], "name", "SPOILED"))
_not_utf8("an operator", lambda m: setattr(m.graph.node[0], "op_type", "SPOILED"))
_not_utf8("a domain", lambda m: setattr(m.opset_import[0], "domain", "SPOILED"))
_not_utf8("an input's name", lambda m: setattr(m.graph.input[0], "name", "SPOILED"))
_not_utf8("the graph's name", lambda m: setattr(m.graph, "name", "SPOILED"))
_not_utf8("the producer", lambda m: setattr(m, "producer_name", "SPOILED"))
_not_utf8("metadata", lambda m: helper.set_model_props(m, {"key": "SPOILED"}))
_not_utf8(
    "a symbolic dimension",
    lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_param", "SPOILED"),
)
_not_utf8(
    "a weight's location",
    lambda m: m.graph.initializer.append(_elsewhere("SPOILED")),
)


def _elsewhere(location: str) -> onnx.TensorProto:
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


# ----------------------------------------------------------------------------------------- tensors


def spoiled_weight(name: str, change: Callable[[onnx.TensorProto], object], says: str) -> None:
    """A row: a weight inside the model is changed."""

    def make() -> onnx.ModelProto:
        tensor = models.weight()
        tensor.ClearField("float_data")
        tensor.raw_data = bytes(16)
        change(tensor)
        return of(node("Add", ["x", "w"], ["y"]), weights=[tensor])

    refused(name, make, says)


spoiled_weight("a weight with fewer bytes", lambda t: setattr(t, "raw_data", bytes(12)), "12 bytes")
spoiled_weight("a weight with more bytes", lambda t: setattr(t, "raw_data", bytes(20)), "20 bytes")
spoiled_weight("a weight with no bytes", lambda t: t.ClearField("raw_data"), "'w'")
spoiled_weight("a weight of another type", lambda t: setattr(t, "data_type", 11), "16 bytes")
spoiled_weight("a weight of no type", lambda t: setattr(t, "data_type", 0), "'w'")
spoiled_weight("a weight of type 999", lambda t: setattr(t, "data_type", 999), "'w'")
spoiled_weight("a weight of type -1", lambda t: setattr(t, "data_type", -1), "'w'")
spoiled_weight("a weight with a negative dimension", lambda t: t.dims.append(-1), "negative dim")
spoiled_weight("a weight with two negative dimensions", lambda t: t.dims.extend([-1, -1]), "'w'")
spoiled_weight("a weight of 2^62 bytes", lambda t: t.dims.append(1 << 58), "'w'")
spoiled_weight("a weight beyond 2^63", lambda t: t.dims.extend([1 << 31, 1 << 31]), "'w'")
spoiled_weight(
    "a weight whose size wraps to its bytes", lambda t: t.dims.extend([1 << 32, 1 << 32]), "'w'"
)
spoiled_weight("a weight with 100,000 dimensions", lambda t: t.dims.extend([1] * 100_000), "a.onnx")
