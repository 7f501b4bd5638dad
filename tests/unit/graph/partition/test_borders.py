"""Values that may cross a border, and unique names."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as native

from epctx.graph.dataflow import Dataflow
from epctx.graph.partition import borders
from epctx.graph.partition.assign import Bond
from epctx.graph.partition.borders import Names
from tests.kit import onnx_text
from tests.kit.onnx_text import model, session

EVERY_DTYPE = [dtype for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED]


def test_the_types_are_those_of_the_op_schema() -> None:
    schema = next(s for s in native.get_all_operator_schema() if s.name == "EPContext")
    (constraint,) = schema.type_constraints
    assert constraint.type_param_str == "T"
    spelt = {"float": "FLOAT", "double": "DOUBLE"}  # the rest are the same, but for the case
    names = [
        name.removeprefix("tensor(").removesuffix(")") for name in constraint.allowed_type_strs
    ]
    assert {spelt.get(name, name.upper()) for name in names} == {t.name for t in borders.TYPES}


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=lambda dtype: dtype.name)
def test_onnxruntime_refuses_an_epcontext_node_of_the_types_that_are_refused(
    dtype: ir.DataType,
) -> None:
    value = ir.Value(name="x", type=ir.TensorType(dtype), shape=ir.Shape([2]))
    out = ir.Value(name="y", type=ir.TensorType(dtype), shape=ir.Shape([2]))
    node = ir.node("EPContext", [value], domain="com.microsoft", outputs=[out])
    graph = ir.Graph([value], [out], nodes=[node], opset_imports={"": 21, "com.microsoft": 1})
    with pytest.raises(Exception) as caught:
        session(ir.Model(graph, ir_version=10))
    may_cross = borders.refused(value) is None
    assert may_cross == isinstance(caught.value, native.NotImplemented), caught.value
    assert may_cross == (dtype in borders.TYPES)


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (ir.TensorType(ir.DataType.STRING), "type string"),
        (ir.TensorType(ir.DataType.FLOAT8E4M3FN), "type float8e4m3fn"),
        (ir.SequenceType(ir.TensorType(ir.DataType.FLOAT)), "type sequence(float)"),
        (
            ir.OptionalType(ir.SequenceType(ir.TensorType(ir.DataType.INT64))),
            "type optional(sequence(int64))",
        ),
        (ir.SparseTensorType(ir.DataType.FLOAT), "type sparse(float)"),
        (ir.TensorType(ir.DataType.UNDEFINED), "unknown type"),
        (None, "unknown type"),
    ],
)
def test_why_a_value_may_not_cross(of: ir.TypeProtocol | None, reason: str) -> None:
    assert borders.refused(ir.Value(name="v", type=of)) == f"{reason} at the partition boundary"


def test_bonds_of_a_model() -> None:
    source = model(
        """g (string[2] s, float[2] x) => (string[2] t, float[2] y) {
            u = Identity(s)
            t = Identity(u)
            a = foo.Unknown(x)
            y = Relu(a)
        }""",
        opsets='"": 21, "foo": 1',
    )
    string = "type string at the partition boundary"
    unknown = "unknown type at the partition boundary"
    assert sorted(
        borders.border_of(Dataflow(source)).must_stay_together, key=lambda bond: bond.producer
    ) == [
        Bond(producer=-1, consumers=(0,), reason=string),
        Bond(producer=0, consumers=(1,), reason=string),
        Bond(producer=1, consumers=(), exposed=True, reason=string),
        Bond(producer=2, consumers=(3,), reason=unknown),
    ]


def test_an_initializer_of_any_type_is_inside() -> None:
    source = model(
        'g (int64[1] i) => (string[1] y) <string[2] w = {"a", "b"}> { y = Gather(w, i) }'
    )
    (bond,) = borders.border_of(Dataflow(source)).must_stay_together
    assert (bond.producer, bond.exposed) == (0, True), "only the output is bonded"


def test_a_value_without_rank_may_enter_a_partition_but_not_leave_one() -> None:
    source = model("g (float[2] x, int64[N] s) => (float y) { a = Reshape(x, s) y = Relu(a) }")
    for value in (source.graph[0].outputs[0], source.graph[1].outputs[0]):
        value.shape = None
    found = borders.border_of(Dataflow(source)).must_stay_together
    assert [(bond.producer, bond.consumers, bond.one_way) for bond in found] == [
        (0, (1,), True),
        (1, (), True),
    ]
    assert "unknown rank" in found[0].reason


_BODY = "d (float[3] x) => (float[3] y) { t = Neg(x) y = Neg(t) }"


def test_an_operator_finds_its_body_by_the_names_that_it_had() -> None:
    whole = onnx_text.model(
        "g (float[3] x) => (float[3] y) { t = Neg(x) y = Abs(t) }", opsets='"" : 21, "own" : 1'
    )
    fragment = onnx_text.model(
        f"f (float[3] x) => (float[3] y) {{ y = own.Find(x) <body = {_BODY}> }}",
        opsets='"" : 21, "own" : 1',
        infer=False,
    )
    names = Names(whole.graph, [fragment.graph], gone=[whole.graph[1]])
    names.assign(fragment.graph, kept=frozenset(fragment.graph.outputs))
    body = fragment.graph[0].attributes["body"].as_graph()
    assert [value.name for value in (*body.inputs, *body.outputs)] == ["x", "y"]
    assert body[0].outputs[0].name == "t_1", "this one nobody finds by its name"
