"""Small models with the structure of large ones, to be cut into pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


@dataclass
class Net:
    """A graph under construction. A node is named after its output."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def add(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        name = f"{op_type.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def weight(self, value: npt.ArrayLike, kind: npt.DTypeLike = np.float32) -> str:
        """Add an initializer; return its name."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def random(self, *shape: int, fan: int) -> str:
        """Add random weights for `fan` summands; return their name."""
        return self.weight(self.rng.standard_normal(shape) / fan**0.5)

    def conv(self, x: str, into: int, out: int, *, kernel: int = 3, stride: int = 1) -> str:
        """Add a convolution with a bias and without activation."""
        weight = self.random(out, into, kernel, kernel, fan=into * kernel**2)
        bias = self.random(out, fan=100)
        pads = [kernel // 2] * 4
        return self.add("Conv", [x, weight, bias], pads=pads, strides=[stride, stride])

    def model(
        self, inputs: Mapping[str, Sequence[int]], output: str, shape: Sequence[int]
    ) -> onnx.ModelProto:
        """Return the model of float inputs, one output and all that was added."""
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info(n, FLOAT, s) for n, s in inputs.items()],
            [helper.make_tensor_value_info(output, FLOAT, shape)],
            self.weights,
        )
        opsets = [helper.make_opsetid("", 18)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def unet() -> onnx.ModelProto:
    """Two halvings and two doublings of an image, with a skip at each size."""
    net, skips = Net(), []
    x, width = net.add("Relu", [net.conv("x", 3, 8)]), 8
    for _ in range(2):
        x = net.add("Relu", [net.conv(x, width, width)])
        skips.append((x, width))
        x = net.add("Relu", [net.conv(x, width, 2 * width, stride=2)])
        width *= 2
    x = net.add("Relu", [net.conv(x, width, width)])
    for skip, size in reversed(skips):
        weight = net.random(width, size, 2, 2, fan=width)
        up = net.add("ConvTranspose", [x, weight], strides=[2, 2], kernel_shape=[2, 2])
        x = net.add("Concat", [up, skip], axis=1)
        x = net.add("Relu", [net.conv(x, 2 * size, size)])
        width = size
    return net.model({"x": [1, 3, 16, 16]}, net.conv(x, width, 2, kernel=1), [1, 2, 16, 16])


def resnet(*, blocks: Sequence[int] = (3, 8, 36, 3), width: int = 4) -> onnx.ModelProto:
    """A ResNet-152 with narrow channels: bottlenecks of three convolutions in four stages."""
    net = Net()
    x, into = net.add("Relu", [net.conv("x", 3, width, kernel=7, stride=2)]), width
    for stage, count in enumerate(blocks):
        inner, out = width << stage, width << (stage + 1)
        for block in range(count):
            stride = 2 if stage and not block else 1
            y = net.add("Relu", [net.conv(x, into, inner, kernel=1)])
            y = net.add("Relu", [net.conv(y, inner, inner, stride=stride)])
            y = net.add("Mul", [net.conv(y, inner, out, kernel=1), net.weight(0.25)])
            if block == 0:
                x = net.conv(x, into, out, kernel=1, stride=stride)
            x, into = net.add("Relu", [net.add("Add", [x, y])]), out
    x = net.add("Flatten", [net.add("GlobalAveragePool", [x])])
    y = net.add("Gemm", [x, net.random(into, 10, fan=into), net.random(10, fan=10)])
    return net.model({"x": [1, 3, 32, 32]}, y, [1, 10])


def quantized(*, layers: int = 8, width: int = 32) -> onnx.ModelProto:
    """Linear layers with Relu in QDQ form: uint8 activations, int8 weights."""
    net = Net()
    scale, zero, weights = net.weight(0.02), net.weight(0, np.uint8), net.weight(0.01)
    x = net.add("QuantizeLinear", ["x", scale, zero])
    for _ in range(layers):
        values = net.rng.integers(-60, 61, (width, width))
        matrix = net.add("DequantizeLinear", [net.weight(values, np.int8), weights])
        y = net.add("MatMul", [net.add("DequantizeLinear", [x, scale, zero]), matrix])
        x = net.add("QuantizeLinear", [net.add("Relu", [y]), scale, zero])
    y = net.add("DequantizeLinear", [x, scale, zero])
    return net.model({"x": [1, width]}, y, [1, width])


def branching(*, width: int = 16) -> onnx.ModelProto:
    """Linear layers around an If and a Loop whose bodies use values of the graph around them."""
    net = Net()

    def layer(x: str) -> str:
        return net.add("Tanh", [net.add("MatMul", [x, net.random(width, width, fan=width)])])

    def value(name: str, kind: int = FLOAT, shape: Sequence[int] = (1, width)) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    first = layer("x")
    second = layer(first)
    mean = net.add("ReduceSum", [second], keepdims=0)
    positive = net.add("Greater", [mean, net.weight(0)])
    branches = {}
    for name, op_type in (("then", "Add"), ("else", "Sub")):
        node = helper.make_node(op_type, [first, second], [name], name=f"{name}_node")
        branches[f"{name}_branch"] = helper.make_graph([node], name, [], [value(name)])
    chosen = net.add("If", [positive], **branches)
    third = layer(chosen)
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["state", third], ["product"], name="product"),
            helper.make_node("Add", ["product", first], ["next"], name="next"),
            helper.make_node("Identity", ["again"], ["go"], name="go"),
        ],
        "body",
        [value("number", INT64, []), value("again", BOOL, []), value("state")],
        [value("go", BOOL, []), value("next")],
    )
    looped = net.add("Loop", [net.weight(3, np.int64), "", chosen], body=body)
    y = layer(net.add("Add", [layer(looped), second]))
    return net.model({"x": [1, width]}, y, [1, width])
