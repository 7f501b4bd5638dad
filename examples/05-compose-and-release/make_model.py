"""Make models/encoder.onnx, body.onnx and head.onnx: each takes the output of the one before."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 128


def make(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for seed, (name, takes, makes) in enumerate(
        (
            ("encoder", ["image"], "features"),
            ("body", ["features", "mask"], "hidden"),
            ("head", ["states"], "logits"),
        )
    ):
        values = np.random.default_rng(seed).standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)
        weight = numpy_helper.from_array(values.astype(np.float32), "weight")
        nodes = [helper.make_node("MatMul", [takes[0], "weight"], ["product"], "matmul")]
        last = "product"
        if len(takes) > 1:
            nodes.append(helper.make_node("Add", [last, takes[1]], ["masked"], "add"))
            last = "masked"
        nodes.append(helper.make_node("Tanh", [last], [makes], "tanh"))
        graph = helper.make_graph(
            nodes,
            name,
            [helper.make_tensor_value_info(t, TensorProto.FLOAT, [1, WIDTH]) for t in takes],
            [helper.make_tensor_value_info(makes, TensorProto.FLOAT, [1, WIDTH])],
            [weight],
        )
        opset = [helper.make_opsetid("", 21)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=10)
        onnx.save(model, folder / f"{name}.onnx")


if __name__ == "__main__":
    make(Path(__file__).parent / "models")
