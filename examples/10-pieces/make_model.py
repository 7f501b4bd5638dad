"""Make models/llm.onnx: four decoder layers with a cache and symbolic dimensions.

As in models that are exported for NPUs, the attention bias is an input (`attention_bias`: 0 where a
token may look, -1e4 elsewhere), and one masked token stands for an empty past.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LAYERS, VOCABULARY, WIDTH = 4, 512, 128


def make(target: Path) -> None:
    generator = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(name: str, *shape: int) -> None:
        values = generator.standard_normal(shape) / np.sqrt(shape[0])
        weights.append(numpy_helper.from_array(values.astype(np.float32), name))

    def node(op: str, inputs: str, output: str, **attributes: object) -> None:
        nodes.append(helper.make_node(op, inputs.split(), [output], output, **attributes))

    def layer(i: int) -> None:
        for name in ("query", "key", "value", "output"):
            weight(f"{i}.{name}.w", WIDTH, WIDTH)
        weight(f"{i}.up.w", WIDTH, 4 * WIDTH)
        weight(f"{i}.down.w", 4 * WIDTH, WIDTH)
        for name in ("query", "key", "value"):
            node("MatMul", f"{i}.hidden {i}.{name}.w", f"{i}.{name}")
        for name in ("key", "value"):
            node("Concat", f"past_{name}.{i} {i}.{name}", f"present_{name}.{i}", axis=1)
        node("Transpose", f"present_key.{i}", f"{i}.keys", perm=[0, 2, 1])
        node("MatMul", f"{i}.query {i}.keys", f"{i}.products")
        node("Mul", f"{i}.products scale", f"{i}.scores")
        node("Add", f"{i}.scores attention_bias", f"{i}.biased")
        node("Softmax", f"{i}.biased", f"{i}.attention", axis=-1)
        node("MatMul", f"{i}.attention present_value.{i}", f"{i}.mixed")
        node("MatMul", f"{i}.mixed {i}.output.w", f"{i}.projected")
        node("Add", f"{i}.hidden {i}.projected", f"{i}.attended")
        node("MatMul", f"{i}.attended {i}.up.w", f"{i}.up")
        node("Sigmoid", f"{i}.up", f"{i}.gate")
        node("Mul", f"{i}.up {i}.gate", f"{i}.activated")
        node("MatMul", f"{i}.activated {i}.down.w", f"{i}.fed")
        node("Add", f"{i}.attended {i}.fed", f"{i + 1}.hidden")

    weight("embedding", VOCABULARY, WIDTH)
    node("Gather", "embedding input_ids", "0.hidden")
    for i in range(LAYERS):
        layer(i)
    weight("head.w", WIDTH, VOCABULARY)
    node("MatMul", f"{LAYERS}.hidden head.w", "logits")
    weights.append(numpy_helper.from_array(np.float32(WIDTH**-0.5), "scale"))

    value = helper.make_tensor_value_info
    past, present = (
        [
            value(f"{when}_{what}.{i}", TensorProto.FLOAT, ["batch", length, WIDTH])
            for i in range(LAYERS)
            for what in ("key", "value")
        ]
        for when, length in (("past", "past"), ("present", "total"))
    )
    graph = helper.make_graph(
        nodes,
        "llm",
        [
            value("input_ids", TensorProto.INT64, ["batch", "sequence"]),
            value("attention_bias", TensorProto.FLOAT, ["batch", "sequence", "total"]),
            *past,
        ],
        [value("logits", TensorProto.FLOAT, ["batch", "sequence", VOCABULARY]), *present],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    target.parent.mkdir(exist_ok=True)
    onnx.save(model, target)


if __name__ == "__main__":
    make(Path(__file__).parent / "models" / "llm.onnx")
