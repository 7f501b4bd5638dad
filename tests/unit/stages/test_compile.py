"""Compile and dump."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import CompileError, ModelError
from epctx.files.digest import of_bytes
from epctx.graph import epcontext
from epctx.graph.model import Decline, OptimizedModel
from epctx.manifest import ExternalInitializers, PartitionSettings
from epctx.providers.base import (
    ExecutionProvider,
    SessionGroupSpec,
)
from epctx.providers.reference import ReferenceExecutionProvider
from epctx.runtime import InferenceSession
from epctx.stages import compile, partition
from epctx.stages.compile import CompiledGroup
from tests.kit.building import build, model_of
from tests.kit.composite_provider import Composite
from tests.kit.fake_providers import op_types
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


@contextmanager
def compiled(
    folder: Path,
    *providers: ExecutionProvider,
    settings: PartitionSettings | None = None,
    text: str = SIX,
) -> Iterator[CompiledGroup]:
    optimized = OptimizedModel(name="m", model=model(text), passes=(), digest=of_bytes(b""))
    parted = partition.run(optimized, providers, settings or PartitionSettings())
    spec = SessionGroupSpec(
        models=("m",), embed_mode=1, node_name_prefix="", session_options={}, folder=folder
    )
    with compile.run([parted], providers, spec) as group:
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
        (0, ["one", "two"]),
        (0, ["four", "five"]),
        (1, ["three"]),
    ]
    reasons = (("one", "no Floor in one"), ("two", "no Floor in two"))
    assert found.declined == (Decline(node="six", op_type="Floor", domain="", reasons=reasons),)
    assert (found.nodes, found.coverage) == (6, 5 / 6)


def test_max_partitions_counts_what_is_compiled_already(tmp_path: Path) -> None:
    settings = PartitionSettings(max_partitions=3)
    first = Composite("Relu", "Add", label="one")
    second = Composite("Abs", "Neg", "Exp", "Floor", label="two")
    with compiled(tmp_path, first, second, settings=settings) as group:
        (found,) = group.partitioned
        assert epcontext.count(group.models["m"]) == 3
    beyond = "partition of size 2 is beyond max_partitions 3"
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


def test_an_epcontext_node_of_the_source_is_still_refused(tmp_path: Path) -> None:
    text = """g (float[2] x) => (float[2] y) {
        [old] a = com.microsoft.EPContext(x)
        [new] y = Relu(a)
    }"""
    source = model(text, opsets='"" : 21, "com.microsoft" : 1')
    source.graph[0].outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    source.graph[0].outputs[0].shape = ir.Shape([2])
    optimized = OptimizedModel(name="m", model=source, passes=(), digest=of_bytes(b""))
    with pytest.raises(ModelError, match="build from the source model of this EPContext"):
        partition.run(optimized, [op_types("Relu")], PartitionSettings())


def test_inputs_without_a_shape_are_told_with_what_gives_them_one(tmp_path: Path) -> None:
    text = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
    shapeless = model(text)
    for value in (*shapeless.graph.inputs, *shapeless.graph.outputs):
        value.shape = None
    optimized = OptimizedModel(name="m", model=shapeless, passes=(), digest=of_bytes(b""))
    reference = ReferenceExecutionProvider({})
    parted = partition.run(optimized, [reference], PartitionSettings())
    spec = SessionGroupSpec(
        models=("m",), embed_mode=1, node_name_prefix="", session_options={}, folder=tmp_path
    )
    with (
        pytest.raises(CompileError, match="unknown rank") as caught,
        compile.run([parted], [reference], spec),
    ):
        pass
    assert '`shapes: {"x": [1]}`' in caught.value.remedy


def detector() -> onnx.ModelProto:
    """MatMul (the EP's), then Mul with weights and TopK with a count (the default EP's)."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((64, 64), np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal((1, 64), np.float32), "gain"),
        numpy_helper.from_array(np.array([4], np.int64), "k"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="matmul"),
        helper.make_node("Mul", ["m", "gain"], ["s"], name="scale"),
        helper.make_node("TopK", ["s", "k"], ["y", "i"], name="top_k"),
    ]
    value = helper.make_tensor_value_info
    outputs = [value("y", TensorProto.FLOAT, [1, 4]), value("i", TensorProto.INT64, [1, 4])]
    inputs = [value("x", TensorProto.FLOAT, [1, 64])]
    return model_of(helper.make_graph(nodes, "detector", inputs, outputs, weights))


def test_external_initializers_leave_what_shape_inference_reads(tmp_path: Path) -> None:
    out = build(
        tmp_path,
        {"m": detector()},
        providers=[ReferenceExecutionProvider({"ops": ("MatMul",)})],
        external_initializers=ExternalInitializers(file="m.data", size_threshold=0),
    )
    assert {path.name for path in out.iterdir()} == {"m_ctx.onnx", "m.data", "m_reference.bin"}
    model = onnx.load(out / "m_ctx.onnx", load_external_data=False)
    outside = {t.name: t.data_location == TensorProto.EXTERNAL for t in model.graph.initializer}
    assert outside == {"gain": True, "k": False}
    with InferenceSession(out / "m_ctx.onnx") as session:
        y, i = session.run(None, {"x": np.ones((1, 64), np.float32)})
    assert y.shape == i.shape == (1, 4)


def test_each_file_is_written_before_the_model_that_refers_to_it(tmp_path: Path) -> None:
    out = build(tmp_path, {"m": detector()})
    binary, model = out / "m_reference.bin", out / "m_ctx.onnx"
    assert binary.stat().st_mtime_ns <= model.stat().st_mtime_ns
