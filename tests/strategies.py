"""Every hypothesis strategy of the tests, in one place."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from hypothesis import strategies as st

from epctx.graph.bonds import Bond
from epctx.graph.partitioning import Border
from epctx.schema import filenames

# --- graphs of integers (graph/partitioning) ---


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
        bonds=draw(bonds(predecessors)) if bonded else (),
    )


# --- models of real operators (graph/surgery, stages/partition) ---

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
        group = {"models": chosen, "execution_providers": eps}
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
