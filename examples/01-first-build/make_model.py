"""Make models/digits.onnx: a small convolutional network with a symbolic batch dimension."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def make(target: Path) -> None:
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        fan_in = int(np.prod(shape[1:])) or 1
        values = generator.standard_normal(shape) / np.sqrt(fan_in)
        return numpy_helper.from_array(values.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["image", "conv1.w"], ["conv1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv1"], ["relu1"], "relu1"),
        helper.make_node(
            "MaxPool", ["relu1"], ["pool1"], "pool1", kernel_shape=[2, 2], strides=[2, 2]
        ),
        helper.make_node("Conv", ["pool1", "conv2.w"], ["conv2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv2"], ["relu2"], "relu2"),
        helper.make_node("GlobalAveragePool", ["relu2"], ["pool2"], "pool2"),
        helper.make_node("Flatten", ["pool2"], ["flat"], "flat"),
        helper.make_node("Gemm", ["flat", "fc.w"], ["logits"], "fc", transB=1),
        helper.make_node("Softmax", ["logits"], ["probabilities"], "softmax"),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 28, 28])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10])],
        [weight("conv1.w", 16, 1, 3, 3), weight("conv2.w", 32, 16, 3, 3), weight("fc.w", 10, 32)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    target.parent.mkdir(exist_ok=True)
    onnx.save(model, target)


if __name__ == "__main__":
    make(Path(__file__).parent / "models" / "digits.onnx")
