"""Models for real EPs: small, and each with one property that an EP stumbles over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Tensor = tuple[str, int, Sequence[int | str | None]]
"""Name, element type, shape."""
FLOAT, UINT8, BOOL = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.BOOL


def save(path: Path, model: onnx.ModelProto) -> str:
    """Write a model; return its path as text."""
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return str(path)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    weights: Mapping[str, np.ndarray],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def mlp(
    *,
    batch: int | str = 1,
    width: int = 128,
    layers: int = 6,
    middle: str = "Relu",
    seed: int = 0,
) -> onnx.ModelProto:
    """MatMul and Relu in `layers` layers; the activation in the middle is `middle`."""
    rng = np.random.default_rng(seed)
    nodes, weights, last = [], {}, "x"
    for layer in range(layers):
        matrix = rng.standard_normal((width, width)) / width**0.5
        weights[f"w{layer}"] = matrix.astype(np.float32)
        op_type = middle if layer == layers // 2 else "Relu"
        nodes += [
            helper.make_node("MatMul", [last, f"w{layer}"], [f"h{layer}"], name=f"mm{layer}"),
            helper.make_node(op_type, [f"h{layer}"], [f"r{layer}"], name=f"act{layer}"),
        ]
        last = f"r{layer}"
    nodes.append(helper.make_node("Identity", [last], ["y"], name="out"))
    shape = [batch, width]
    return _model(nodes, [("x", FLOAT, shape)], [("y", FLOAT, shape)], weights)


def unsupported() -> onnx.ModelProto:
    """Nothing that QNN takes."""
    nodes = [
        helper.make_node("Det", ["x"], ["d"], name="det"),
        helper.make_node("BitShift", ["b", "b"], ["s"], name="shift", direction="LEFT"),
    ]
    inputs = [("x", FLOAT, [4, 4]), ("b", UINT8, [4])]
    return _model(nodes, inputs, [("d", FLOAT, []), ("s", UINT8, [4])], {})


def quantized(*, width: int = 64) -> onnx.ModelProto:
    """MatMul, Relu, MatMul in QDQ form, uint8, with quantized input and output."""
    rng = np.random.default_rng(0)
    scales = {"x": 0.01, "h": 0.015, "y": 0.01}
    weights: dict[str, np.ndarray] = {"zero": np.array(128, np.uint8)}
    for name, scale in scales.items():
        weights[f"{name}_scale"] = np.array(scale, np.float32)
    weights["w_scale"] = np.array(0.01, np.float32)
    nodes = []

    def quantize(value: str, scale: str) -> str:
        nodes.append(
            helper.make_node(
                "QuantizeLinear", [value, scale, "zero"], [f"{value}_q"], name=f"{value}_quant"
            )
        )
        return dequantize(f"{value}_q", scale)

    def dequantize(value: str, scale: str) -> str:
        nodes.append(
            helper.make_node(
                "DequantizeLinear", [value, scale, "zero"], [f"{value}_d"], name=f"{value}_dequant"
            )
        )
        return f"{value}_d"

    last = quantize("x", "x_scale")
    for layer, output in ((0, "h_scale"), (1, "y_scale")):
        weights[f"w{layer}"] = rng.integers(118, 139, (width, width)).astype(np.uint8)
        matrix = dequantize(f"w{layer}", "w_scale")
        nodes.append(helper.make_node("MatMul", [last, matrix], [f"m{layer}"], name=f"mm{layer}"))
        last = quantize(f"m{layer}", output)
    nodes[-1].output[0] = "y"
    shape = [1, width]
    return _model(nodes, [("x", FLOAT, shape)], [("y", FLOAT, shape)], weights)


def branching(
    *, width: int = 64, weights: str = "inside", extra: str | None = None
) -> onnx.ModelProto:
    """MatMul, an If whose branches add a weight of `width` floats, MatMul.

    Args:
        weights: where the branches' weights are: `inside` them, `outside`, or in a `constant`.
        extra: an op type of one input that the branches apply too.
    """
    rng = np.random.default_rng(0)
    outer = {"w": (rng.standard_normal((width, width)) / width**0.5).astype(np.float32)}

    def branch(name: str) -> onnx.GraphProto:
        bias, nodes, inner = rng.standard_normal(width).astype(np.float32), [], []
        tensor = numpy_helper.from_array(bias, f"b_{name}")
        if weights == "inside":
            inner = [tensor]
        elif weights == "constant":
            nodes = [helper.make_node("Constant", [], [f"b_{name}"], value=tensor)]
        else:
            outer[f"b_{name}"] = bias
        nodes.append(helper.make_node("Add", ["h", f"b_{name}"], [f"a_{name}"], name=f"add_{name}"))
        last = f"a_{name}"
        if extra is not None:
            nodes.append(helper.make_node(extra, [last], [f"e_{name}"], name=f"extra_{name}"))
            last = f"e_{name}"
        value = helper.make_tensor_value_info(last, FLOAT, [1, width])
        return helper.make_graph(nodes, name, [], [value], inner)

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="before"),
        helper.make_node(
            "If", ["c"], ["i"], name="if", then_branch=branch("yes"), else_branch=branch("no")
        ),
        helper.make_node("MatMul", ["i", "w"], ["y"], name="after"),
    ]
    inputs = [("x", FLOAT, [1, width]), ("c", BOOL, [])]
    return _model(nodes, inputs, [("y", FLOAT, [1, width])], outer)


def unknown_shape() -> onnx.ModelProto:
    """An operator of com.microsoft whose output's shape nobody infers, between two MatMuls."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((16, 16)).astype(np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="before"),
        helper.make_node(
            "CDist", ["h", "w"], ["d"], name="contrib", domain="com.microsoft", metric="euclidean"
        ),
        helper.make_node("MatMul", ["d", "w"], ["y"], name="after"),
    ]
    model = _model(nodes, [("x", FLOAT, [1, 16])], [("y", FLOAT, [1, 16])], weights)
    model.opset_import.add(domain="com.microsoft", version=1)
    return model
