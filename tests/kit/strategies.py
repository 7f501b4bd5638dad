"""Every hypothesis strategy of the tests, in one place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from epctx.files import filenames
from epctx.graph.partition.assign import Bond, Border

# --- graphs of integers (graph/partition/assign) ---


@st.composite
def dags(draw: st.DrawFn, max_nodes: int = 16) -> list[list[int]]:
    """A directed acyclic graph: for each node its predecessors, all of them less than it."""
    count = draw(st.integers(0, max_nodes))
    return [
        sorted(draw(st.sets(st.integers(0, node - 1), max_size=3))) if node else []
        for node in range(count)
    ]


@st.composite
def masks(draw: st.DrawFn, count: int, chance: int = 70) -> list[bool]:
    """A flag for each node, true for about `chance` in a hundred."""
    return [draw(st.integers(0, 99)) < chance for _ in range(count)]


@st.composite
def bonds(draw: st.DrawFn, predecessors: list[list[int]]) -> list[Bond]:
    """Some values of the graph that may not cross: a node's whole output, or a model's input."""
    consumers: dict[int, list[int]] = {}
    for node, needs in enumerate(predecessors):
        for need in needs:
            consumers.setdefault(need, []).append(node)
    found = []
    for node in range(len(predecessors)):
        if draw(st.integers(0, 99)) < 20:
            found.append(
                Bond(
                    producer=node,
                    consumers=tuple(consumers.get(node, ())),
                    exposed=draw(st.integers(0, 9)) == 0,
                    one_way=draw(st.booleans()),
                    reason=f"bond of {node}",
                )
            )
    if predecessors and draw(st.integers(0, 9)) == 0:
        users = draw(st.sets(st.integers(0, len(predecessors) - 1), min_size=1, max_size=2))
        found.append(Bond(producer=-1, consumers=tuple(sorted(users)), reason="bond of an input"))
    return found


@st.composite
def borders(
    draw: st.DrawFn, predecessors: list[list[int]], *, constants: bool = True, bonded: bool = True
) -> Border:
    """A border for the graph. A node that nothing uses is not always an output of the model."""
    constant: list[bool] = []
    for needs in predecessors:
        known = all(constant[need] for need in needs)
        constant.append(constants and known and draw(st.integers(0, 99)) < 40)
    used = {need for needs in predecessors for need in needs}
    exposed = [
        draw(st.integers(0, 99)) < (10 if node in used else 90) for node in range(len(predecessors))
    ]
    return Border(
        constant=constant,
        exposed=exposed,
        must_stay_together=draw(bonds(predecessors)) if bonded else (),
    )


# --- models of real operators (graph/partition/surgery, stages/partition) ---

UNARY = ("Relu", "Neg", "Abs", "Sigmoid", "Identity")
BINARY = ("Add", "Mul", "Sub", "Max")


@st.composite
def elementwise_models(draw: st.DrawFn, max_nodes: int = 14) -> ir.Model:
    """A model of float[3] values: some operators, weights, sometimes an If that captures."""
    kind = ir.TensorType(ir.DataType.FLOAT)

    def value(name: str) -> ir.Value:
        return ir.Value(name=name, type=kind, shape=ir.Shape([3]))

    inputs = [value(f"x{i}") for i in range(draw(st.integers(1, 2)))]
    weights = [value(f"w{i}") for i in range(draw(st.integers(0, 2)))]
    for place, weight in enumerate(weights):
        array = np.array([place + 1.5, -0.25, place], np.float32)
        weight.const_value = ir.tensor(array, name=weight.name)
    flag = ir.Value(name="flag", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    known = [*inputs, *weights]
    nodes: list[ir.Node] = []
    for place in range(draw(st.integers(1, max_nodes))):
        pick = st.sampled_from(known)
        out = value(f"v{place}")
        shape = draw(st.sampled_from(["unary", "binary", "binary", "if"]))
        if shape == "unary":
            node = ir.node(draw(st.sampled_from(UNARY)), [draw(pick)], outputs=[out])
        elif shape == "binary":
            both = [draw(pick), draw(pick)]
            node = ir.node(draw(st.sampled_from(BINARY)), both, outputs=[out])
        else:
            branches = {}
            for branch in ("then_branch", "else_branch"):
                inner = value(f"v{place}_{branch}")
                body = ir.node(draw(st.sampled_from(UNARY)), [draw(pick)], outputs=[inner])
                branches[branch] = ir.Graph([], [inner], nodes=[body], name=branch)
            node = ir.node("If", [flag], branches, outputs=[out])
        node.name = f"n{place}"
        nodes.append(node)
        known.append(out)
    ends = [node.outputs[0] for node in nodes if not node.outputs[0].uses()]
    if draw(st.booleans()):
        inner_values = [node.outputs[0] for node in nodes if node.outputs[0].uses()]
        ends.append(draw(st.sampled_from(inner_values or ends)))
    graph = ir.Graph(
        [*inputs, flag],
        list(dict.fromkeys(ends)),
        nodes=nodes,
        initializers=weights,
        opset_imports={"": 21},
        name="elementwise",
    )
    return ir.Model(graph, ir_version=10)


# --- manifests ---

_NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True).filter(
    lambda name: filenames.problem(name) is None
)
_DURATIONS = st.sampled_from(["90s", "5m", "1h30m", None])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 70) | st.floats() | st.text(max_size=6),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3)
    ),
    max_leaves=4,
)
"""Anything that JSON can hold, and numbers that it cannot."""


def _optional(draw: st.DrawFn, settings: dict[str, st.SearchStrategy[Any]]) -> dict[str, Any]:
    return {key: draw(value) for key, value in settings.items() if draw(st.booleans())}


@st.composite
def _settings(draw: st.DrawFn, *, several: bool) -> dict[str, Any]:
    """Settings of a model group that are right by themselves."""
    return _optional(
        draw,
        {
            "node_name_prefix": st.sampled_from(["", "eye_", "a.b-"]),
            "optimize": st.sampled_from([{}, {"level": "none"}, {"level": ["simplify"]}]),
            "partition": st.sampled_from(
                [{}, {"min_nodes": 2, "max_partitions": None}, {"exclude": {"op_types": ["TopK"]}}]
            ),
            "session_options": st.sampled_from([{}, {"session.disable_prepacking": "1"}]),
            "external_initializers": st.sampled_from(
                [None, {"file": "{model}.data"}, {"file": "{model}.w" if several else "w.data"}]
            ),
            "verify": st.sampled_from(
                [{}, {"numbers": "off"}, {"inputs": {"ranges": {"ids": [0, 9]}}, "budget": "5m"}]
            ),
            "timeout": _DURATIONS,
        },
    )


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    """A manifest that breaks no rule, as JSON."""
    models = draw(st.lists(_NAMES, min_size=1, max_size=4, unique=True))
    aliases = draw(st.lists(_NAMES, max_size=3, unique=True))
    groups = {}
    for name in draw(st.lists(_NAMES, min_size=1, max_size=3, unique=True)):
        chosen = draw(st.lists(st.sampled_from(models), min_size=1, unique=True))
        eps = draw(st.lists(st.sampled_from(aliases), unique=True)) if aliases else []
        group: dict[str, Any] = {"models": chosen, "execution_providers": eps}
        if len(chosen) > 1 and eps and draw(st.booleans()):
            group["sharing_groups"] = {"shared": draw(st.permutations(chosen))}
        else:
            group["embed_mode"] = draw(st.sampled_from([0, 1]))
        groups[name] = {**group, **draw(_settings(several=len(chosen) > 1))}
    manifest = {
        "schema_version": 1,
        "name": draw(_NAMES),
        "models": {
            name: {"path": f"models/{name}.onnx", "dimensions": {"batch": draw(st.integers(1, 64))}}
            for name in models
        },
        "execution_providers": {
            # A label of its own for each, so that groups may name any of them.
            alias: {
                "provider": "ReferenceExecutionProvider",
                "options": {"source": f"source-{place}"},
            }
            for place, alias in enumerate(aliases)
        },
        "model_groups": groups,
    }
    if draw(st.booleans()):
        names = draw(st.lists(_NAMES, min_size=1, max_size=2, unique=True))
        change = {"model_groups": {next(iter(groups)): {"timeout": draw(_DURATIONS)}}}
        include = {"include": draw(st.lists(st.sampled_from([*groups]), min_size=1, unique=True))}
        manifest["targets"] = {n: draw(st.sampled_from([None, {}, change, include])) for n in names}
    return manifest


@st.composite
def broken_manifests(draw: st.DrawFn) -> Any:
    """A manifest with a few values replaced, keys renamed, parts removed or repeated."""
    manifest = draw(manifests())
    for _ in range(draw(st.integers(1, 4))):
        place: Any = manifest
        while isinstance(place, dict | list) and place:
            key = draw(
                st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place)))
            )
            if draw(st.booleans()) or not isinstance(place[key], dict | list) or not place[key]:
                _break(draw, place, key)
                break
            place = place[key]
    return manifest


def _break(draw: st.DrawFn, place: Any, key: Any) -> None:
    kind = draw(st.sampled_from(["replace", "remove", "rename", "repeat"]))
    if kind == "remove":
        del place[key]
    elif kind == "rename" and isinstance(place, dict):
        place[draw(st.text(max_size=5)) or key.upper()] = place.pop(key)
    elif kind == "repeat" and isinstance(place, list):
        place.append(place[key])
    else:
        place[key] = draw(_VALUES)


# --- files that were damaged on their way (providers/reference) ---


@st.composite
def damages(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes, changed in one to three ways: bits, ranges, lengths, order."""
    found = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(found) - 1, 0)))
        size = draw(st.sampled_from([1, 2, 8, 64, 4096]))
        way = draw(st.sampled_from(["flip", "zero", "fill", "cut", "drop", "repeat", "insert"]))
        if way == "flip" and found:
            found[at] ^= 1 << draw(st.integers(0, 7))
        elif way == "zero":
            found[at : at + size] = bytes(len(found[at : at + size]))
        elif way == "fill":
            found[at : at + size] = draw(st.binary(min_size=1, max_size=size))
        elif way == "cut":
            del found[at:]
        elif way == "drop":
            del found[at : at + size]
        elif way == "repeat":
            found[at:at] = found[at : at + size]
        else:
            found[at:at] = draw(st.binary(min_size=1, max_size=16))
    return bytes(found)


# --- JSON-like documents (lockfile/yaml_text) ---

_TEXTS = st.text(max_size=20) | st.sampled_from(
    ["yes", "No", "null", "1.0", "1e5", "0x1", "a: b", "a #b", "- a", "", " ", "\x7f", "\x85",
     "\u2028", "é", "😀", "2026-01-01", "=", "<<", "~", "on", "blake3:ab", "a:", "/", "@a"]
)  # fmt: skip
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63),
    st.floats(allow_nan=False, allow_infinity=False),
    _TEXTS,
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=15,
)


def documents() -> st.SearchStrategy[dict[str, object]]:
    """A mapping of whatever JSON and YAML have, with texts that YAML likes to take for others."""
    return st.dictionaries(_TEXTS, _VALUES, max_size=5)


# --- graphs of expressions, constant and not (stages/optimize) ---

_FLOATS = st.sampled_from([0.0, -0.0, 1.0, -1.5, 0.1, 3e38, -1e-40, float("inf")])
_INTEGERS = st.sampled_from([0, 1, -1, 2, 7, -100, 2**62])
_DTYPES = {
    "float32": (np.float32, _FLOATS),
    "int64": (np.int64, _INTEGERS),
    "bool": (np.bool_, st.booleans()),
}


class _Expressions:
    """A model that grows node by node; each value's type and shape are known."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.types: dict[str, tuple[str, tuple[int, ...]]] = {}

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.types)}"
        self.weights.append(numpy_helper.from_array(array, name))
        self.types[name] = (str(array.dtype), array.shape)
        return name

    def random(self, dtype: str, shape: tuple[int, ...]) -> str:
        kind, elements = _DTYPES[dtype]
        size = math.prod(shape)
        values = self.draw(st.lists(elements, min_size=size, max_size=size))
        return self.constant(np.array(values, kind).reshape(shape))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def node(
        self, op_type: str, inputs: list[str], dtype: str, shape: tuple[int, ...], **attributes: Any
    ) -> str:
        name = f"v{len(self.types)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        self.types[name] = (dtype, tuple(shape))
        return name

    def pick(self, *dtypes: str) -> str:
        fitting = [n for n, (d, s) in self.types.items() if d in dtypes and 0 < math.prod(s) <= 64]
        return self.draw(st.sampled_from(fitting))

    def grow(self) -> None:
        kinds = (self.moved, self.moved, self.computed, self.cast, self.reshaped, self.measured)
        self.draw(st.sampled_from(kinds))()

    def moved(self) -> None:
        draw, x = self.draw, self.pick("float32", "int64", "bool")
        dtype, shape = self.types[x]
        rank = len(shape)
        way = draw(st.sampled_from(["Identity", "Transpose", "Tile", "Expand", "Concat", "Slice",
                                    "Gather", "Where", "Dropout", "Split"]))  # fmt: skip
        axis = draw(st.integers(0, rank - 1)) if rank else 0
        if way == "Transpose" and rank:
            perm = draw(st.permutations(range(rank)))
            self.node(way, [x], dtype, tuple(shape[i] for i in perm), perm=perm)
        elif way == "Tile" and rank:
            counts = [draw(st.integers(1, 2)) for _ in shape]
            result = tuple(n * count for n, count in zip(shape, counts, strict=True))
            self.node(way, [x, self.ints(*counts)], dtype, result)
        elif way == "Expand":
            result = (draw(st.integers(1, 2)), *shape)
            self.node(way, [x, self.ints(*result)], dtype, result)
        elif way == "Concat" and rank:
            other = draw(st.sampled_from([n for n, t in self.types.items() if t == (dtype, shape)]))
            result = (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :])
            self.node(way, [x, other], dtype, result, axis=axis)
        elif way == "Slice" and rank:
            bounds = [self.ints(draw(st.integers(-3, 3))) for _ in range(2)]
            step = self.ints(draw(st.sampled_from([1, 1, 2, -1])))
            start, end, stride = (numpy_helper.to_array(self.weight(n))[0] for n in (*bounds, step))
            size = len(range(shape[axis])[int(start) : int(end) : int(stride)])
            result = (*shape[:axis], size, *shape[axis + 1 :])
            if stride > 0 and size:
                self.node(way, [x, *bounds, self.ints(axis), step], dtype, result)
        elif way == "Gather" and rank:
            indices = draw(st.lists(st.integers(-shape[axis], shape[axis] - 1), max_size=3))
            result = (*shape[:axis], len(indices), *shape[axis + 1 :])
            if indices:
                self.node(way, [x, self.ints(*indices)], dtype, result, axis=axis)
        elif way == "Where" and dtype != "bool":
            condition = self.random("bool", shape)
            self.node(way, [condition, x, self.random(dtype, shape)], dtype, shape)
        elif way == "Split" and rank and shape[axis] == 2:
            result = (*shape[:axis], 1, *shape[axis + 1 :])
            first = self.node(way, [x], dtype, result, axis=axis, num_outputs=2)
            self.types[second := f"{first}b"] = (dtype, result)
            self.nodes[-1].output.append(second)
        elif way == "Dropout" and dtype == "float32":
            self.node(way, [x], dtype, shape)
        else:
            self.node("Identity", [x], dtype, shape)

    def computed(self) -> None:
        x = self.pick("float32", "int64", "bool")
        dtype, shape = self.types[x]
        ops = {
            "float32": ["Add", "Sub", "Mul", "Div", "Neg", "Abs", "Relu", "Sqrt", "Max", "Sin"],
            "int64": ["Add", "Sub", "Mul", "Neg", "Abs", "Max", "Min", "Equal", "Less", "Sign"],
            "bool": ["Not", "And", "Or", "Xor"],
        }[dtype]
        op_type = self.draw(st.sampled_from(ops))
        if op_type in ("Neg", "Abs", "Relu", "Sqrt", "Sin", "Sign", "Not"):
            self.node(op_type, [x], dtype, shape)
            return
        alike = [n for n, t in self.types.items() if t in ((dtype, shape), (dtype, ()))]
        other = self.draw(st.sampled_from([*alike, ""])) or self.random(dtype, ())
        result = "bool" if op_type in ("Equal", "Less") else dtype
        self.node(op_type, [x, other], result, shape)

    def cast(self) -> None:
        x = self.pick("float32", "int64", "bool")
        target = self.draw(st.sampled_from(["float32", "int64", "bool", "int32"]))
        dtype, shape = self.types[x]
        if dtype == "float32" and target.startswith("int"):
            return  # out of range, ONNX leaves the result open
        code = helper.np_dtype_to_tensor_dtype(np.dtype(target))
        middle = self.node("Cast", [x], target, shape, to=code)
        if target == "int32":
            self.node("Cast", [middle], "int64", shape, to=TensorProto.INT64)

    def reshaped(self) -> None:
        x = self.pick("float32", "int64", "bool")
        dtype, shape = self.types[x]
        way = self.draw(st.sampled_from(["Reshape", "Flatten", "Unsqueeze", "Squeeze"]))
        if way == "Reshape":
            size = math.prod(shape)
            result = self.draw(st.sampled_from([(size,), (1, size), (-1,), (size, 1), shape]))
            known = tuple(size if n == -1 else n for n in result)
            self.node(way, [x, self.ints(*result)], dtype, known)
        elif way == "Flatten" and shape:
            self.node(way, [x], dtype, (shape[0], math.prod(shape[1:])))
        elif way == "Unsqueeze":
            self.node(way, [x, self.ints(0)], dtype, (1, *shape))
        elif shape[:1] == (1,):
            self.node(way, [x, self.ints(0)], dtype, shape[1:])

    def measured(self) -> None:
        x = self.pick("float32", "int64", "bool")
        dtype, shape = self.types[x]
        if not shape:
            return
        dims = self.node("Shape", [x], "int64", (len(shape),))
        first = self.node("Gather", [dims, self.ints(0)], "int64", (1,))
        rest = self.node("Div", [first, first], "int64", (1,))
        target = self.node("Concat", [rest, self.ints(-1)], "int64", (2,), axis=0)
        self.node("Reshape", [x, target], dtype, (1, math.prod(shape)))
        self.node("ConstantOfShape", [dims], "float32", shape)

    def weight(self, name: str) -> onnx.TensorProto:
        return next(tensor for tensor in self.weights if tensor.name == name)


@st.composite
def expressions(draw: st.DrawFn, max_nodes: int = 14) -> onnx.ModelProto:
    """A model of inputs `x` float32 [2,3] and `i` int64 [2,3], and of constants, in any mixture."""
    made = _Expressions(draw)
    for name, dtype in (("x", "float32"), ("i", "int64")):
        made.types[name] = (dtype, (2, 3))
    for dtype in _DTYPES:
        made.random(dtype, (2, 3))
    for _ in range(draw(st.integers(1, max_nodes))):
        made.grow()
    results = [node.output[0] for node in made.nodes] or [
        made.node("Neg", ["x"], "float32", (2, 3))
    ]
    outputs = draw(st.lists(st.sampled_from(results), min_size=1, max_size=4, unique=True))
    outputs = list(dict.fromkeys([results[-1], *outputs]))

    def info(name: str) -> onnx.ValueInfoProto:
        dtype, shape = made.types[name]
        code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return helper.make_tensor_value_info(name, code, shape)

    graph = helper.make_graph(
        made.nodes, "g", [info("x"), info("i")], [info(name) for name in outputs], made.weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


# --- files and forms (graph/serde/canonical, graph/weights/external_data, stages/load) ---

STORED = tuple(
    dtype for dtype in ir.DataType if dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING)
)


@st.composite
def tensors(draw: st.DrawFn, name: str = "w") -> ir.Tensor[np.ndarray]:
    """A tensor of any type that has raw data, of random bits, up to some thousands of bytes."""
    dtype = draw(st.sampled_from(STORED))
    shape = draw(st.lists(st.integers(0, 12), max_size=3))
    seed = draw(st.integers(0, 2**32 - 1))
    count = int(np.prod(shape))
    bits = np.random.default_rng(seed).bytes(count * max(1, int(dtype.itemsize)))
    if dtype == ir.DataType.BOOL:
        values = np.frombuffer(bits, np.uint8) % 2 == 1
    elif dtype.bitwidth < 8:
        small = np.frombuffer(bits, np.uint8)[:count] & (2**dtype.bitwidth - 1)
        values = small.view(dtype.numpy()) if small.size else np.zeros(0, dtype.numpy())
    else:
        values = np.frombuffer(bits, dtype.numpy())
    return ir.Tensor(values.reshape(shape), dtype=dtype, name=name)


@st.composite
def disguises(draw: st.DrawFn, model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph in another file: other orders, other fields, other remarks."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    graphs = [other.graph]
    for graph in graphs:
        for listed in (graph.node, graph.initializer, graph.value_info):
            _shuffle(draw, listed)
        for node in graph.node:
            _shuffle(draw, node.attribute)
            node.doc_string = draw(st.text(max_size=3))
            graphs += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
        for tensor in graph.initializer:
            if draw(st.booleans()) and tensor.data_type == onnx.TensorProto.FLOAT:
                tensor.float_data.extend(np.frombuffer(tensor.raw_data, "<f4").tolist())
                tensor.ClearField("raw_data")
    if draw(st.booleans()):
        unused = onnx.numpy_helper.from_array(np.ones(3, np.float32), "nobody reads it")
        other.graph.initializer.append(unused)
    other.opset_import.add(domain="nobody.uses.it", version=draw(st.integers(1, 9)))
    _shuffle(draw, other.opset_import)
    other.producer_name = draw(st.text(max_size=3))
    other.ir_version = draw(st.sampled_from([10, 11]))
    return other


def _shuffle(draw: st.DrawFn, listed: Any) -> None:
    order = draw(st.permutations(range(len(listed))))
    copies = [type(listed[i])() for i in order]
    for copy, i in zip(copies, order, strict=True):
        copy.CopyFrom(listed[i])
    del listed[:]
    listed.extend(copies)


@st.composite
def damaged_models(draw: st.DrawFn, data: bytes, places: Sequence[int]) -> bytes:
    """Some bytes at these places exchanged, taken out, or put in."""
    damaged = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        place = min(draw(st.sampled_from(places)), len(damaged) - 1)
        match draw(st.sampled_from(["set", "set", "flip", "cut", "insert", "end"])):
            case "set":
                damaged[place] = draw(st.integers(0, 255))
            case "flip":
                damaged[place] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del damaged[place : place + draw(st.integers(1, 5))]
            case "insert":
                damaged[place:place] = draw(st.binary(min_size=1, max_size=4))
            case _:
                del damaged[place + 1 :]
    return bytes(damaged)
