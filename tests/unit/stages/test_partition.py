"""Stage 3: who takes which part, and why not."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from epctx.errors import CompileError, ModelError, ProviderUnavailable
from epctx.files.digest import of_bytes
from epctx.graph.model import Decline, OptimizedModel, Partition, Refusal
from epctx.manifest import PartitionSettings
from epctx.providers.base import Capability, PartitionedModel
from epctx.providers.guard import guard
from epctx.stages import partition
from epctx.stages.report import ModelReport, PartitionReport
from tests.kit.fake_providers import Taker, op_types, partitioned
from tests.kit.onnx_text import model, names

CHAIN = """
g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> {
    [body_add] h = Add(x, w)
    [body_relu] i = Relu(h)
    [head_abs] j = Abs(i)
    [head_neg] y = Neg(j)
}"""

EVERYTHING = Taker(lambda node: True, label="all")


def report(found: PartitionedModel) -> ModelReport:
    return ModelReport(
        name=found.name,
        passes=(),
        nodes=found.nodes,
        coverage=found.coverage,
        partitions=tuple(
            PartitionReport(provider=str(p.provider), nodes=len(p.nodes), inputs=(), outputs=())
            for p in found.partitions
        ),
        declined=found.declined,
    )


def reasons(found: tuple[Decline, ...]) -> dict[str, list[str]]:
    return {left.node: [reason for _, reason in left.reasons] for left in found}


def test_every_reason_by_which_a_supported_node_is_left() -> None:
    body = """g (float[2] x, string[2] s) => (float[2] y, string[2] t) {
        [small] a = Relu(x)
        [cut] b = Abs(a)
        [one] c = Neg(b)
        [two] y = Relu(c)
        [text] t = Identity(s)
        [dead] d = Neg(c)
    }"""
    taker = op_types("Relu", "Neg", "Identity")
    result = partitioned(model(body), taker, settings=PartitionSettings(min_nodes=2))
    assert [names(p.nodes) for p in result.partitions] == [["one", "two"]]
    assert reasons(result.declined) == {
        "small": ["partition of size 1 is below min_nodes 2"],
        "cut": ["not supported"],
        "text": ["type string at the partition boundary"],
        "dead": ["no output of the model depends on it"],
    }
    result = partitioned(model(body), taker, settings=PartitionSettings(max_partitions=1))
    assert reasons(result.declined)["small"] == ["partition of size 1 is beyond max_partitions 1"]


def test_refused_types_may_be_inside_a_partition() -> None:
    body = """g (float[2] x) => (float[2] y) {
        [a] s = SequenceConstruct(x, x)
        [b] n = SequenceLength(s)
        [c] f = Cast <to = 1> (n)
        [d] y = Add(x, f)
    }"""
    whole = partitioned(model(body), EVERYTHING)
    assert [names(p.nodes) for p in whole.partitions] == [["a", "b", "c", "d"]]
    part = partitioned(model(body), op_types("SequenceConstruct", "Cast", "Add"))
    assert [names(p.nodes) for p in part.partitions] == [["c", "d"]]
    assert reasons(part.declined)["a"] == ["type sequence(float) at the partition boundary"]


def test_values_of_unknown_type_do_not_cross() -> None:
    body = """g (float[2] x) => (float[2] y) {
        [a] h = com.microsoft.Gelu(x)
        [b] i = Abs(h)
        [c] y = Relu(i)
    }"""
    source = model(body, opsets='"" : 21, "com.microsoft" : 1')
    assert source.graph[0].outputs[0].type is None, "onnx knows no type of a contrib op's output"
    whole = partitioned(source, EVERYTHING)
    assert [names(p.nodes) for p in whole.partitions] == [["a", "b", "c"]]
    part = partitioned(source, op_types("Abs", "Gelu"))
    assert part.partitions == ()
    unknown = "unknown type at the partition boundary"
    assert reasons(part.declined) == {"a": [unknown], "b": [unknown], "c": ["not supported"]}


def test_a_control_flow_node_goes_whole() -> None:
    body = """g (float[2] x, bool c) => (float[2] y) {
        [a] h = Relu(x)
        [if] i = If(c) <
            then_branch = t () => (float[2] p) { p = Neg(h) },
            else_branch = e () => (float[2] q) { q = Abs(h) }
        >
        [b] y = Relu(i)
    }"""
    whole = partitioned(model(body), EVERYTHING)
    assert [names(p.nodes) for p in whole.partitions] == [["a", "if", "b"]]
    part = partitioned(model(body), op_types("Relu", "Neg", "Abs"))
    assert [names(p.nodes) for p in part.partitions] == [["a"], ["b"]], "h is captured by the If"
    assert list(reasons(part.declined)) == ["if"]


QDQ = """
g (float[2] x) => (float[2] y) <float s = {0.1}, uint8 z = {3}> {
    [q0] a = QuantizeLinear(x, s, z)
    [d0] b = DequantizeLinear(a, s, z)
    [op] c = Relu(b)
    [q1] d = QuantizeLinear(c, s, z)
    [d1] y = DequantizeLinear(d, s, z)
}"""


def test_quantizers_at_the_models_border_do_not_count_as_missed() -> None:
    inner = Taker(lambda node: node.name in {"d0", "op", "q1"})
    settings = PartitionSettings(require_coverage=1.0)
    result = partitioned(model(QDQ), inner, settings=settings)
    partition.require_coverage(report(result), settings)
    assert result.boundary_quantize == 2
    assert result.coverage == 1.0
    assert partitioned(model(QDQ), EVERYTHING).boundary_quantize == 0, "taken ones count"
    result = partitioned(model(QDQ), op_types("Relu"))
    assert (result.boundary_quantize, result.coverage) == (2, 1 / 3), "inner ones count"


def test_missed_coverage_is_an_error_that_says_what_is_missing() -> None:
    settings = PartitionSettings(require_coverage=0.8)
    found = partitioned(model(CHAIN), op_types("Relu", label="one"), settings=settings)
    with pytest.raises(CompileError) as caught:
        partition.require_coverage(report(found), settings)
    assert str(caught.value).splitlines() == [
        "model m: the execution providers take 1 of 4 nodes, 25.0% where require_coverage asks "
        "for 80.0%: 1 Add (one: not supported), 1 Abs (one: not supported), 1 Neg (one: not "
        "supported)",
        "  -> see `epctx plan --partition` for every node; let an execution provider take more, "
        "or lower partition.require_coverage",
    ]
    assert caught.value.exit_code == 6
    assert found.coverage == 0.25
    partition.require_coverage(report(found), PartitionSettings(require_coverage=0.25))


def test_the_most_frequent_reasons_come_first() -> None:
    body = "g (float[2] x) => (float[2] y) {{ {} y = Relu(x) }}"
    ops = ["Abs", "Neg", "Neg", "Exp", "Neg", "Exp", "Tanh", "Erf", "Sign", "Cos"]
    nodes = " ".join(f"a{i} = {op}(x)" for i, op in enumerate(ops))
    told = partition.explain(partitioned(model(body.format(nodes)), op_types("Relu", label="o")))
    assert told == (
        "3 Neg (o: not supported), 2 Exp (o: not supported), 1 Abs (o: not supported), "
        "1 Tanh (o: not supported), 1 Erf (o: not supported), and 2 more"
    )


def test_a_node_that_nobody_can_run_is_refused() -> None:
    body = """g (float[2] x) => (float[2] y) {
        [made] h = own.Made(x)
        [relu] y = Relu(h)
    }"""
    with pytest.raises(ModelError, match=r'model m, node "made".* Made \(domain own, opset 2\)'):
        partitioned(model(body, opsets='"" : 21, "own" : 2'), op_types("Relu"))
    result = partitioned(model(body, opsets='"" : 21, "own" : 2'), EVERYTHING)
    assert result.coverage == 1.0, "an EP that takes it is enough"


class Broken(Taker):
    def __init__(self, error: Exception) -> None:
        super().__init__(lambda node: True, label="broken")
        self._error = error

    def get_capability(self, model: ir.Model) -> Capability:
        raise self._error


def test_an_ep_that_fails_is_named() -> None:
    guarded = guard(Broken(KeyError("oops")), "TakerExecutionProvider", lambda: "taker 1.0")
    source = OptimizedModel(name="m", model=model(CHAIN), passes=(), digest=of_bytes(b""))
    with pytest.raises(CompileError, match=r"model m: TakerExecution.*KeyError: 'oops'"):
        partition.run(source, [guarded], PartitionSettings())
    gone = ProviderUnavailable("is not installed", remedy="install it")
    with pytest.raises(ProviderUnavailable, match="is not installed") as caught:
        partitioned(model(CHAIN), Broken(gone))
    assert caught.value.where == "model m"
    placed = ProviderUnavailable("is not there", where="/lib/ep.so", remedy="install it")
    with pytest.raises(ProviderUnavailable) as caught:
        partitioned(model(CHAIN), Broken(placed))
    assert caught.value.where == "/lib/ep.so"


def test_an_ep_that_takes_what_is_not_there_is_named() -> None:
    class Stranger(Taker):
        def get_capability(self, model: ir.Model) -> Capability:
            return Capability(nodes=[ir.Node("", "Relu", [], name="elsewhere")])

    with pytest.raises(CompileError, match="not in the model's main graph: elsewhere"):
        partitioned(model(CHAIN), Stranger(lambda node: True))


class Wanting(Taker):
    wants_inputs = True


def test_a_partition_of_constants_alone_is_not_for_an_ep_that_wants_inputs() -> None:
    """What a folded If may leave; QNN fails on it, and takes it beside nodes with inputs."""
    text = """
    g (float[2,2] x) => (float[2,2] y, float[2,2] z) <float[2,2] w = {1,2,3,4}> {
        [constant] m = MatMul(w, w)
        [y] y = Relu(m)
        [z] z = Abs(x)
    }"""
    alone = partitioned(model(text), Wanting(lambda node: node.op_type != "Abs", label="w"))
    assert not alone.partitions
    assert all("without an input" in reasons(alone.declined)[n][0] for n in ("constant", "y"))
    assert len(partitioned(model(text), op_types("MatMul", "Relu")).partitions) == 1
    (beside,) = partitioned(model(text), Wanting(lambda node: True, label="w")).partitions
    assert len(beside.nodes) == 3


class Foreseeing(Taker):
    """An EP that says of a node what it would have made of it."""

    native = True
    foresees = True

    def foresee(self, model: ir.Model, partition: Partition) -> dict[ir.Node, str | Refusal]:
        left = next(node for node in partition.nodes if node.name == "head_abs")
        return {left: Refusal(why="no", op="ElementWiseAbs", remedy="another type")}


def test_all_that_an_ep_says_of_a_node_stays_with_it() -> None:
    """Its reason is in words, too; what EPs before said is handed on with it."""
    optimized = OptimizedModel(name="m", model=model(CHAIN), passes=(), digest=of_bytes(b""))
    asked = [Foreseeing(lambda node: True, label="one"), op_types("Relu", label="two")]
    found, _ = partition.foresee(optimized, asked, PartitionSettings())
    (left,) = found.declined
    assert left.reasons == (("one", "no; another type"), ("two", "not supported"))
    said = Refusal(why="no", op="ElementWiseAbs", remedy="another type")
    assert left.refusals == (("one", said),)
    assert left.by_provider() == (("one", said), ("two", Refusal(why="not supported")))
    assert partition.reasons_of(left, {"one"}) == (("one", said),)
    assert partition.reasons_of(left, {"two"}) == (("two", "not supported"),)
