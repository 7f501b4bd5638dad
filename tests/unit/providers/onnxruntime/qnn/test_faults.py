"""Which nodes QNN is known to compute wrongly; tests/integration/test_bisect.py has it do so."""

import pytest

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
