"""Which nodes OpenVINO is known to compute wrongly: on CPUs with AMX, which a test may not have."""

from unittest import mock

import pytest

from epctx.providers.onnxruntime import host
from epctx.providers.onnxruntime.host import Cpu
from epctx.providers.onnxruntime.openvino.provider import FAULTS
from tests.kit import onnx_text


def concerned(body: str) -> list[str]:
    graph = onnx_text.model(body).graph
    node = graph[len(graph) - 1]
    return [each.what for each in FAULTS if each.op_type == node.op_type and each.concerns(node)]


def attention(rows: int) -> str:
    return f"""
g (float[1, {rows}, 8] x, float[1, {rows}, 8] bias) => (float[1, {rows}, 8] y) {{
    s = Add(x, bias)
    y = Softmax(s)
}}
"""


@pytest.mark.parametrize(("rows", "count"), [(1, 1), (2, 0)])
def test_attention_at_sequence_1_is_known(rows: int, count: int) -> None:
    assert len(concerned(attention(rows))) == count
    assert not concerned("g (float[1, 8] x) => (float[1, 8] y) { y = Softmax(x) }")


@pytest.mark.parametrize(("flags", "count"), [(("avx2", "amx_bf16"), 1), (("avx2",), 0)])
def test_bfloat16_is_known_where_the_cpu_has_units_for_it(
    flags: tuple[str, ...], count: int
) -> None:
    body = "g (float[4, 8] x, float[8, 8] w) => (float[4, 8] y) { y = MatMul(x, w) }"
    seen = Cpu(vendor="GenuineIntel", family="", model="", flags=flags)
    with mock.patch.object(host, "cpu", return_value=seen):
        found = concerned(body)
    assert len(found) == count and all("bfloat16" in each for each in found)
