"""Stage 4: what an EP leaves inside its partitions goes to the EPs after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import onnx_ir as ir
import pytest

from epctx.errors import CompileError, ModelError
from epctx.files.digest import of_bytes
from epctx.graph import epcontext
from epctx.graph.epcontext import EPContextNode
from epctx.graph.model import Decline, OptimizedModel, Partition, Replacement
from epctx.graph.partition import surgery
from epctx.manifest import PartitionSettings
from epctx.providers.base import (
    ContextBinary,
    ExecutionProvider,
    PartitionedModel,
    SessionGroupSpec,
)
from epctx.providers.reference import ReferenceExecutionProvider
from epctx.stages import compile, partition
from epctx.stages.compile import CompiledGroup
from tests.kit.fake_providers import Taker, op_types
from tests.kit.onnx_text import model, names

SIX = """
g (float[2] x) => (float[2] y, float[2] z) {
    [one] a = Relu(x)
    [two] b = Abs(a)
    [three] c = Neg(b)
    [four] d = Add(a, c)
    [five] y = Exp(d)
    [six] z = Floor(d)
}"""


class Composite(Taker):
    """Wants every node, as QNN through ONNX Runtime does, and compiles those of `taken`."""

    def __init__(self, *taken: str, label: str) -> None:
        super().__init__(lambda node: True, label=label)
        self.taken = taken
        self.sources = frozenset({label})
        self.asked: list[list[str | None]] = []

    def open_workspace(self, session_group: SessionGroupSpec) -> CompositeWorkspace:
        return CompositeWorkspace(self)


def eps(*found: Taker) -> Sequence[ExecutionProvider]:
    """Fakes that have what the partition stage asks of an EP."""
    return cast(Sequence[ExecutionProvider], found)


class CompositeWorkspace:
    """Replaces what its EP takes of a partition by EPContext nodes, and gives back the rest."""

    def __init__(self, provider: Composite) -> None:
        self._provider = provider
        self._nodes: dict[str, list[ir.Node]] = {}

    def compile(
        self, model: PartitionedModel, partitions: Sequence[Partition]
    ) -> Sequence[Replacement]:
        label = self._provider.label
        self._nodes[model.name] = [node for each in partitions for node in each.nodes]
        self._provider.asked += [names(each.nodes) for each in partitions]
        made: list[Replacement] = []
        for number, each in enumerate(partitions):
            part = surgery.extract(model.model, each)
            whole = OptimizedModel(name="part", model=part, passes=(), digest=of_bytes(b""))
            inner = partition.run(whole, eps(op_types(*self._provider.taken)), PartitionSettings())
            surgery.splice(
                part,
                [
                    Replacement(partition=p, fragment=context(p, f"{label}_{number}_{i}", label))
                    for i, p in enumerate(inner.partitions)
                ],
            )
            if inner.partitions:
                made.append(Replacement(partition=each, fragment=part))
        return made

    def assigned(self, model: str) -> Sequence[object]:
        return ()

    def left_out(self, model: str) -> Mapping[ir.Node, str]:
        mine = [n for n in self._nodes.get(model, ()) if n.op_type not in self._provider.taken]
        return {node: f"no {node.op_type} in {self._provider.label}" for node in mine}

    def finish(self) -> Sequence[ContextBinary]:
        return ()

    def close(self) -> None:
        pass


def context(taken: Partition, name: str, source: str) -> ir.Model:
    def value(known: ir.Value) -> ir.Value:
        return ir.Value(name=known.name, type=known.type, shape=known.shape)

    inputs, outputs = list(map(value, taken.inputs)), list(map(value, taken.outputs))
    node = EPContextNode(
        name=name,
        inputs=tuple(str(v.name) for v in inputs),
        outputs=tuple(str(v.name) for v in outputs),
        ep_cache_context=b"payload",
        embed_mode=1,
        source=source,
    )
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=[node.to_ir(inputs, outputs)],
        opset_imports={"": 21, epcontext.DOMAIN: 1},
        name=name,
    )
    return ir.Model(graph, ir_version=10)


@contextmanager
def compiled(
    folder: Path,
    *providers: ExecutionProvider | Composite,
    settings: PartitionSettings | None = None,
    text: str = SIX,
) -> Iterator[CompiledGroup]:
    given: Sequence[ExecutionProvider] = providers  # type: ignore[assignment]
    optimized = OptimizedModel(name="m", model=model(text), passes=(), digest=of_bytes(b""))
    parted = partition.run(optimized, given, settings or PartitionSettings())
    spec = SessionGroupSpec(
        models=("m",), embed_mode=1, node_name_prefix="", session_options={}, folder=folder
    )
    with compile.run([parted], given, spec) as group:
        yield group


def listing(group: CompiledGroup) -> list[str]:
    return sorted(f"{node.op_type} {node.name}" for node in group.models["m"].graph)


def test_what_an_ep_leaves_is_compiled_by_the_next(tmp_path: Path) -> None:
    first = Composite("Relu", "Abs", "Add", "Exp", label="one")
    second = Composite("Neg", "Exp", label="two")
    with compiled(tmp_path, first, second) as group:
        assert first.asked == [["one", "two", "three", "four", "five", "six"]]
        assert second.asked == [["three"], ["six"]], "EPContext nodes are nobody's candidates"
        assert listing(group) == [
            "EPContext one_0_0",
            "EPContext one_0_1",
            "EPContext two_0_0",
            "Floor six",
        ]
        assert group.joint == {"m"}
        (found,) = group.partitioned
    assert [(p.provider, names(p.nodes)) for p in found.partitions] == [
        (0, ["one", "two", "four", "five"]),
        (1, ["three"]),
    ]
    reasons = (("one", "no Floor in one"), ("two", "no Floor in two"))
    assert found.declined == (Decline(node="six", op_type="Floor", domain="", reasons=reasons),)
    assert (found.nodes, found.coverage) == (6, 5 / 6)


def test_three_eps_hand_on_twice(tmp_path: Path) -> None:
    eps = (
        Composite("Relu", "Add", label="one"),
        Composite("Abs", "Exp", label="two"),
        Composite("Neg", label="three"),
    )
    with compiled(tmp_path, *eps) as group:
        (found,) = group.partitioned
    assert [(p.provider, names(p.nodes)) for p in found.partitions] == [
        (0, ["one", "four"]),
        (1, ["two"]),
        (1, ["five"]),
        (2, ["three"]),
    ]
    assert [d.reasons for d in found.declined] == [
        (("one", "no Floor in one"), ("two", "no Floor in two"), ("three", "no Floor in three"))
    ]
    assert found.coverage == 5 / 6


def test_excluded_nodes_stay_excluded(tmp_path: Path) -> None:
    settings = PartitionSettings(exclude_op_types=("Neg",))
    second = Composite("Neg", "Floor", label="two")
    first = Composite("Relu", "Abs", "Add", "Exp", label="one")
    with compiled(tmp_path, first, second, settings=settings) as group:
        (found,) = group.partitioned
        assert "Neg three" in listing(group)
    assert second.asked == [["six"]]
    why = "excluded by manifest: op type Neg"
    assert [d.reasons for d in found.declined] == [(("one", why), ("two", why))]


def test_max_partitions_counts_what_is_compiled_already(tmp_path: Path) -> None:
    settings = PartitionSettings(max_partitions=3)
    first = Composite("Relu", "Add", label="one")
    second = Composite("Abs", "Neg", "Exp", "Floor", label="two")
    with compiled(tmp_path, first, second, settings=settings) as group:
        (found,) = group.partitioned
        assert epcontext.count(group.models["m"]) == 3
    beyond = "partition of 2 beyond the 3 of max_partitions"
    assert {d.node: d.reasons for d in found.declined} == {
        "five": (("one", "no Exp in one"), ("two", beyond)),
        "six": (("one", "no Floor in one"), ("two", beyond)),
    }


def test_nothing_left_needs_no_second_partition(tmp_path: Path) -> None:
    first = Composite("Relu", "Abs", "Neg", "Add", "Exp", "Floor", label="one")
    second = Composite("Neg", label="two")
    with compiled(tmp_path, first, second) as group:
        assert listing(group) == ["EPContext one_0_0"]
        assert group.joint == frozenset()
    assert second.asked == []


def test_what_nobody_after_takes_stays_with_the_session_of_the_first(tmp_path: Path) -> None:
    first = Composite("Relu", "Abs", "Neg", "Add", "Exp", label="one")
    with compiled(tmp_path, first, ReferenceExecutionProvider({"ops": "Celu"})) as group:
        assert group.joint == frozenset(), "so its generating session computes all of the model"
        (found,) = group.partitioned
    left = {d.node: dict(d.reasons) for d in found.declined}
    assert left == {"six": {"one": "no Floor in one", "reference": "option ops does not name it"}}


def test_two_eps_that_take_whole_partitions_are_not_chained(tmp_path: Path) -> None:
    eps = [
        ReferenceExecutionProvider({"ops": "Relu Abs Neg", "source": "one"}),
        ReferenceExecutionProvider({"source": "two"}),
    ]
    with compiled(tmp_path, *eps) as group:
        assert group.joint == frozenset()
        (found,) = group.partitioned
    assert [(p.provider, names(p.nodes)) for p in found.partitions] == [
        (0, ["one", "two", "three"]),
        (1, ["four", "five", "six"]),
    ]


def test_an_ep_behind_another_that_left_nodes_finds_the_same(tmp_path: Path) -> None:
    """A reference EP takes what CPU kernels run; an EPContext node is no such thing."""
    first = Composite("Relu", "Add", label="one")
    with compiled(tmp_path, first, ReferenceExecutionProvider({})) as group:
        (found,) = group.partitioned
        assert found.coverage == 1.0
        assert {n.op_type for n in group.models["m"].graph} == {"EPContext"}
    assert sorted(str(n) for p in found.partitions for n in names(p.nodes)) == sorted(
        ["one", "two", "three", "four", "five", "six"]
    )


def test_an_ep_after_may_take_nothing_of_the_leftovers(tmp_path: Path) -> None:
    """Asked for its nodes, it wanted them all; compiling, it gave all of them back."""
    first = Composite("Relu", "Abs", "Neg", "Add", "Exp", label="one")
    with compiled(tmp_path, first, Composite("Neg", label="two")) as group:
        assert group.joint == frozenset()
        (found,) = group.partitioned
        assert listing(group) == ["EPContext one_0_0", "Floor six"]
    assert [p.provider for p in found.partitions] == [0]
    assert [d.reasons for d in found.declined] == [
        (("one", "no Floor in one"), ("two", "no Floor in two"))
    ]


def test_nothing_compiled_is_an_error(tmp_path: Path) -> None:
    nothing = ReferenceExecutionProvider({"ops": "Celu"})
    with pytest.raises(CompileError, match="nothing compiled"), compiled(tmp_path, nothing):
        pass


def test_an_epcontext_node_of_the_source_is_still_refused(tmp_path: Path) -> None:
    text = """g (float[2] x) => (float[2] y) {
        [old] a = com.microsoft.EPContext(x)
        [new] y = Relu(a)
    }"""
    source = model(text, opsets='"" : 21, "com.microsoft" : 1')
    source.graph[0].outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    source.graph[0].outputs[0].shape = ir.Shape([2])
    optimized = OptimizedModel(name="m", model=source, passes=(), digest=of_bytes(b""))
    with pytest.raises(ModelError, match="build from the model that this EPContext"):
        partition.run(optimized, eps(op_types("Relu")), PartitionSettings())
