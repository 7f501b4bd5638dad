"""Cutting partitions out, putting fragments in."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from epctx.errors import CompileError, ModelError
from epctx.graph.dataflow import Dataflow
from epctx.graph.epcontext import EPContextNode
from epctx.graph.model import Partition, Replacement
from epctx.graph.partition import surgery
from tests.kit.onnx_text import model, names, run

X = np.array([1.0, -2.0], np.float32)

CHAIN = """
g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}, float[2] v = {3.0, 4.0}> {
    [a] h = Add(x, w)
    [b] i = Relu(h)
    [c] j = Mul(i, v)
    [d] y = Sub(j, w)
}"""

BRANCHES = """
g (float[2] x, bool c) => (float[2] y) <float[2] w = {1.0, 2.0}> {
    [a] h = Relu(x)
    [if] i = If(c) <
        then_branch = t () => (float[2] p) { [in] p = Add(h, w) },
        else_branch = e () => (float[2] q) <float[2] k = {5.0, 6.0}> { [in] q = Mul(h, k) }
    >
    [b] y = Add(i, w)
}"""


def cut(source: ir.Model, *nodes: int) -> Partition:
    return Dataflow(source).cut(0, nodes)


def fragment_of(body: str, *, opsets: str = '"" : 21, "com.microsoft" : 1') -> ir.Model:
    return model(body, opsets=opsets, infer=False)


def context(partition: Partition, name: str) -> Replacement:
    """One EPContext node in the place of a partition."""
    inputs = [ir.Value(name=v.name, type=v.type, shape=v.shape) for v in partition.inputs]
    outputs = [ir.Value(name=v.name, type=v.type, shape=v.shape) for v in partition.outputs]
    node = EPContextNode(
        name=name,
        inputs=tuple(v.name or "" for v in inputs),
        outputs=tuple(v.name or "" for v in outputs),
        ep_cache_context=b"payload",
        source="reference",
    ).to_ir(inputs, outputs)
    graph = ir.Graph(
        inputs, outputs, nodes=[node], opset_imports={"": 21, "com.microsoft": 1}, name=name
    )
    return Replacement(partition=partition, fragment=ir.Model(graph, ir_version=10))


def text(source: ir.Model) -> bytes:
    proto = ir.serde.serialize_model(source)
    found: bytes = proto.SerializeToString(deterministic=True)
    return found


# --- extract ---


def test_a_default_of_the_source_is_no_default_of_the_extract() -> None:
    source = model("g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }")
    source.graph.inputs.append(source.graph.initializers["w"])
    extracted = surgery.extract(source, cut(source, 0))
    assert [value.name for value in extracted.graph.inputs] == ["x", "w"]
    assert not extracted.graph.initializers
    assert extracted.graph.inputs[1].const_value is None


# --- splice ---


def test_one_epcontext_node_takes_the_place_of_a_partition() -> None:
    source = model(CHAIN)
    surgery.splice(source, [context(cut(source, 1, 2), "ctx")])
    assert names(list(source.graph)) == ["a", "ctx", "d"]
    node = source.graph[1]
    assert EPContextNode.from_ir(node).ep_cache_context == b"payload"
    assert [value.name for value in (*node.inputs, *node.outputs) if value] == ["h", "j"]
    assert node.outputs[0].shape == ir.Shape([2])
    assert list(source.graph.initializers) == ["w"], "v is no longer used"
    assert source.opset_imports == {"": 21, "com.microsoft": 1}
    onnx.checker.check_model(ir.serde.serialize_model(source))


def test_graph_outputs_keep_their_names_and_order() -> None:
    source = model("""g (float[2] x) => (float[2] r, float[2] n, float[2] r2) {
        r = Relu(x) n = Neg(r) r2 = Abs(n) }""")
    source.graph.outputs[2] = source.graph.outputs[0]
    surgery.splice(source, [context(cut(source, 0, 1), "ctx")])
    assert [value.name for value in source.graph.outputs] == ["r", "n", "r"]
    assert [value.producer() for value in source.graph.outputs] == [source.graph[0]] * 3


def test_an_initializer_that_a_context_took_is_gone_and_its_name_is_free() -> None:
    source = model(CHAIN)
    partition = cut(source, 2)
    fragment = fragment_of(
        "g (float[2] i) => (float[2] j) <float[2] v = {7.0, 7.0}> {[m] j = Mul(i, v) }"
    )
    surgery.splice(source, [Replacement(partition=partition, fragment=fragment)])
    weight = source.graph.initializers["v"].const_value
    assert weight is not None and weight.numpy().tolist() == [7.0, 7.0]


CLASH = """g (float[2] i) => (float[2] j) <float[2] w = {9.0, 9.0}, float[2] v = {3.0, 4.0}> {
    [a] h = Add(i, w)
    [m] j = Mul(h, v)
}"""


def test_names_in_use_get_a_number() -> None:
    source = model(CHAIN)
    fragment = fragment_of(CLASH)
    surgery.splice(source, [Replacement(partition=cut(source, 2), fragment=fragment)])
    assert names(list(source.graph)) == ["a", "b", "a_1", "m", "d"]
    assert [value.name for node in source.graph for value in node.outputs] == [
        "h", "i", "h_1", "j", "y",
    ]  # fmt: skip
    assert sorted(source.graph.initializers) == ["v", "w", "w_1"]
    np.testing.assert_array_equal(run(source, {"x": X})[0], [(2 + 9) * 3 - 1, 9 * 4 - 2])
    assert text(fragment) == text(fragment_of(CLASH)), "the fragment stays as it is"


def test_the_same_names_come_out_every_time() -> None:
    found = set()
    for _ in range(3):
        source = model(CHAIN)
        flow = Dataflow(source)
        first, second = (
            fragment_of(
                f"g (float[2] {i}) => (float[2] {o}) {{ [n] t = Neg({i}) [n2] {o} = Abs(t) }}"
            )
            for i, o in (("x", "h"), ("i", "j"))
        )
        surgery.splice(
            source,
            [
                Replacement(partition=flow.cut(0, [0]), fragment=first),
                Replacement(partition=flow.cut(0, [2]), fragment=second),
            ],
        )
        found.add(text(source))
        assert names(list(source.graph)) == ["n", "n2", "b", "n_1", "n2_1", "d"]
        assert [v.name for node in source.graph for v in node.outputs] == [
            "t", "h", "i", "t_1", "j", "y",
        ]  # fmt: skip
    assert len(found) == 1


def test_equal_tensors_of_one_name_are_one_initializer() -> None:
    source = model(CHAIN)
    fragment = fragment_of(
        "g (float[2] i) => (float[2] j) <float[2] w = {1.0, 2.0}> {j = Mul(i, w) }"
    )
    own = source.graph.initializers["w"].const_value
    surgery.splice(source, [Replacement(partition=cut(source, 2), fragment=fragment)])
    assert list(source.graph.initializers) == ["w"]
    assert source.graph.initializers["w"].const_value is own


@pytest.mark.parametrize(
    "other", ["float[1] w = {1.0}", "double[2] w = {1.0, 2.0}", "float[2] w = {1.0, -0.0}"]
)
def test_tensors_that_differ_are_two(other: str) -> None:
    source = model(CHAIN.replace("{1.0, 2.0}", "{1.0, 0.0}"))
    fragment = fragment_of(
        f"g (float[2] i) => (float[2] j) <{other}> {{c = Cast <to = 1> (w) j = Mul(i, c) }}"
    )
    surgery.splice(source, [Replacement(partition=cut(source, 2), fragment=fragment)])
    assert sorted(source.graph.initializers) == ["w", "w_1"]


def test_inner_names_are_kept_apart_from_outer_ones() -> None:
    source = model(BRANCHES)
    fragment = fragment_of("""g (bool c, float[2] h) => (float[2] i) {
        i = If(c) <
            then_branch = t () => (float[2] y) { y = Neg(h) },
            else_branch = e () => (float[2] s) <float[2] x = {5.0, 6.0}> { s = Mul(h, x) }
        >
    }""")
    surgery.splice(source, [Replacement(partition=cut(source, 1), fragment=fragment)])
    bodies = [attribute.as_graph() for attribute in source.graph[1].attributes.values()]
    assert [body.outputs[0].name for body in bodies] == ["y_1", "s"]
    assert list(bodies[1].initializers) == ["x_1"]
    np.testing.assert_array_equal(run(source, {"x": X, "c": np.array(False)})[0], [6.0, 2.0])


def test_outer_names_are_kept_apart_from_inner_ones() -> None:
    source = model(BRANCHES)
    fragment = fragment_of("g (float[2] x) => (float[2] h) { p = Neg(x) h = Neg(p) }")
    surgery.splice(source, [Replacement(partition=cut(source, 0), fragment=fragment)])
    assert [value.name for node in source.graph for value in node.outputs] == ["p_1", "h", "i", "y"]


def test_an_epcontext_node_keeps_its_name_whoever_has_it() -> None:
    source = model(CHAIN)
    surgery.splice(source, [context(cut(source, 1), "d")])
    assert names(list(source.graph)) == ["a", "d", "c", "d_1"]
    assert source.graph[1].op_type == "EPContext"


def test_two_epcontext_nodes_of_one_name_are_refused() -> None:
    source = model(CHAIN)
    flow = Dataflow(source)
    with pytest.raises(CompileError, match='2 EPContext nodes are named "n"'):
        surgery.splice(source, [context(flow.cut(0, [p]), "n") for p in (0, 2)])


def test_an_output_that_the_ep_found_to_be_constant() -> None:
    source = model(CHAIN)
    fragment = fragment_of("g () => (float[2] y) <float[2] y = {8.0, 9.0}> { }")
    surgery.splice(source, [Replacement(partition=cut(source, 0, 1, 2, 3), fragment=fragment)])
    assert [value.name for value in source.graph.outputs] == ["y"]
    assert names(list(source.graph)) == ["y_identity"]
    assert list(source.graph.initializers) == ["y_1"]
    np.testing.assert_array_equal(run(source, {"x": X})[0], [8.0, 9.0])


def test_types_and_shapes_come_from_both_sides() -> None:
    source = model(CHAIN)
    source.graph[2].outputs[0].shape = ir.Shape(["batch"])
    partition = cut(source, 2)
    fragment = fragment_of("g (float[2] i) => (float[2] j) { j = Neg(i) }")
    surgery.splice(source, [Replacement(partition=partition, fragment=fragment)])
    assert source.graph[2].outputs[0].shape == ir.Shape([2])
    source = model(CHAIN)
    fragment.graph.outputs[0].shape = None
    fragment.graph.outputs[0].type = None
    surgery.splice(source, [Replacement(partition=cut(source, 2), fragment=fragment)])
    assert source.graph[2].outputs[0].shape == ir.Shape([2])
    assert source.graph[2].outputs[0].dtype == ir.DataType.FLOAT


@pytest.mark.parametrize(
    ("body", "opsets", "why"),
    [
        ("g (float[2] q) => (float[2] j) { j = Neg(q) }", "", "takes q, which is not an input"),
        ("g (float[2] i) => (float[2] k) { k = Neg(i) }", "", "it gives k, not j"),
        ("g (float[2] i) => () { k = Neg(i) }", "", "it gives nothing, not j"),
        ("g (float[2] i) => (double[2] j) { j = Cast <to = 11> (i) }", "", "double, not float"),
        ("g (float[2] i) => (float[3] j) { j = Neg(i) }", "", "has shape"),
        ("g (float[2] i) => (float[2, 1] j) { j = Neg(i) }", "", "has shape"),
        ("g (float[2] i) => (float[2] j) { j = Gelu(i) }", '"" : 19', "Gelu of opset 19"),
        ("g (float[2] i) => (float[2] j) { j = Cast <to = 1> (i) }", '"" : 13', "Cast of opset 13"),
    ],
)
def test_a_fragment_that_does_not_fit_is_refused(body: str, opsets: str, why: str) -> None:
    source = model(CHAIN)
    fragment = fragment_of(body, opsets=opsets or '"" : 21')
    with pytest.raises(CompileError, match=why) as caught:
        surgery.splice(source, [Replacement(partition=cut(source, 2), fragment=fragment)])
    assert caught.value.exit_code == 6


def test_an_output_of_another_rank_than_its_model_declares_is_the_models_fault() -> None:
    source = model(CHAIN)
    fragment = fragment_of("g (float[2] j) => (float[2, 1] y) { y = Neg(j) }")
    with pytest.raises(ModelError, match=r"declares its output 'y' as \[2\], but its shape is"):
        surgery.splice(source, [Replacement(partition=cut(source, 3), fragment=fragment)])


def test_an_operator_that_did_not_change_may_come_from_another_opset() -> None:
    source = model(CHAIN)
    fragment = fragment_of("g (float[2] i) => (float[2] j) { j = Neg(i) }", opsets='"" : 15')
    surgery.splice(source, [Replacement(partition=cut(source, 2), fragment=fragment)])
    assert source.opset_imports == {"": 21}


def test_an_epcontext_output_without_a_shape_is_refused() -> None:
    source = model(CHAIN)
    replacement = context(cut(source, 2), "ctx")
    replacement.fragment.graph.outputs[0].shape = None
    with pytest.raises(CompileError, match='EPContext output "j" has no type or shape'):
        surgery.splice(source, [replacement])


def test_partitions_that_make_a_cycle_are_refused() -> None:
    source = model(CHAIN)
    with pytest.raises(CompileError, match="cycle"):
        surgery.splice(source, [context(cut(source, 0, 2), "ctx")])


def test_compatibility_information_is_taken_over() -> None:
    key = "ep_compatibility_info.ReferenceExecutionProvider"
    source = model(CHAIN)
    flow = Dataflow(source)
    pair = [context(flow.cut(0, [part]), f"ctx{part}") for part in (0, 2)]
    for replacement in pair:
        replacement.fragment.metadata_props[key] = "v1"
        replacement.fragment.metadata_props["else"] = "dropped"
    surgery.splice(source, pair)
    assert source.metadata_props == {key: "v1"}
    source = model(CHAIN)
    flow = Dataflow(source)
    pair = [context(flow.cut(0, [part]), f"ctx{part}") for part in (0, 2)]
    for version, replacement in enumerate(pair):
        replacement.fragment.metadata_props[key] = f"v{version}"
    with pytest.raises(CompileError, match="different ep_compatibility_info"):
        surgery.splice(source, pair)
