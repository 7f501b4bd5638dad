"""Make models/digits.onnx, which reads digits of a display, and calibration images in calib/."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[np.float32]
SEGMENTS = {  # rows and columns of the strokes of a display
    "a": (slice(4, 7), slice(9, 19)),
    "b": (slice(4, 14), slice(17, 20)),
    "c": (slice(14, 24), slice(17, 20)),
    "d": (slice(21, 24), slice(9, 19)),
    "e": (slice(14, 24), slice(8, 11)),
    "f": (slice(4, 14), slice(8, 11)),
    "g": (slice(12, 15), slice(9, 19)),
}
DIGITS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")


def images(count: int, seed: int) -> tuple[Array, npt.NDArray[np.int64]]:
    """Return noisy images of digits, each shifted a little, and the digits."""
    generator = np.random.default_rng(seed)
    digits = generator.integers(0, 10, count)
    pictures = np.zeros((count, 1, 28, 28), np.float32)
    for image, digit in zip(pictures, digits, strict=True):
        for segment in DIGITS[digit]:
            image[0][SEGMENTS[segment]] = generator.uniform(0.7, 1.0)
        image[0] = np.roll(image[0], generator.integers(-2, 3, 2), (0, 1))
    noise = generator.normal(0, 0.08, pictures.shape).astype(np.float32)
    return np.clip(pictures + noise, 0, 1), digits


def model(head: Array | None = None) -> onnx.ModelProto:
    """Make the network; without a head, its output is the features that the head needs."""
    generator = np.random.default_rng(0)
    kernels = generator.standard_normal((16, 1, 5, 5)).astype(np.float32) / 5
    nodes = [
        helper.make_node("Conv", ["image", "kernels"], ["edges"], "conv", pads=[2, 2, 2, 2]),
        helper.make_node("Relu", ["edges"], ["lit"], "relu"),
        helper.make_node(
            "MaxPool", ["lit"], ["pooled"], "pool", kernel_shape=[4, 4], strides=[4, 4]
        ),
        helper.make_node("Flatten", ["pooled"], ["features"], "flatten"),
    ]
    weights = [numpy_helper.from_array(kernels, "kernels")]
    output, size = "features", 784
    if head is not None:
        nodes.append(helper.make_node("Gemm", ["features", "head"], ["scores"], "head"))
        weights.append(numpy_helper.from_array(head, "head"))
        output, size = "scores", 10
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 28, 28])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", size])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def run(proto: onnx.ModelProto, pictures: Array) -> Array:
    """Return the output of a model on ONNX Runtime's CPU EP."""
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    output: Array = session.run(None, {"image": pictures})[0]
    return output


def make(folder: Path) -> onnx.ModelProto:
    """Write the trained model to models/ and 64 calibration samples to calib/; return the model."""
    pictures, digits = images(2000, seed=1)
    features = run(model(), pictures).astype(np.float64)
    ridge = features.T @ features + 10 * np.eye(features.shape[1])
    head = np.linalg.solve(ridge, features.T @ np.eye(10)[digits]).astype(np.float32)
    trained = model(head)
    for name in ("models", "calib"):
        (folder / name).mkdir(exist_ok=True)
    onnx.save(trained, folder / "models" / "digits.onnx")
    for number, image in enumerate(pictures[:64]):
        np.savez(folder / "calib" / f"{number:02}.npz", image=image[None])
    return trained


if __name__ == "__main__":
    make(Path(__file__).parent)
