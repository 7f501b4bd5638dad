"""Nodes that QNN computes wrongly or leaves, and why it says so."""

from __future__ import annotations

import pytest

from epctx.graph.model import Refusal
from epctx.providers.onnxruntime.qnn import faults
from epctx.providers.onnxruntime.qnn.faults import FAULTS, kept_off
from epctx.providers.onnxruntime.qnn.provider import QNNExecutionProvider
from tests.kit import onnx_text

POOL = """
g (float[1, 1, 8, 8] x) => (float[1, 1, 6, 6] y) { y = AveragePool <kernel_shape = [3, 3]> (x) }
"""
QUANTIZED = """
g (uint8[1, 1, 8, 8] x) => (float[1, 1, 6, 6] y) <float s = {0.1}, uint8 z = {0}> {
    d = DequantizeLinear(x, s, z)
    y = AveragePool <kernel_shape = [3, 3]> (d)
}
"""
BATCH = """
g (float[1, 2] x) => (float[1, 2] y) <float[2] s = {0.1, 0.2}> {
    y = BatchNormalization(x, s, s, s, s)
}
"""
QUANTIZED_BATCH = """
g (uint8[1, 2] x) => (float[1, 2] y) <float[2] s = {0.1, 0.2}, float f = {0.1}, uint8 z = {0}> {
    d = DequantizeLinear(x, f, z)
    y = BatchNormalization(d, s, s, s, s)
}
"""


def norm(rows: int) -> str:
    return f"""
g (float[1, {rows}, 8] x) => (float[1, {rows}, 8] y)
<float[8] w = {{1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0}}> {{ y = RMSNormalization(x, w) }}
"""


@pytest.mark.parametrize(
    ("body", "known"),
    [
        *((POOL, True), (QUANTIZED, False), (norm(1), True), (norm(2), False)),
        *((BATCH, False), (QUANTIZED_BATCH, True)),
    ],
)
def test_the_faults_are_those_that_were_measured(body: str, known: bool) -> None:
    graph = onnx_text.model(body, opsets='"" : 23').graph
    node = graph[len(graph) - 1]
    concerned = [each for each in FAULTS if each.op_type == node.op_type and each.concerns(node)]
    assert bool(concerned) is known
    assert QNNExecutionProvider.faults is FAULTS


def flattened(first: str = "Conv(x, w)", last: str = "Transpose(u)") -> str:
    """A Reshape of four channels between two nodes."""
    return f"""
g (float[1, 4, 2, 2] x, float[4, 4, 1, 1] w) => (y)
<int64[1] s = {{4}}, int64[2] a = {{2, 3}}, int64[3] r = {{0, 2, 3}}> {{
    c = {first}
    m = ReduceMean(c, a)
    f = Reshape(m, s)
    u = Unsqueeze(f, r)
    y = {last}
}}
"""


@pytest.mark.parametrize(
    ("body", "ends"),
    [
        (flattened(), True),
        (flattened(last="Conv(u, w)"), True),
        (flattened(first="Relu(x)"), False),
        (flattened(last="Relu(u)"), False),
        (flattened(first="Relu(x)", last="Conv(u, w)"), False),
        (flattened().replace("int64[1] s = {4}", "int64[2] s = {1, 4}"), False),
        (flattened().replace("Reshape(m, s)", "Squeeze(m)"), False),
    ],
)
def test_a_reshape_that_ends_the_compile_is_kept_off(body: str, ends: bool) -> None:
    graph = onnx_text.model(body, opsets='"" : 23').graph
    assert [node.op_type for node in kept_off(list(graph))] == ["Reshape"] * ends


LOGGED = """\
[V:onnxruntime:, m.cc:557 C] Qnn_OpConfig node name: /n0/Cast package_name: qti.aisw \
QNN_op_type: Cast num_of_inputs: 1 num_of_outputs: 1 num_of_params: 0
 node_inputs:
 name=mask id=0 version=1 dataFormat=0 dataType=QNN_DATATYPE_INT_32 rank=2 dimensions=(2 8 )
 node_outputs:
 name=kept id=0 version=1 dataFormat=0 dataType=QNN_DATATYPE_BOOL_8 rank=2 dimensions=(2 8 )
 node_params:

[V:onnxruntime:, e.cc:1 L] Validation PASSED for 1 nodes in OrtNodeUnit (Cast) :
\tOperator type: Cast Node name: /n0/Cast Node index: 0

[V:onnxruntime:, m.cc:557 C] Qnn_OpConfig node name: G_9 package_name: qti.aisw \
QNN_op_type: GatherNd num_of_inputs: 2 num_of_outputs: 1 num_of_params: 1
 node_inputs:
 name=kept id=0 version=1 dataFormat=0 dataType=QNN_DATATYPE_BOOL_8 rank=2 dimensions=(2 8 )
 name=k id=0 version=1 dataFormat=0 dataType=QNN_DATATYPE_INT_32 rank=3 dimensions=(1 8 2 )
 node_outputs:
 name=seen id=0 version=1 dataFormat=0 dataType=QNN_DATATYPE_BOOL_8 rank=2 dimensions=(1 8 )
 node_params:
 type=QNN_PARAMTYPE_SCALAR name=batch_dims value=0

[W:onnxruntime:, m.cc:565 C] QNN.backendValidateOpConfig() failed for node `G_9` of \
type `GatherNd` with error code 3110

[V:onnxruntime:, e.cc:1 L] Validation FAILED for 1 nodes in OrtNodeUnit (GatherND) :
\tOperator type: GatherND Node name: /n1/GatherND Node index: 1
\tREASON : Failed to create GatherND node.

[V:onnxruntime:, e.cc:1 L] Validation FAILED for 1 nodes in OrtNodeUnit (Det) :
\tOperator type: Det Node name: t Node index: 2
\tREASON : Operators of type `Det` are not supported by QNN EP.Det node `t` will not.
"""


def test_a_node_that_was_refused_has_the_op_and_types_that_were_tried() -> None:
    found = faults.refusals(LOGGED)
    assert list(found) == ["/n1/GatherND", "t"]
    refused = found["/n1/GatherND"]
    assert (refused.why, refused.op) == ("Failed to create GatherND node", "GatherNd")
    assert refused.operands == "BOOL_8[2,8], INT_32[1,8,2] -> BOOL_8[1,8]"
    assert "slice-gathers" in refused.remedy
    assert str(refused) == f"{refused.why}; {refused.remedy}"


def test_one_that_got_no_further_has_none_of_another() -> None:
    assert faults.refusals(LOGGED)["t"] == Refusal(
        why="Operators of type `Det` are not supported by QNN EP"
    )


def test_a_shape_that_was_refused_is_made_a_constant() -> None:
    """QNN says no more of it than that it fails."""
    text = LOGGED.replace("GatherNd", "Shape").replace("create GatherND node", "add node")
    assert "{level: basic}" in faults.refusals(text)["/n1/GatherND"].remedy
    other = LOGGED.replace("create GatherND node", "add node")
    assert not faults.refusals(other)["/n1/GatherND"].remedy


def test_several_nodes_have_one_reason() -> None:
    text = (
        "[V:onnxruntime:, q.cc:1 LogNodeSupport] Validation FAILED for 2 nodes in Z (Det) :\n"
        "\tOperator type: DequantizeLinear Node name: dq Node index: 2\n"
        "\tOperator type: Det Node name: det Node index: 3 (fused)\n"
        "\tREASON : Not supported.Det node `det` will not be assigned to QNN EP.\n"
    )
    assert faults.refusals(text) == dict.fromkeys(("dq", "det"), Refusal(why="Not supported"))


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        (
            "GroupQueryAttention filtered off QNN by the op_affinity provider option",
            '{"op_type": {"GroupQueryAttention": "htp"}} as option op_affinity gives it to QNN',
        ),
        (
            "Operators of type `SkipSimplifiedLayerNormalization` are not supported by QNN EP",
            "{level: [split-norms, basic]}` makes a sum and a norm of it, which QNN takes",
        ),
        (
            "NonZero output shape must be static",
            "what depends on the data stays",
        ),
        ("QNN NPU does not support PoolMax3d!", ""),
    ],
)
def test_a_reason_says_what_would_change_it_where_that_is_known(said: str, remedy: str) -> None:
    text = (
        "[V:onnxruntime:, q.cc:1 LogNodeSupport] Validation FAILED for 1 nodes in Y (X) :\n"
        f"\tOperator type: X Node name: n Node index: 1\n\tREASON : {said}.\n"
    )
    found = faults.refusals(text)["n"]
    assert (
        found.why == said and found.remedy.endswith(remedy) and bool(found.remedy) == bool(remedy)
    )
