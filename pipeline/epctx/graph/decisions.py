"""Decisions inside a model: the arms of If, Where, Loop and Scan, and nodes that depend on them.

An If has an arm for each branch, a Where one for each side. A Loop or Scan has two arms: its body
ran once, and its body ran again. Arms have numbers, in graph order. `instrumented` makes a model
that counts how often each arm is taken. `Program.reach` finds the nodes that a set of arms
exercises. Each arm is judged by itself: a path may combine arms that different elements or
iterations took.

Bodies of other operators (BeamSearch, SequenceMap, Scan before opset 9) belong to their node, and
are not analysed.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
from msgspec import Struct, field
from onnx import helper, numpy_helper

from epctx.graph.serde import protos

ARMS: Final = "epctx arms"
"""Output of an instrumented model: a float for each arm, above 0 if the arm was taken."""

Key = tuple[int, str]
"""Identity of a value: the number of its scope, and its name."""
Ways = tuple[tuple[str, str], ...]
"""Ways in which dependence on model inputs passes from one value to the next, as pairs of source
and target: "v" is a value's elements, "s" its shape.
"""
_Keys = Sequence[Key | None]
_Needed = dict[tuple[int, frozenset[str]], tuple[onnx.GraphProto, frozenset[str]]]
"""Cache of `_needed`: names of the values that outputs of a graph depend on, by the graph's
identity and the outputs' names. The graph is kept so that its identity stays unique.
"""
_Loose = tuple[Key | None, Key | None, int | None, bool, Ways]
"""Fields of a Link; a value is None if the node leaves it out."""
_BODIES: Final = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",)}
OPS: Final = frozenset({*_BODIES, "Where"})
_PLAIN: Final[Ways] = (("v", "v"), ("s", "s"))
_SIZING: Final[Ways] = (*_PLAIN, ("v", "s"))
_COUNTING: Final[Ways] = (("s", "s"), ("s", "v"))
_OF_SHAPE: Final[Mapping[str, Ways]] = {
    **dict.fromkeys(("Shape", "Size"), (("s", "v"),)),
    **dict.fromkeys(("EyeLike", "RandomNormalLike", "RandomUniformLike"), _COUNTING),
}
"""Ops that use the shape of their input, not its elements."""
_SIZED: Final = {
    **dict.fromkeys(("Compress", "ConstantOfShape", "NonMaxSuppression", "NonZero", "Range"), 0),
    **dict.fromkeys(("CenterCropPad", "Expand", "OneHot", "Pad", "Reshape", "Resize", "Slice"), 1),
    **dict.fromkeys(("Split", "SplitToSequence", "Squeeze", "Tile", "TopK", "Unsqueeze"), 1),
    **dict.fromkeys(("AffineGrid", "Col2Im", "DFT", "STFT", "Upsample"), 1),
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow", "Unique"), 0),
    "MaxUnpool": 2,
}
"""Ops whose output shape follows from the elements of their inputs, from this position on."""


class Link(NamedTuple):
    """Dependence of one value on another.

    Attributes:
        arm: the arm that must be taken, or must not be taken if `taken` is false; None if the link
            always holds.
        ways: how dependence on inputs passes.
    """

    source: Key
    target: Key
    arm: int | None = None
    taken: bool = True
    ways: Ways = _PLAIN


class Scope(Struct, eq=False):
    """The main graph, or a body of an If, Loop or Scan.

    Attributes:
        owner: the node that has the body.
        arm: the arm that is taken if the body runs; None for the main graph.
        names: names of its initializers, formal inputs and node outputs.
    """

    number: int
    graph: onnx.GraphProto
    outer: Scope | None = None
    owner: Node | None = None
    arm: int | None = None
    names: set[str] = field(default_factory=set)

    def key(self, name: str) -> Key | None:
        """Return the value that a name stands for in this scope; None if there is none."""
        scope: Scope | None = self
        while scope is not None and name not in scope.names:
            scope = scope.outer
        return None if scope is None or not name else (scope.number, name)


class Node(Struct, eq=False):
    """A node, its position among all nodes of the model, and its arms.

    Attributes:
        kind: If, Where, Loop or Scan; empty for others.
        deciders: values that decide which arms are taken; only the shape counts for a Scan.
    """

    proto: onnx.NodeProto
    scope: Scope
    place: int
    kind: str
    arms: list[int] = field(default_factory=list)
    bodies: list[Scope] = field(default_factory=list)
    deciders: list[Key] = field(default_factory=list)


class Program:
    """The nodes of a model without local functions.

    Attributes:
        nodes: all analysed nodes, each before the nodes of its bodies.
        scopes: the scopes, in the order of their numbers; the main graph is 0.
        makers: the node that makes each value.
        inputs: graph inputs that a run is given.
        open: nodes whose decisions depend on the elements of inputs, not only on sizes.
        sized: nodes whose decisions depend on sizes alone. A Where is never listed, since exporters
            guard sizes with one although the sizes are always positive.
    """

    def __init__(self, model: onnx.ModelProto, sized: Collection[str] = ()) -> None:
        """Read a model.

        Args:
            model: the model, which this class does not change, and which must not change as long as
                the object is used.
            sized: inputs with sizes that may differ.
        """
        self.nodes: list[Node] = []
        self.scopes: list[Scope] = []
        self.makers: dict[Key, Node] = {}
        self.arms = 0
        self._version = _opset(model)
        root = self._enter(Scope(0, model.graph))
        weights = {tensor.name for tensor in model.graph.initializer}
        self.inputs = [v.name for v in model.graph.input if v.name not in weights]
        links = [link for node in self.nodes for link in _links(node)]
        self._links: dict[Key, list[Link]] = {}
        for link in links:
            self._links.setdefault(link.target, []).append(link)
        self._depending = _closure(links, {((0, name), "v") for name in self.inputs})
        sizes = {((0, name), "s") for name in sized}
        by_size = _closure(links, self._depending | sizes) - self._depending if sizes else set()
        self.open = [node for node in self.nodes if _is_among(node, self._depending)]
        self.sized = [
            node for node in self.nodes if node.kind != "Where" and _is_among(node, by_size)
        ]
        self._outputs = [key for out in model.graph.output if (key := root.key(out.name))]

    def _enter(self, scope: Scope) -> Scope:
        self.scopes.append(scope)
        graph = scope.graph
        scope.names.update(value.name for value in (*graph.input, *graph.initializer))
        scope.names.update(name for proto in graph.node for name in proto.output)
        for proto in graph.node:
            node = Node(proto, scope, len(self.nodes), _kind(proto, self._version))
            self.nodes.append(node)
            self.makers.update({(scope.number, name): node for name in proto.output if name})
            if node.kind in ("Where", "Loop", "Scan"):
                node.arms = self._new_arms(2)
            for body in _bodies(proto) if node.kind else ():
                node.arms += self._new_arms(1) if node.kind == "If" else []
                arm = node.arms[-1 if node.kind == "If" else 0]
                inner = Scope(len(self.scopes), body, outer=scope, owner=node, arm=arm)
                node.bodies.append(self._enter(inner))
            node.deciders = list(filter(None, _deciders(node)))
        return scope

    def _new_arms(self, count: int) -> list[int]:
        self.arms += count
        return list(range(self.arms - count, self.arms))

    def reach(self, taken: Collection[int], skipped: Collection[int] = ()) -> set[int]:
        """Return places of the nodes from which a path leads to an output.

        Args:
            taken: arms that the path may go through.
            skipped: arms of Loops and Scans that the path may also bypass.
        """
        seen, pending = set(self._outputs), list(self._outputs)
        while pending:
            for link in self._links.get(pending.pop(), ()):
                follows = link.arm is None or (link.arm in taken) == link.taken
                around = not link.taken and link.arm in skipped
                if (follows or around) and link.source not in seen:
                    seen.add(link.source)
                    pending.append(link.source)
        return {self.makers[key].place for key in seen if key in self.makers}

    def effective(self, taken: Collection[int]) -> frozenset[int]:
        """Return the arms of `taken` from which a path leads to an output."""
        reached = self.reach(taken)
        arms = (arm for node in self.nodes if node.place in reached for arm in node.arms)
        return frozenset(arms).intersection(taken)

    def reachable(self, taken: Collection[int]) -> set[int]:
        """Return places of the nodes that some input may exercise.

        If a decision is the same for all inputs, only the arms that it has taken count; its other
        arms are dead code. Constants are left out. Nodes that compute from constants and sizes
        alone are left out too, since they are folded, unless some inputs skip their body.

        Args:
            taken: arms that input sets have taken.
        """
        opened = {node.place for node in self.open}
        arms, skipped = set(taken), {node.arms[0] for node in self.open}
        for node in self.nodes:
            ran = node.scope.arm is None or node.scope.arm in taken
            if node.place in opened or not ran:
                arms.update(node.arms)
        return {
            place for place in self.reach(arms, skipped) if self._counts(self.nodes[place], opened)
        }

    def sizing(self, output: str) -> Sequence[str]:
        """Return the graph inputs whose elements determine the shape of a graph output."""
        links = [link for each in self._links.values() for link in each]
        target = self.scopes[0].key(output)
        return [
            name for name in self.inputs if (target, "s") in _closure(links, {((0, name), "v")})
        ]

    def _counts(self, node: Node, opened: Collection[int]) -> bool:
        if node.proto.op_type == "Constant":
            return False
        scope: Scope | None = node.scope
        while scope is not None and scope.owner is not None:
            if scope.owner.place in opened:
                return True
            scope = scope.outer
        keys = ((node.scope.number, name) for name in node.proto.output)
        return any((key, "v") in self._depending for key in keys)


def _closure(links: Iterable[Link], roots: set[tuple[Key, str]]) -> set[tuple[Key, str]]:
    """Return `roots` and everything that depends on them: elements ("v") and shapes ("s")."""
    after: dict[tuple[Key, str], list[tuple[Key, str]]] = {}
    for link in links:
        for start, end in link.ways:
            after.setdefault((link.source, start), []).append((link.target, end))
    seen, pending = set(roots), list(roots)
    while pending:
        new = [each for each in after.get(pending.pop(), ()) if each not in seen]
        seen.update(new)
        pending.extend(new)
    return seen


def _is_among(node: Node, depending: Collection[tuple[Key, str]]) -> bool:
    """Tell whether a value that decides a node's arms (for a Scan, its shape) is in `depending`."""
    return any((key, "s" if node.kind == "Scan" else "v") in depending for key in node.deciders)


def _deciders(node: Node) -> Iterator[Key | None]:
    inputs = [node.scope.key(name) for name in node.proto.input]
    match node.kind:
        case "If" | "Where":
            yield from inputs[:1]
        case "Loop":
            yield from inputs[:2]
            yield node.bodies[0].key(node.bodies[0].graph.output[0].name)
        case "Scan":
            yield from inputs[_states(node.proto) :]


def _links(node: Node) -> Iterator[Link]:
    """Links to a node's outputs, and to the inputs of its bodies."""
    inputs = [node.scope.key(name) for name in (*node.proto.input, *_captured(node))]
    outputs = [node.scope.key(name) for name in node.proto.output]
    looping = node.kind in ("Loop", "Scan")
    for source, target, arm, taken, ways in (
        _looping(node, inputs, outputs) if looping else _plain(node, inputs, outputs)
    ):
        if source is not None and target is not None:
            yield Link(source, target, arm, taken, ways)


def _plain(node: Node, inputs: _Keys, outputs: _Keys) -> Iterator[_Loose]:
    sized = _SIZED.get(node.proto.op_type, 0 if node.kind == "If" else len(inputs))
    for index, output in enumerate(outputs):
        for place, source in enumerate(inputs):
            arm = node.arms[place - 1] if node.kind == "Where" and place else None
            ways = _OF_SHAPE.get(node.proto.op_type, _SIZING if place >= sized else _PLAIN)
            yield source, output, arm, True, ways
        for body in node.bodies:
            yield body.key(body.graph.output[index].name), output, body.arm, True, _PLAIN


def _looping(node: Node, inputs: _Keys, outputs: _Keys) -> Iterator[_Loose]:
    (ran, again), (body,) = node.arms, node.bodies
    formals = [body.key(value.name) for value in body.graph.input]
    results = [body.key(value.name) for value in body.graph.output]
    states = _states(node.proto)
    first = int(node.kind == "Loop")  # index of the body's output that is the node's first one
    for place, (source, formal) in enumerate(zip(inputs, formals, strict=False)):
        yield source, formal, None, True, _PLAIN
        if first <= place < 2 * first + states:
            yield results[place - first], formal, again, True, _PLAIN
    steering = inputs[:2] if first else inputs[states:]
    if first:
        yield from ((each, formals[0], None, True, _PLAIN) for each in (*steering, results[0]))
    for place, output in enumerate(outputs):
        yield results[place + first], output, ran, True, _PLAIN
        if place < states:
            yield inputs[place + 2 * first], output, ran, False, _PLAIN
        ways = _SIZING if first else _COUNTING
        yield from ((each, output, None, True, ways) for each in steering)
        if first:
            yield results[0], output, ran, True, ways


def _captured(node: Node) -> Iterator[str]:
    """Yield names used in bodies that are not analysed, even names that the bodies define."""
    if node.proto.attribute and not node.bodies:
        yield from _used_inside(node.proto)


def _used_inside(node: onnx.NodeProto) -> Iterator[str]:
    for body in protos.subgraphs(node):
        for graph in protos.nested(body):
            yield from (value.name for value in graph.output)
            yield from (name for inner in graph.node for name in inner.input)


def _kind(node: onnx.NodeProto, version: int) -> str:
    """Return If, Where, Loop or Scan; empty for other nodes, and for Scan before opset 9."""
    decides = node.op_type in OPS and node.domain in ("", "ai.onnx") and any(node.output)
    return node.op_type if decides and (node.op_type != "Scan" or version >= 9) else ""


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    by_name = {attribute.name: attribute.g for attribute in node.attribute}
    return [by_name[name] for name in _BODIES.get(node.op_type, ())]


def _states(node: onnx.NodeProto) -> int:
    """Return how many values a Loop or Scan carries from one iteration to the next."""
    if node.op_type == "Loop":
        return max(len(node.input) - 2, 0)
    scanned: int = next(a.i for a in node.attribute if a.name == "num_scan_inputs")
    return len(node.input) - scanned


def _opset(model: onnx.ModelProto) -> int:
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)


def instrumented(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model with ARMS as its only output.

    The model must have arms and no functions. The copy leaves out nodes of the main graph, and
    outputs of Ifs, that no arm depends on.
    """
    counting = onnx.ModelProto()
    counting.CopyFrom(model)
    writer = _Writer(counting.graph, itertools.count(), _opset(model))
    writer.add("Identity", writer.count()[0], output=ARMS)
    del counting.graph.output[:]
    counting.graph.output.append(onnx.ValueInfoProto(name=ARMS))
    _prune(counting.graph, {})
    return counting


class _Writer:
    """Adds nodes to a graph that count how often its arms are taken."""

    def __init__(self, graph: onnx.GraphProto, fresh: Iterator[int], version: int) -> None:
        self._graph = graph
        self._fresh = fresh
        self._version = version
        self._first: list[onnx.NodeProto] = []

    def count(self) -> tuple[str, int]:
        """Return a value with the counts of all arms of the graph, in order, and their number."""
        parts: list[str] = []
        size = 0
        sides: dict[str, list[str]] = {}
        for node in list(self._graph.node):
            kind = _kind(node, self._version)
            if kind == "Where":
                if node.input[0] not in sides:
                    sides[node.input[0]] = self._sides(node.input[0])
                parts += sides[node.input[0]]
                size += 2
            elif kind:
                output, own = self._branches(node) if kind == "If" else self._iterations(node)
                parts.append(output)
                size += own
        _replace(self._graph.node, [*self._first, *self._graph.node])
        return (self.add("Concat", *parts, axis=0) if parts else ""), size

    def add(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        output = output or self._name()
        self._graph.node.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def _name(self) -> str:
        return f"{ARMS} {next(self._fresh)}"

    def _constant(self, *values: float, kind: type[np.generic] = np.float32) -> str:
        return self.add("Constant", value=numpy_helper.from_array(np.array(values, kind)))

    def _sides(self, condition: str) -> list[str]:
        """Count true and false elements. Sums work without elements; a maximum would fail."""
        one = self._constant(1, kind=np.int64)
        floats = [
            self.add("Cast", each, to=onnx.TensorProto.FLOAT)
            for each in (condition, self.add("Not", condition))
        ]
        totals = [self.add("ReduceSum", each, keepdims=0) for each in floats]
        return [self.add("Reshape", total, one) for total in totals]

    def _branches(self, node: onnx.NodeProto) -> tuple[str, int]:
        """Have an If return the counts of its branches: zeros for the one that does not run."""
        writers = [_Writer(body, self._fresh, self._version) for body in _bodies(node)]
        counts = [writer.count() for writer in writers]
        sizes = [1 + size for _, size in counts]
        for place, (writer, (inner, _)) in enumerate(zip(writers, counts, strict=True)):
            own = [writer._constant(1), *filter(None, [inner])]
            other = writer._constant(*[0] * sizes[1 - place])
            all_ = [*own, other] if place == 0 else [other, *own]
            result = writer.add("Concat", *all_, axis=0)
            places = len(writer._graph.output)
            writer._graph.output.append(_floats(result, sum(sizes)))
        node.output.extend([""] * (places - len(node.output)))
        node.output.append(self._name())
        return node.output[-1], sum(sizes)

    def _iterations(self, node: onnx.NodeProto) -> tuple[str, int]:
        """Have a Loop or Scan carry the counts of its body from iteration to iteration."""
        (body,) = _bodies(node)
        writer = _Writer(body, self._fresh, self._version)
        inner, size = writer.count()
        size += 2
        before, output, states = self._name(), self._name(), _states(node)
        # From the second iteration on, the first count is above 0.
        again = writer.add("Gather", before, writer._constant(0, kind=np.int64), axis=0)
        parts = [writer._constant(1), again, *filter(None, [inner])]
        after = writer.add("Add", before, writer.add("Concat", *parts, axis=0))
        first = int(node.op_type == "Loop")
        node.input.extend([""] * (2 * first - len(node.input)))
        zeros = numpy_helper.from_array(np.zeros(size, np.float32))
        self._first.append(helper.make_node("Constant", [], [initial := self._name()], value=zeros))
        _insert(node.input, 2 * first + states, initial)
        _insert(body.input, 2 * first + states, _floats(before, size))
        _insert(body.output, first + states, _floats(after, size))
        node.output.extend([""] * (states - len(node.output)))
        _insert(node.output, states, output)
        return output, size


def _floats(name: str, size: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [size])


def _prune(graph: onnx.GraphProto, cache: _Needed) -> None:
    """Remove nodes, and outputs of Ifs, that no output of the graph depends on."""
    needed = _needed(graph, {value.name for value in graph.output}, cache)
    kept = [node for node in graph.node if not needed.isdisjoint(node.output)]
    for node in kept:
        if _kind(node, 1) == "If":
            wanted = [i for i, name in enumerate(node.output) if name in needed]
            for body in _bodies(node):
                _replace(body.output, [body.output[i] for i in wanted])
                _prune(body, cache)
            _replace(node.output, [node.output[i] for i in wanted])
    _replace(graph.node, kept)
    used = needed.union(value.name for value in graph.input)  # an input keeps its default
    _replace(graph.initializer, [each for each in graph.initializer if each.name in used])


def _needed(graph: onnx.GraphProto, outputs: Collection[str], cache: _Needed) -> frozenset[str]:
    """Return names of the values that outputs of a graph depend on.

    Args:
        cache: results so far; a body is searched once for the same outputs.
    """
    key = id(graph), frozenset(outputs)
    if key in cache:
        return cache[key][1]
    needed = set(outputs)
    size = -1
    while size < (size := len(needed)):  # the second pass adds nothing if nodes are sorted
        for node in reversed(graph.node):
            if needed.isdisjoint(node.output):
                continue
            needed.update(filter(None, node.input))
            if _kind(node, 1) == "If":
                wanted = [i for i, name in enumerate(node.output) if name in needed]
                for body in _bodies(node):
                    needed |= _needed(body, {body.output[i].name for i in wanted}, cache)
            else:
                needed.update(filter(None, _used_inside(node)))
    cache[key] = graph, frozenset(needed)
    return cache[key][1]


def _replace(field: MutableSequence[Any], values: Sequence[Any]) -> None:
    """Replace the elements of a repeated field."""
    del field[:]
    field.extend(values)


def _insert(field: MutableSequence[Any], place: int, value: object) -> None:
    """Insert an element into a repeated field, which has no method for it."""
    _replace(field, [*field[:place], value, *field[place:]])
