"""Random graphs that ONNX Runtime takes: each node is run by itself before it is kept.

So a graph is valid however wild the arguments of its nodes are, and the shapes and values that the
next node may use are what ONNX Runtime's kernels made, not what somebody thinks that they make.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from epctx.graph.serde import protos

Array = npt.NDArray[Any]

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
FLOAT8 = (
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ,
)
SIGNED = (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64)
UNSIGNED = (TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64)
INTEGERS = (*SIGNED, *UNSIGNED)
BITS4 = (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1)
BITS2 = (TensorProto.INT2, TensorProto.UINT2)
BOOL, STRING, INT64 = TensorProto.BOOL, TensorProto.STRING, TensorProto.INT64

FAMILIES = {
    "float32": (TensorProto.FLOAT,),
    "float64": (TensorProto.DOUBLE,),
    "float16": (TensorProto.FLOAT16,),
    "bfloat16": (TensorProto.BFLOAT16,),
    "float8": FLOAT8,
    "4 bits": BITS4,
    "2 bits": BITS2,
    "integer": INTEGERS,
    "boolean": (BOOL,),
    "string": (STRING,),
}
"""Type families, as they are counted."""

SINCE = {
    **dict.fromkeys(FLOAT8, 19),
    **dict.fromkeys(BITS4[:2], 21),
    BITS4[2]: 23,
    **dict.fromkeys(BITS2, 25),
    TensorProto.BFLOAT16: 13,
}
"""The first opset with a type."""

MOST_ELEMENTS = 2048
"""Elements of the largest value: a larger one is not kept."""

WORDS = ("", "a", "Zebra", "1", "-7", "nan", "é", "  x ", "3.5e2")


class Rejected(Exception):
    """A node that ONNX Runtime does not take, or nothing that a node could be given."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Value:
    """What a name of the graph stands for.

    Attributes:
        kind: the element type.
        value: what ONNX Runtime's kernels made; in a body, at its first run.
        tensor: its content, where the graph holds it as an initializer.
    """

    name: str
    kind: int
    value: ort.OrtValue
    tensor: onnx.TensorProto | None = None

    @property
    def is_sequence(self) -> bool:
        """A sequence of tensors, not one."""
        return not self.value.is_tensor()

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of a tensor."""
        return tuple(self.value.shape())

    @property
    def size(self) -> int:
        """Elements of a tensor."""
        return int(np.prod(self.shape, dtype=np.int64))

    def array(self) -> Array:
        """The elements of a tensor of numbers that numpy knows."""
        found: Array = self.value.numpy()
        return found

    def info(self) -> onnx.ValueInfoProto:
        """Its name and type."""
        if self.is_sequence:
            return helper.make_tensor_sequence_value_info(self.name, self.kind, None)
        return helper.make_tensor_value_info(self.name, self.kind, self.shape)


@dataclass(kw_only=True)
class Scope:
    """A graph that grows: the main one, or a body.

    Attributes:
        outer: the scope around a body, whose values it may use.
        repeats: it runs more than once, each time with other values.
    """

    outer: Scope | None = None
    repeats: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def visible(self) -> Iterator[Value]:
        """Its values and those of the scopes around it."""
        yield from self.values
        if self.outer is not None:
            yield from self.outer.visible()


def open_session(model: onnx.ModelProto) -> ort.InferenceSession:
    """A session of ONNX Runtime's CPU EP that optimizes nothing.

    Nor does it reuse memory: what may be reused it decides by shapes that it infers, and it fails
    where its kernels make others.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_mem_reuse = False
    options.enable_mem_pattern = False
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(model: onnx.ModelProto, feeds: dict[str, ort.OrtValue]) -> list[ort.OrtValue]:
    """Its outputs in such a session."""
    found: list[ort.OrtValue] = open_session(model).run_with_ort_values(None, feeds)
    return found


class Drawing:
    """One random graph.

    Args:
        seed: decides everything.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.opset = self.random.randint(9, 26)
        self.scope = Scope()
        self.inputs: list[Value] = []
        self.counts: Counter[str] = Counter()
        self._names = 0
        known = (*FLOATS, *FLOAT8, *INTEGERS, *BITS4, *BITS2, BOOL, STRING)
        self.kinds = [kind for kind in known if self.opset >= SINCE.get(kind, 0)]
        # Most values are of few types, so that nodes find several inputs of one.
        self.favourites = [self.random.choice(self.families()) for _ in range(3)]

    def families(self) -> list[tuple[int, ...]]:
        """The type families of this opset."""
        found = [tuple(k for k in f if k in self.kinds) for f in FAMILIES.values()]
        return [family for family in found if family]

    # --- choosing ---

    def chance(self, share: float) -> bool:
        """True in this share of cases."""
        return self.random.random() < share

    def kind(self) -> int:
        """An element type."""
        family = self.random.choice(self.favourites if self.chance(0.7) else self.families())
        return self.random.choice(family)

    def shape(self, most_rank: int = 4) -> tuple[int, ...]:
        """A shape; now and then a scalar's or an empty one's."""
        sizes = (1, 1, 2, 3, 3, 4, 5, 0)
        rank = self.random.randint(0, most_rank)
        return tuple(self.random.choice(sizes[: 8 if self.chance(0.1) else 7]) for _ in range(rank))

    def pick(self, kinds: Sequence[int] = (), *, least_rank: int = 0, most_rank: int = 6) -> Value:
        """A value, a new constant where none fits; of a sequence see `pick_sequence`."""
        fitting = [
            value
            for value in self.scope.visible()
            if not value.is_sequence
            and (not kinds or value.kind in kinds)
            and least_rank <= len(value.shape) <= most_rank
        ]
        if fitting and not self.chance(0.15):
            recent = sorted(fitting, key=lambda each: int(each.name[1:]))[-12:]
            return self.random.choice(recent if self.chance(0.5) else fitting)
        kind = self.random.choice([k for k in kinds if k in self.kinds] or [self.kind()])
        if kinds and kind not in kinds:
            raise Rejected("a type that this opset does not have")
        shape = self.shape(min(4, most_rank))
        return self.constant(kind, (2,) * (least_rank - len(shape)) + shape)

    def pick_sequence(self) -> Value:
        """A sequence. Raises Rejected: there is none."""
        found = [value for value in self.scope.visible() if value.is_sequence]
        if not found:
            raise Rejected("no sequence")
        return self.random.choice(found)

    def axis(self, rank: int) -> int:
        """An axis, counted from either end."""
        return self.random.randint(-rank, max(rank - 1, 0))

    def axes(self, rank: int) -> list[int]:
        """Some axes, each once, none of them or all of them too."""
        found = self.random.sample(range(rank), self.random.randint(0, rank))
        return [axis - rank if self.chance(0.3) else axis for axis in found]

    # --- constants ---

    def array(self, kind: int, shape: tuple[int, ...]) -> Array:
        """Elements of a type: small ones, random ones, and those at its edges."""
        size = int(np.prod(shape, dtype=np.int64))
        draw = self.random
        if kind == STRING:
            words = [draw.choice(WORDS) for _ in range(size)]
            return np.array(words, object).reshape(shape)
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        if kind == BOOL:
            items: list[Any] = [self.chance(0.5) for _ in range(size)]
        elif kind in (*INTEGERS, *BITS4[:2], *BITS2):
            low, high = _limits(dtype)
            edges = [0, 1, low, high, high - 1, low + 1]
            small = [max(low, -3), max(low, -1), min(high, 5), min(high, 2), min(high, 7)]
            items = [
                draw.choice(edges if self.chance(0.15) else [*small, 0, 1]) for _ in range(size)
            ]
        else:
            floats = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 3e38, 1e-40, 65504.0]
            items = [
                draw.choice(floats) if self.chance(0.1) else draw.choice([1.0, draw.gauss(0, 3)])
                for _ in range(size)
            ]
        with np.errstate(all="ignore"):
            return (
                np.array(items, np.float64 if kind in (*FLOATS, *FLOAT8) else None)
                .reshape(shape)
                .astype(dtype)
            )

    def constant(self, kind: int, shape: tuple[int, ...]) -> Value:
        """A new constant of random elements. Raises Rejected: this opset has no such type."""
        if kind not in self.kinds:
            raise Rejected("a type that this opset does not have")
        return self.literal(self.array(kind, shape), kind)

    def ints(self, items: Sequence[int] | int, kind: int = INT64) -> Value:
        """A new constant of these integers, a scalar for a single one."""
        return self.literal(np.array(items, helper.tensor_dtype_to_np_dtype(kind)), kind)

    def literal(self, array: Array, kind: int) -> Value:
        """A new constant: an initializer of this graph or of the one around it, or a node."""
        name = self.name()
        tensor = numpy_helper.from_array(array, name)
        made = Value(name=name, kind=kind, value=_of_tensor(tensor, self.opset), tensor=tensor)
        if self.chance(0.2):
            self.scope.nodes.append(_constant_node(tensor, array, self.opset))
        else:
            self.scope.weights.append(tensor)
        self.scope.values.append(made)
        return made

    def input(self) -> None:
        """A new input of the main graph."""
        kind = self.kind()
        tensor = numpy_helper.from_array(self.array(kind, self.shape()), self.name())
        value = Value(name=tensor.name, kind=kind, value=_of_tensor(tensor, self.opset))
        self.inputs.append(value)
        self.scope.values.append(value)

    def name(self) -> str:
        """A name that is not taken, a letter and a number."""
        self._names += 1
        return f"v{self._names}"

    # --- nodes ---

    def takes(self, op_type: str, name: str) -> str:
        """How an operator of this opset takes an argument: as "input", "attribute" or not ("")."""
        try:
            schema = onnx.defs.get_schema(op_type, self.opset)
        except onnx.defs.SchemaError:
            raise Rejected(f"no {op_type} in opset {self.opset}") from None
        if name in schema.attributes:
            return "attribute"
        return "input" if any(each.name == name for each in schema.inputs) else ""

    def node(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        outputs: int = 1,
        **attributes: Any,
    ) -> list[Value]:
        """Add a node. Raises Rejected: ONNX Runtime does not take or run it."""
        names = [self.name() for _ in range(outputs)]
        given = ["" if value is None else value.name for value in inputs]
        node = helper.make_node(op_type, given, names, name=f"n{names[0]}")
        for name, item in attributes.items():
            empty = onnx.AttributeProto.INTS if item == [] else None
            node.attribute.append(helper.make_attribute(name, item, attr_type=empty))
        try:
            made = self.evaluate(node)
        except Exception as error:  # onnxruntime's errors have no common class
            raise Rejected(str(error)) from error
        self.scope.nodes.append(node)
        self.scope.values += made
        self.count(node, made)
        return made

    def count(self, node: onnx.NodeProto, made: Sequence[Value]) -> None:
        """Count what was made."""
        self.counts[f"op {node.op_type}"] += 1
        for value in made:
            family = next(name for name, kinds in FAMILIES.items() if value.kind in kinds)
            self.counts[f"type {'sequence' if value.is_sequence else family}"] += 1

    def evaluate(self, node: onnx.NodeProto) -> list[Value]:
        """What a node makes where it would stand."""
        visible = {value.name: value for value in self.scope.visible()}
        needed = [visible[name] for name in dict.fromkeys(_reads(node)) if name in visible]
        graph = helper.make_graph(
            [node],
            "one",
            [value.info() for value in needed if value.tensor is None],
            [onnx.ValueInfoProto(name=name) for name in node.output],
            [value.tensor for value in needed if value.tensor is not None],
        )
        feeds = {value.name: value.value for value in needed if value.tensor is None}
        results = run(make_model(graph, self.opset), feeds)
        made = [
            Value(name=name, kind=_element(result), value=result)
            for name, result in zip(node.output, results, strict=True)
        ]
        if any(not value.is_sequence and value.size > MOST_ELEMENTS for value in made):
            raise Rejected("too large")
        if any(value.kind not in self.kinds for value in made):
            raise Rejected("a type that ONNX Runtime takes, and this opset does not have")
        return made


def make_model(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    """A model of an opset, with an IR version that has all of its types."""
    version = 13 if opset >= 25 else 11 if opset >= 23 else 10
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=version
    )


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    untyped: Any = ml_dtypes
    limits = untyped.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _of_tensor(tensor: onnx.TensorProto, opset: int) -> ort.OrtValue:
    """A tensor as a value of ONNX Runtime, which makes some types only inside of a session."""
    graph = helper.make_graph([], "one", [], [onnx.ValueInfoProto(name=tensor.name)], [tensor])
    return run(make_model(graph, opset), {})[0]


def _constant_node(tensor: onnx.TensorProto, array: Array, opset: int) -> onnx.NodeProto:
    given: dict[str, Any] = {"value": tensor}
    if opset >= 12 and array.ndim < 2 and tensor.data_type in (INT64, TensorProto.FLOAT, STRING):
        words: dict[int, str] = {INT64: "int", TensorProto.FLOAT: "float", STRING: "string"}
        word = words[tensor.data_type]
        items = array.tolist()
        if array.ndim == 0:
            given = {f"value_{word}": items}
        elif items:
            given = {f"value_{word}s": items}
    return helper.make_node("Constant", [], [tensor.name], name=f"n{tensor.name}", **given)


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node and the bodies in it use; some of them are defined there."""
    yield from node.input
    for body in protos.subgraphs(node):
        yield from (value.name for value in body.output)
        for inner in body.node:
            yield from _reads(inner)


def _element(value: ort.OrtValue) -> int:
    """The element type of a tensor, or of a sequence's tensors."""
    if value.is_tensor():
        return int(value.element_type())
    word = value.data_type().partition("tensor(")[2].rstrip(")").upper()
    word = {"FLOAT64": "DOUBLE"}.get(word, word)
    return int(TensorProto.DataType.Value(word))
