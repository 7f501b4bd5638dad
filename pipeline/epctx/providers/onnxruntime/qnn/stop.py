"""The end of a QNN sharing group that failed half way.

Sessions that shared and were never stopped end the process with SIGABRT when it exits (real-eps.md
section 6). A session over one quantized MatMul, which every chip compiles, stops them.
"""

from __future__ import annotations

import contextlib

from epctx.errors import EpctxError
from epctx.providers.onnxruntime import session
from epctx.providers.onnxruntime.ep import OrtEp

_NAME = "stop.onnx"
_MODEL = """
<ir_version: 9, opset_import: ["": 17]>
stop (float[1, 4] x) => (float[1, 4] y)
<
    float scale = {0.5}, uint8 zero = {128},
    uint8[4, 4] weight = {
        129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129
    }
>
{
    xq = QuantizeLinear (x, scale, zero)
    xd = DequantizeLinear (xq, scale, zero)
    wd = DequantizeLinear (weight, scale, zero)
    m = MatMul (xd, wd)
    mq = QuantizeLinear (m, scale, zero)
    y = DequantizeLinear (mq, scale, zero)
}
"""


def stop_sharing(provider: OrtEp) -> None:
    """Compile the tiny model as the last of the group, in the current folder.

    What it writes is thrown away with the folder. Where it fails there is nothing more to be done,
    and the error that brought it about matters more.
    """
    import onnx

    onnx.save(onnx.parser.parse_model(_MODEL), _NAME)
    with contextlib.suppress(EpctxError):
        session.generate(
            _NAME,
            provider,
            embed_mode=0,
            entries={"ep.share_ep_contexts": "1", "ep.stop_share_ep_contexts": "1"},
        )
