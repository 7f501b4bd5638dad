"""The end of a QNN sharing group that failed half way.

Sessions that shared and were never stopped end the process with SIGABRT when it exits (real-eps.md
section 6). A session over one quantized MatMul, which every chip compiles, stops them.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from epctx.errors import EpctxError
from epctx.providers.onnxruntime import session

if TYPE_CHECKING:
    import onnx

    from epctx.providers.onnxruntime.ep import OrtEp

_NAME = "stop.onnx"


def stop_sharing(provider: OrtEp) -> None:
    """Compile the tiny model as the last of the group, in the current folder.

    What it writes is thrown away with the folder. Where it fails there is nothing more to be done,
    and the error that brought it about matters more.
    """
    Path(_NAME).write_bytes(_model().SerializeToString())
    with contextlib.suppress(EpctxError):
        session.generate(
            _NAME,
            provider,
            embed_mode=0,
            entries={"ep.share_ep_contexts": "1", "ep.stop_share_ep_contexts": "1"},
        )


def _model() -> onnx.ModelProto:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    arrays: dict[str, np.ndarray] = {
        "scale": np.array(0.5, np.float32),
        "zero": np.array(128, np.uint8),
        "weight": np.full((4, 4), 129, np.uint8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "scale", "zero"], ["xd"]),
        helper.make_node("DequantizeLinear", ["weight", "scale", "zero"], ["wd"]),
        helper.make_node("MatMul", ["xd", "wd"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "scale", "zero"], ["mq"]),
        helper.make_node("DequantizeLinear", ["mq", "scale", "zero"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "stop",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
