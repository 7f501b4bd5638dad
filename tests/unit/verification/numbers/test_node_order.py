from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from epctx.verification.numbers.node_order import NodeOrder
from tests.kit import onnx_text

MODEL = (
    "g (float[N] x) => (float[N] z) <float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[4] b = "
    "{1,2,3,4}> { y = Neg(x) a = Abs(y) s = MatMul(a, w) z = Add(s, b) }"
)


@pytest.mark.parametrize("named", [True, False])
def test_onnxruntime_says_where_a_run_failed(named: bool) -> None:
    proto = onnx_text.proto(MODEL)
    for node in proto.graph.node if named else ():
        node.name = f"the {node.op_type}"
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options)
    with pytest.raises(Exception, match="MatMul") as caught:
        session.run(None, {"x": np.ones(7, np.float32)})
    order = NodeOrder.of(proto)
    assert order.reached(str(caught.value)) == 2
    assert order.reached("something else") == -1
    assert order.sizes == (4, 3)
