"""Which nodes QNN is known to compute wrongly; tests/integration/test_bisect.py has it do so."""

import pytest

from epctx.providers.onnxruntime.qnn.faults import FAULTS
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
