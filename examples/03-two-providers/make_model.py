"""Make models/detector.onnx: convolutions, a top-k that no accelerator takes, a linear head."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def make(target: Path) -> None:
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = generator.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return numpy_helper.from_array(values.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["image", "conv1.w"], ["conv1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv1"], ["relu1"], "relu1"),
        helper.make_node(
            "MaxPool", ["relu1"], ["pool1"], "pool1", kernel_shape=[2, 2], strides=[2, 2]
        ),
        helper.make_node("Conv", ["pool1", "conv2.w"], ["conv2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["conv2"], ["pool2"], "pool2"),
        helper.make_node("Flatten", ["pool2"], ["features"], "flatten"),
        helper.make_node("Mul", ["features", "gain"], ["scaled"], "scale"),
        helper.make_node("TopK", ["scaled", "k"], ["best", "which"], "top_k"),
        helper.make_node("Gemm", ["best", "head.w"], ["hidden"], "head", transB=1),
        helper.make_node("Relu", ["hidden"], ["scores"], "head_relu"),
    ]
    initializers = [
        weight("conv1.w", 32, 3, 3, 3),
        weight("conv2.w", 64, 32, 3, 3),
        weight("gain", 1, 64),
        numpy_helper.from_array(np.array([16], np.int64), "k"),
        weight("head.w", 8, 16),
    ]
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 64, 64])],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 8]),
            helper.make_tensor_value_info("which", TensorProto.INT64, [1, 16]),
        ],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    target.parent.mkdir(exist_ok=True)
    onnx.save(model, target)


if __name__ == "__main__":
    make(Path(__file__).parent / "models" / "detector.onnx")
