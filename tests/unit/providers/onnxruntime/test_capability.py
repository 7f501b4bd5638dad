"""Which nodes EPs of ONNX Runtime take, asked before a compile."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import CompileError, ModelError
from epctx.graph.dataflow import Dataflow
from epctx.manifest import ModelSource
from epctx.providers.onnxruntime import capability
from epctx.providers.onnxruntime.capability import SMALL_WEIGHT, require_static_shapes
from epctx.providers.onnxruntime.qnn.provider import QNNExecutionProvider
from epctx.stages import load
from tests.kit import onnx_text
from tests.kit.onnx_text import model


def never(node: ir.Node) -> bool:
    raise AssertionError(f"the EP was asked about {node.name}")


def test_an_ep_is_given_everything_that_it_may_take() -> None:
    model = onnx_text.model("g (float[2, 3] x) => (float[2, 3] y) { h = Abs (x) y = Relu (h) }")
    found = capability.capability(model, never)
    assert [node.op_type for node in found.nodes] == ["Abs", "Relu"]
    assert not found.declined


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("g (string[2] x) => (string[2] y) { y = Identity (x) }", '"x" is a tensor of strings'),
        (
            "g (float[2] x) => (float[2] y) { s = SequenceConstruct (x) "
            "y = ConcatFromSequence <axis = 0> (s) }",
            '"s" is a sequence',
        ),
        (
            "g (map(int64,float) m) => (float[1, 2] y) { y = ai.onnx.ml.CastMap (m) }",
            '"m" is a map',
        ),
        (
            "g (float[1, 4, 1] x) => (float[1, 4, 2] y) { y = acme.Secret (x) }",
            "onnxruntime has no operators of domain acme",
        ),
        (
            'g (float[2] x) => (float[2] y) { y = com.microsoft.EPContext <source = "QNN"> (x) }',
            "it is compiled already",
        ),
    ],
)
def test_what_no_ep_of_onnxruntime_takes_stays_behind(body: str, reason: str) -> None:
    model = onnx_text.model(
        body,
        opsets='"" : 21, "acme" : 1, "com.microsoft" : 1, "ai.onnx.ml" : 1',
        infer="acme" not in body,
    )
    declined = capability.capability(model, never).declined
    assert any(why.startswith(reason) for why in declined.values()), declined


def branching(size: int, where: str) -> ir.Model:
    """An If whose branches add `size` floats that are `inside`, `constant` or `outside`."""
    array = np.zeros(size, np.float32)
    outer = [numpy_helper.from_array(array, "w")] if where == "outside" else []

    def branch(name: str) -> onnx.GraphProto:
        tensor = numpy_helper.from_array(array, "w" if where == "outside" else f"w_{name}")
        nodes = [helper.make_node("Add", ["x", tensor.name], [f"y_{name}"])]
        if where == "constant":
            nodes.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
        value = helper.make_tensor_value_info(f"y_{name}", TensorProto.FLOAT, [size])
        return helper.make_graph(nodes, name, [], [value], [tensor] if where == "inside" else [])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b"))
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [size]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [size])],
        outer,
    )
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


@pytest.mark.parametrize("where", ["inside", "constant", "outside"])
def test_control_flow_with_weights_is_asked_about(where: str) -> None:
    """Of 127 bytes ONNX Runtime can write it wherever it runs; beyond, only inside an EP."""
    assert SMALL_WEIGHT == 127
    small = capability.capability(branching(31, where), never)
    assert [node.op_type for node in small.nodes] == ["If"]
    taken = capability.capability(branching(32, where), lambda node: True)
    assert [node.op_type for node in taken.nodes] == ["If"]
    left = capability.capability(branching(32, where), lambda node: False)
    assert not left.nodes
    assert "its body holds weights" in next(iter(left.declined.values()))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("[n, 3]", '`dimensions: {"n": 1}` (with your sizes)'),
        ("[batch, length]", '`dimensions: {"batch": 1, "length": 1}`'),
        ("[?, 3]", '`shapes: {"x": [1, 3]}`'),
        ("", '`shapes: {"x": [1]}` (with your sizes, one for each dimension)'),
    ],
)
def test_unknown_sizes_are_refused_with_what_to_write(shape: str, words: str) -> None:
    model = onnx_text.model(f"g (float{shape} x) => (float{shape} y) {{ y = Relu (x) }}")
    if not shape:
        model.graph.inputs[0].shape = None
    with pytest.raises(ModelError) as caught:
        require_static_shapes(model, provider="QNN")
    assert words in str(caught.value)


def test_all_inputs_are_told_at_once_and_what_is_told_cures(tmp_path: Path) -> None:
    inputs = "float[n, 3] x, float[n, ?] y, float[1, m] z, float[1, 3] w"
    text = f"g ({inputs}) => (float[?, 3] s) {{ s = Sum (x, y, z, w) }}"
    onnx.save(onnx_text.proto(text), tmp_path / "m.onnx")
    source = ModelSource(name="m", path=tmp_path / "m.onnx")
    with pytest.raises(ModelError) as caught:
        require_static_shapes(load.run(source).model, provider="QNN")
    assert all(repr(name) in caught.value.what for name in "xyz")
    told = re.findall(r"`(\w+): (\{.*?\})`", caught.value.remedy)
    fixed = {key: json.loads(sizes) for key, sizes in told}
    assert fixed == {"dimensions": {"n": 1, "m": 1}, "shapes": {"y": [1, 1]}}
    require_static_shapes(load.run(replace(source, **fixed)).model, provider="QNN")


def test_an_input_that_is_no_tensor_has_no_shape_to_fix() -> None:
    """`shapes` cannot fix it; the nodes that use it stay on the CPU, and the rest is taken."""
    text = "g (seq(float[n]) s, int64 i, float[3] x) => (float[n] t, float[3] y) "
    model = onnx_text.model(text + "{ t = SequenceAt (s, i)  y = Relu (x) }")
    require_static_shapes(model, provider="QNN")
    assert [node.op_type for node in capability.capability(model, never).nodes] == ["Relu"]


def test_a_default_value_has_its_shape() -> None:
    model = onnx_text.model(
        "g (float[3] x) => (float[3] y) <float[3] w = {1, 2, 3}> { y = Add (x, w) }"
    )
    require_static_shapes(model, provider="QNN")


TEXT = """
g (float[2] x, float[3] z) => (float[2] c, float[3] d, float[1, 2] f, float[2] g) {
    [one] a = Relu(x)
    [two] c = Relu(a)
    [three] d = Relu(z)
    [four] e = LeakyRelu <alpha = 0.1> (x)
    [five] shape = Constant <value_ints = [1, 2]> ()
    [six] f = Reshape(e, shape)
    [seven] g = LeakyRelu <alpha = 0.2> (x)
}"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A mock of the question: a real EP is asked in tests/integration/test_two_eps.py."""
    found: list[str] = []

    def takes_whole(model: ir.Model, node: ir.Node, provider: object) -> bool:
        found.append(str(node.name))
        if node.op_type == "Constant":
            raise CompileError("a model without inputs", remedy="none")
        return node.op_type != "LeakyRelu"

    monkeypatch.setattr(capability, "takes_whole", takes_whole)
    return found


def test_nodes_alike_are_asked_about_once(asked: list[str]) -> None:
    from epctx.providers.onnxruntime import builtin

    whole = model(TEXT)
    flow = Dataflow(whole)
    partition = flow.cut(0, range(len(flow.nodes)))
    provider = builtin.BuiltInProvider("SomeExecutionProvider", {})
    left = capability.left_one_by_one(whole, partition, provider)
    assert asked == ["one", "four", "five", "six", "seven"], "sizes do not matter, attributes do"
    assert [node.name for node in left] == ["four", "seven"]
    assert set(left.values()) == {"SomeExecutionProvider did not take it, and does not say why"}


MODEL = """g (bool c, float[1,5] x) => (float[1,m] y) {
    y = If (c) <
        then_branch = a () => (float[1,n] p) { p = Relu(x) },
        else_branch = b () => (float[1,k] q) <float[3,1] w = {1, 2, 3}> { q = MatMul(x, w) }
    >
}"""


@pytest.mark.needs_device("QNNExecutionProvider")
def test_a_branch_that_sizes_do_not_fit_is_told_with_its_node() -> None:
    model = ir.from_proto(onnx_text.proto(MODEL))
    (node,) = model.graph
    node.name = "which"
    with pytest.raises(ModelError, match="does not load its If with these sizes fixed") as caught:
        capability.takes_whole(model, node, QNNExecutionProvider({"soc_model": "60"}))
    assert caught.value.node == "which" and "MatMul" in str(caught.value.why)


@pytest.mark.parametrize(
    ("body", "reasons"),
    [
        ("g (float[2] x) => (float[2] y) { y = acme.Secret (x) }", []),
        ("g (string[2] x) => (float[2] y) { y = acme.Secret (x) }", ["tensor of strings"]),
        ("g (float[2] x) => (float[2] y) { y = acme.Other (x) }", ["no operators of domain acme"]),
        ("g (string[2] x) => (string[2] y) { y = Identity (x) }", ["tensor of strings"]),
    ],
)
def test_op_packages_lift_the_domain_and_no_other_reason(body: str, reasons: list[str]) -> None:
    opsets = '"" : 17, "acme" : 1'
    model = onnx_text.model(body, opsets=opsets, infer=False)
    declined = capability.capability(model, never, {"Secret", "Identity"}).declined.values()
    assert [word for word in reasons if word in "".join(declined)] == reasons
    assert len(declined) == len(reasons)
