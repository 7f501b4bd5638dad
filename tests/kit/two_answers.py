"""Models of which ONNX Runtime's kernels and its optimized sessions give answers far apart."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.kit.wrong import Net


def style() -> onnx.ModelProto:
    """A style-transfer network, pixels of 0 to 255: each normalization subtracts a large mean."""
    rng = np.random.default_rng(0)
    net = Net()
    for layer in range(13):
        w = net.weight(f"w{layer}", rng.standard_normal((8, 8 if layer else 3, 3, 3)) / 8)
        b = net.weight(f"b{layer}", rng.standard_normal(8) * 1000)
        net("Conv", f"conv{layer}", w, b, pads=[1, 1, 1, 1])
        scale = net.weight(f"s{layer}", rng.uniform(0.5, 1.5, 8))
        shift = net.weight(f"t{layer}", rng.standard_normal(8) / 5)
        net("InstanceNormalization", f"norm{layer}", scale, shift)
        net("Relu", f"relu{layer}")
    net("Conv", "last", net.weight("w", rng.standard_normal((3, 8, 3, 3)) / 8), pads=[1, 1, 1, 1])
    net("Mul", "wide", net.weight("m", 60.0))
    net("Add", "up", net.weight("o", 128.0))
    net("Clip", "z", net.weight("low", 0.0), net.weight("high", 255.0))
    return _model(net, [1, 3, 8, 8])


def quantized() -> onnx.ModelProto:
    """A deep MLP in QDQ form: ONNX Runtime merges its layers in 8 bits, and steps add up."""
    rng = np.random.default_rng(3)
    net = Net()
    step, middle = net.weight("step", 6 / 255), net.weight("middle", 128, np.uint8)
    for layer in range(12):
        net("QuantizeLinear", f"q{layer}", step, middle)
        net("DequantizeLinear", f"d{layer}", step, middle)
        w = rng.standard_normal((32, 32)) / np.sqrt(32)
        scale = np.float32(np.abs(w).max() / 127)
        parts = [net.weight(f"w{layer}", np.round(w / scale), np.int8)]
        parts.append(net.weight(f"s{layer}", scale))
        net.nodes.append(helper.make_node("DequantizeLinear", parts, [f"v{layer}"]))
        net("MatMul", f"m{layer}", f"v{layer}")
        net("Add", f"a{layer}", net.weight(f"b{layer}", rng.standard_normal(32) / 10))
        net("Relu", f"r{layer}")
    net("QuantizeLinear", "q", step, middle)
    net("DequantizeLinear", "z", step, middle)
    return _model(net, [64, 32])


def _model(net: Net, shape: list[int]) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", "z")]
    graph = helper.make_graph(net.nodes, "g", values[:1], values[1:], net.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
