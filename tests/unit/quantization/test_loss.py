"""What quantizing costs, tensor by tensor."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from epctx.quantization import loss
from tests.kit import onnx_text

PLAIN = "g (float[4] x) => (float[4] y) { h = Neg(x) y = Abs(h) }"
ROUNDED = (
    "g (float[4] x) => (float[4] y) <float s = {1.0}, uint8 z = {128}> {"
    " x_q = QuantizeLinear(x, s, z) x_DequantizeLinear_Output = DequantizeLinear(x_q, s, z)"
    " h = Neg(x_DequantizeLinear_Output) h_q = QuantizeLinear(h, s, z)"
    " h_DequantizeLinear_Output = DequantizeLinear(h_q, s, z) y = Abs(h_DequantizeLinear_Output) }"
)


def test_outputs_are_apart_and_the_worst_tensor_is_first(tmp_path: Path) -> None:
    for name, text in (("plain", PLAIN), ("quantized", ROUNDED)):
        onnx.save(onnx_text.proto(text), tmp_path / f"{name}.onnx")
    x = np.array([1.25, -2.5, 30.1, 4], np.float32)
    outputs, others = loss.measure(
        [(tmp_path / "plain.onnx", tmp_path / "quantized.onnx")], ["y"], {"x": x}, tmp_path
    )
    assert [(each.name, each.op_type) for each in outputs] == [("y", "Abs")]
    assert [(each.name, each.op_type) for each in others] == [("h", "Neg")]
    wanted = loss.sqnr(x, np.round(x))
    assert outputs[0].sqnr == others[0].sqnr == wanted
    assert wanted is not None and wanted > 30


def test_weights_beside_the_model_are_read(tmp_path: Path) -> None:
    model = onnx_text.proto("g (float[4] x) => (float[4] y) { y = Add(x, w) }")
    weight = numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")
    model.graph.initializer.append(weight)
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    x = np.array([1, 2, 3, 4], np.float32)
    (output,), others = loss.measure([(path, path)], ["y"], {"x": x}, tmp_path)
    assert output.sqnr is None and others == ()
