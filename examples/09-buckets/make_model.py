"""Make models/bert.onnx: a BERT encoder with random weights and symbolic dimensions.

The scores come from the mean of the tokens that the mask selects, so padding changes nothing.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, WIDTH, HEADS, LAYERS, LONGEST, CLASSES = 1024, 64, 4, 2, 512, 4


def make(target: Path) -> None:
    generator = np.random.default_rng(0)
    weights: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []

    def constant(name: str, values: object, kind: type = np.float32) -> str:
        weights.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def weight(name: str, *shape: int) -> str:
        return constant(name, generator.standard_normal(shape) / np.sqrt(shape[0]))

    def node(op: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def dense(x: str, name: str, *shape: int) -> str:
        product = node("MatMul", [x, weight(f"{name}.weight", *shape)], f"{name}/product")
        return node("Add", [product, constant(f"{name}.bias", np.zeros(shape[1]))], name)

    def norm(x: str, name: str) -> str:
        scale = constant(f"{name}.scale", np.ones(WIDTH))
        shift = constant(f"{name}.shift", np.zeros(WIDTH))
        return node("LayerNormalization", [x, scale, shift], name, axis=-1)

    heads = constant("heads", [0, 0, HEADS, WIDTH // HEADS], np.int64)
    joined = constant("joined", [0, 0, WIDTH], np.int64)

    def head(x: str, name: str, *order: int) -> str:
        split = node("Reshape", [dense(x, name, WIDTH, WIDTH), heads], f"{name}/split")
        return node("Transpose", [split], f"{name}/heads", perm=order)

    table = constant("embedding", generator.standard_normal((VOCABULARY, WIDTH)))
    x = node("Gather", [table, "input_ids"], "words")
    second = constant("second", [1], np.int64)
    length = node("Gather", [node("Shape", ["input_ids"], "size"), second], "length")
    zero = constant("zero", [0], np.int64)
    places = node("Slice", [weight("table", LONGEST, WIDTH), zero, length], "places")
    x = node("Add", [x, places], "embedded")
    x = norm(x, "normed")
    counted = node("Cast", ["attention_mask"], "counted", to=TensorProto.FLOAT)
    away = node("Sub", [counted, constant("one", 1)], "away")
    far = node("Mul", [away, constant("far", 1e4)], "far_away")
    bias = node("Unsqueeze", [far, constant("axes", [1, 2], np.int64)], "bias")
    for layer in range(LAYERS):
        at = f"layer{layer}"
        products = node(
            "MatMul",
            [head(x, f"{at}/query", 0, 2, 1, 3), head(x, f"{at}/key", 0, 2, 3, 1)],
            f"{at}/products",
        )
        scores = node(
            "Mul", [products, constant(f"{at}/scale", (WIDTH / HEADS) ** -0.5)], f"{at}/scores"
        )
        biased = node("Add", [scores, bias], f"{at}/biased")
        attention = node("Softmax", [biased], f"{at}/attention", axis=-1)
        mixed = node("MatMul", [attention, head(x, f"{at}/value", 0, 2, 1, 3)], f"{at}/mixed")
        back = node("Transpose", [mixed], f"{at}/back", perm=[0, 2, 1, 3])
        whole = node("Reshape", [back, joined], f"{at}/whole")
        x = norm(
            node("Add", [x, dense(whole, f"{at}/output", WIDTH, WIDTH)], f"{at}/attended"),
            f"{at}/norm1",
        )
        up = node("Relu", [dense(x, f"{at}/up", WIDTH, 4 * WIDTH)], f"{at}/relu")
        x = norm(
            node("Add", [x, dense(up, f"{at}/down", 4 * WIDTH, WIDTH)], f"{at}/sum"), f"{at}/norm2"
        )
    weighed = node("Unsqueeze", [counted, constant("last", [2], np.int64)], "weighed")
    kept = node("Mul", [x, weighed], "kept")
    along = constant("along", [1], np.int64)
    total = node("ReduceSum", [kept, along], "total", keepdims=0)
    count = node("ReduceSum", [counted, along], "count", keepdims=1)
    dense(node("Div", [total, count], "mean"), "scores", WIDTH, CLASSES)

    names, size = ("input_ids", "attention_mask"), ["batch", "sequence"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, size) for name in names]
    outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", CLASSES])]
    graph = helper.make_graph(nodes, "bert", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    target.parent.mkdir(exist_ok=True)
    onnx.save(model, target)


if __name__ == "__main__":
    make(Path(__file__).parent / "models" / "bert.onnx")
