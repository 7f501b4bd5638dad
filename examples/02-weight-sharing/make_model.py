"""Make models/llm.onnx: one decoder layer with a cache and symbolic dimensions.

As in models that are exported for NPUs, the attention bias is an input (`attention_bias`: 0 where a
token may look, -1e4 elsewhere), and one masked token stands for an empty past.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, WIDTH = 512, 128


def make(target: Path) -> None:
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = generator.standard_normal(shape) / np.sqrt(shape[0])
        return numpy_helper.from_array(values.astype(np.float32), name)

    def node(op: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
        return helper.make_node(op, inputs.split(), [output], output, **attributes)

    nodes = [
        node("Gather", "embedding input_ids", "x"),
        *(node("MatMul", f"x {name}.w", name) for name in ("query", "key", "value")),
        node("Concat", "past_key key", "present_key", axis=1),
        node("Concat", "past_value value", "present_value", axis=1),
        node("Transpose", "present_key", "keys", perm=[0, 2, 1]),
        node("MatMul", "query keys", "products"),
        node("Mul", "products scale", "scores"),
        node("Add", "scores attention_bias", "biased"),
        node("Softmax", "biased", "attention", axis=-1),
        node("MatMul", "attention present_value", "mixed"),
        node("MatMul", "mixed output.w", "projected"),
        node("Add", "x projected", "attended"),
        node("MatMul", "attended up.w", "up"),
        node("Sigmoid", "up", "gate"),
        node("Mul", "up gate", "activated"),
        node("MatMul", "activated down.w", "down"),
        node("Add", "attended down", "last"),
        node("MatMul", "last head.w", "logits"),
    ]
    square = [weight(f"{name}.w", WIDTH, WIDTH) for name in ("query", "key", "value", "output")]
    weights = [
        weight("embedding", VOCABULARY, WIDTH),
        *square,
        weight("up.w", WIDTH, 4 * WIDTH),
        weight("down.w", 4 * WIDTH, WIDTH),
        weight("head.w", WIDTH, VOCABULARY),
        numpy_helper.from_array(np.float32(WIDTH**-0.5), "scale"),
    ]
    value = helper.make_tensor_value_info
    cache = [
        value(f"{when}_{what}", TensorProto.FLOAT, ["batch", length, WIDTH])
        for when, length in (("past", "past"), ("present", "total"))
        for what in ("key", "value")
    ]
    graph = helper.make_graph(
        nodes,
        "llm",
        [
            value("input_ids", TensorProto.INT64, ["batch", "sequence"]),
            value("attention_bias", TensorProto.FLOAT, ["batch", "sequence", "total"]),
            *cache[:2],
        ],
        [value("logits", TensorProto.FLOAT, ["batch", "sequence", VOCABULARY]), *cache[2:]],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    target.parent.mkdir(exist_ok=True)
    onnx.save(model, target)


if __name__ == "__main__":
    make(Path(__file__).parent / "models" / "llm.onnx")
