"""Asking an EP for a node: what ONNX Runtime does not load is the model's fault."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from epctx.errors import ModelError
from epctx.providers.onnxruntime import probe
from epctx.providers.onnxruntime.qnn.provider import QNNExecutionProvider
from tests.kit import onnx_text

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
        probe.takes_whole(model, node, QNNExecutionProvider({"soc_model": "60"}))
    assert caught.value.node == "which" and "MatMul" in str(caught.value.why)
