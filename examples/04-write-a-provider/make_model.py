"""Make models/mixer.onnx: a gated MLP with a Softmax at its end."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 256


def make(target: Path) -> None:
    generator = np.random.default_rng(0)

    def weight(name: str) -> onnx.TensorProto:
        values = generator.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)
        return numpy_helper.from_array(values.astype(np.float32), name)

    nodes = [
        helper.make_node("MatMul", ["x", "w_up"], ["up"], "up"),
        helper.make_node("MatMul", ["x", "w_gate"], ["gate"], "gate"),
        helper.make_node("Sigmoid", ["gate"], ["open"], "open"),
        helper.make_node("Mul", ["up", "open"], ["mixed"], "mix"),
        helper.make_node("MatMul", ["mixed", "w_down"], ["down"], "down"),
        helper.make_node("Add", ["down", "x"], ["sum"], "residual"),
        helper.make_node("Softmax", ["sum"], ["y"], "softmax"),
    ]
    edge = ["batch", WIDTH]
    graph = helper.make_graph(
        nodes,
        "mixer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, edge)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, edge)],
        [weight("w_up"), weight("w_gate"), weight("w_down")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    target.parent.mkdir(exist_ok=True)
    onnx.save(model, target)


if __name__ == "__main__":
    make(Path(__file__).parent / "models" / "mixer.onnx")
