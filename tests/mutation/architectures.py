"""Small models of the architectures that people deploy, seeded and whole.

Each is written out layer by layer, so that every kind of fault has a place in it. The quantized
ones are made by onnxruntime.quantization from float ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Build = Callable[["Net"], str]
FLOAT = TensorProto.FLOAT
OPSET = 20


class Net:
    """Nodes and weights of a graph that is being written; values are named in order."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype: npt.DTypeLike = np.float32
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output."""
        return self.several(op, *inputs, outputs=1, **attributes)[0]

    def several(self, op: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Add a node with several outputs."""
        name = f"{op.lower()}_{len(self.nodes)}"
        names = [name, *(f"{name}_{number}" for number in range(1, outputs))]
        self.nodes.append(helper.make_node(op, inputs, names, name=name, **attributes))
        return names

    def weight(self, *shape: int, scale: float = 1.0, around: float = 0.0) -> str:
        """A seeded parameter."""
        return self.floats(around + scale * self.rng.standard_normal(shape))

    def constant(self, value: np.ndarray) -> str:
        """An initializer."""
        name = f"w_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def ints(self, *values: int) -> str:
        """An initializer of int64."""
        return self.constant(np.array(values, np.int64))

    def linear(self, x: str, inner: int, outer: int) -> str:
        """x @ w + b."""
        product = self("MatMul", x, self.weight(inner, outer, scale=inner**-0.5))
        return self("Add", product, self.weight(outer, scale=0.1))

    def floats(self, values: npt.ArrayLike) -> str:
        """An initializer of the net's type."""
        return self.constant(np.asarray(values, self.dtype))

    def affine(self, x: str, factor: float, offset: float = 0.0) -> str:
        """factor * x + offset."""
        y = self("Mul", x, self.floats(factor))
        return self("Add", y, self.floats(offset)) if offset else y

    def conv(
        self, x: str, inner: int, outer: int, kernel: int = 3, *, stride: int = 1, group: int = 1
    ) -> str:
        """A convolution that keeps the size, or divides it by the stride."""
        fan = inner // group * kernel * kernel
        filters = self.weight(outer, inner // group, kernel, kernel, scale=(2 / fan) ** 0.5)
        bias = self.weight(outer, scale=0.1)
        pads = [kernel // 2] * 4
        return self("Conv", x, filters, bias, pads=pads, strides=[stride] * 2, group=group)

    def norm(self, x: str, channels: int) -> str:
        """Batch normalization."""
        scale, bias = (self.weight(channels, scale=0.1, around=around) for around in (1.0, 0.0))
        mean = self.weight(channels, scale=0.1)
        variance = self.constant(self.rng.uniform(0.5, 1.5, channels).astype(np.float32))
        return self("BatchNormalization", x, scale, bias, mean, variance)

    def layer_norm(self, x: str, width: int) -> str:
        """Layer normalization."""
        scale = self.weight(width, scale=0.1, around=1.0)
        return self("LayerNormalization", x, scale, self.weight(width, scale=0.1), axis=-1)

    def heads(self, x: str, length: int, heads: int, width: int) -> str:
        """(1, length, heads * width) to (1, heads, length, width)."""
        shaped = self("Reshape", x, self.ints(1, length, heads, width))
        return self("Transpose", shaped, perm=[0, 2, 1, 3])

    def attention(
        self, x: str, length: int, width: int, heads: int, mask: np.ndarray | None = None
    ) -> tuple[str, str]:
        """Self-attention, and its scores before the Softmax."""
        size = width // heads
        q, k, v = (self.heads(self.linear(x, width, width), length, heads, size) for _ in range(3))
        scores = self("MatMul", q, self("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self("Div", scores, self.constant(np.array(math.sqrt(size), np.float32)))
        if mask is not None:
            scores = self("Add", scores, self.constant(mask.astype(np.float32)))
        mixed = self("MatMul", self("Softmax", scores, axis=-1), v)
        joined = self("Transpose", mixed, perm=[0, 2, 1, 3])
        flat = self("Reshape", joined, self.ints(1, length, width))
        return self.linear(flat, width, width), scores

    def model(self, inputs: Mapping[str, tuple[int, ...]], *outputs: str) -> onnx.ModelProto:
        """The checked model; types and shapes of outputs are inferred."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info(n, kind, shape) for n, shape in inputs.items()],
            [onnx.ValueInfoProto(name=name) for name in outputs],
            self.weights,
        )
        made = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", 3)],
            ir_version=10,
        )
        inferred: onnx.ModelProto = onnx.shape_inference.infer_shapes(made, strict_mode=True)
        return inferred


def mobile(seed: int = 1) -> onnx.ModelProto:
    """Depthwise separable convolutions, HardSwish, squeeze and excitation."""
    net = Net(seed)
    x = net("HardSwish", net.conv("image", 3, 8, stride=2))
    for inner, outer in ((8, 16), (16, 16)):
        wide = net("HardSwish", net.norm(net.conv(x, inner, 2 * inner, 1), 2 * inner))
        deep = net("HardSwish", net.conv(wide, 2 * inner, 2 * inner, group=2 * inner))
        squeezed = net("Relu", net.conv(net("GlobalAveragePool", deep), 2 * inner, 8, 1))
        gate = net("HardSigmoid", net.conv(squeezed, 8, 2 * inner, 1))
        y = net.conv(net("Mul", deep, gate), 2 * inner, outer, 1)
        x = net("Add", x, y) if inner == outer else y
    flat = net("Flatten", net("GlobalAveragePool", x))
    weights = net.weight(16, 20, scale=0.25)
    return net.model({"image": (1, 3, 16, 16)}, net("Gemm", flat, weights, net.weight(20)))


def u_net(seed: int = 2) -> onnx.ModelProto:
    """Down, up by a transposed convolution, and a connection across."""
    net = Net(seed)
    left = net("Relu", net.conv("image", 1, 8))
    low = net("MaxPool", left, kernel_shape=[2, 2], strides=[2, 2])
    low = net("Relu", net.conv(low, 8, 16))
    filters, bias = net.weight(16, 8, 2, 2, scale=0.25), net.weight(8, scale=0.1)
    up = net("ConvTranspose", low, filters, bias, kernel_shape=[2, 2], strides=[2, 2])
    joined = net("Concat", left, up, axis=1)
    out = net("LeakyRelu", net.conv(joined, 16, 8), alpha=0.1)
    return net.model({"image": (1, 1, 16, 16)}, net("Sigmoid", net.conv(out, 8, 6, 1)))


def residual(seed: int = 3) -> onnx.ModelProto:
    """Residual blocks with batch normalization and a Softmax, as ResNet."""
    net = Net(seed)
    x = net("Relu", net.norm(net.conv("image", 3, 16), 16))
    for _ in range(2):
        y = net("Relu", net.norm(net.conv(x, 16, 16), 16))
        x = net("Relu", net("Add", net.norm(net.conv(y, 16, 16), 16), x))
    pooled = net("ReduceMean", x, net.ints(2, 3), keepdims=0)
    logits = net("Mul", net.linear(pooled, 16, 12), net.constant(np.array(3, np.float32)))
    return net.model({"image": (1, 3, 12, 12)}, net("Softmax", logits, axis=-1))


def encoder(seed: int = 4) -> onnx.ModelProto:
    """Post-norm blocks with Gelu, as BERT; gives hidden states and a pooled one."""
    net, (length, width) = Net(seed), (12, 32)
    x = net("Add", "embedded", net.weight(1, length, width, scale=0.3))
    for _ in range(2):
        x = net.layer_norm(net("Add", x, net.attention(x, length, width, 4)[0]), width)
        inner = net("Gelu", net.linear(x, width, 64))
        x = net.layer_norm(net("Add", x, net.linear(inner, 64, width)), width)
    first = net("Gather", x, net.constant(np.array(0, np.int64)), axis=1)
    pooled = net("Tanh", net.linear(first, width, width))
    return net.model({"embedded": (1, length, width)}, x, pooled)


def vision(seed: int = 5) -> onnx.ModelProto:
    """Patches by a convolution, a class token, pre-norm blocks, as ViT."""
    net, width = Net(seed), 24
    filters, bias = net.weight(width, 3, 4, 4, scale=0.15), net.weight(width, scale=0.1)
    patches = net("Conv", "image", filters, bias, kernel_shape=[4, 4], strides=[4, 4])
    tokens = net("Transpose", net("Reshape", patches, net.ints(1, width, 16)), perm=[0, 2, 1])
    x = net("Concat", net.weight(1, 1, width), tokens, axis=1)
    x = net("Add", x, net.weight(1, 17, width, scale=0.2))
    for _ in range(2):
        x = net("Add", x, net.attention(net.layer_norm(x, width), 17, width, 3)[0])
        inner = net("Gelu", net.linear(net.layer_norm(x, width), width, 48))
        x = net("Add", x, net.linear(inner, 48, width))
    first = net("Gather", net.layer_norm(x, width), net.constant(np.array(0, np.int64)), axis=1)
    return net.model({"image": (1, 3, 16, 16)}, net.linear(first, width, 10))


def decoder(seed: int = 6) -> onnx.ModelProto:
    """RMS norms written as nodes, a causal mask, a gated MLP, as Llama; gives logits."""
    net, (length, width) = Net(seed), (10, 32)
    causal = np.triu(np.full((1, 1, length, length), -1e4), 1)

    def rms(x: str) -> str:
        square = net("Mul", x, x)
        mean = net("ReduceMean", square, net.ints(-1), keepdims=1)
        root = net("Sqrt", net("Add", mean, net.constant(np.array(1e-5, np.float32))))
        return net("Mul", net("Div", x, root), net.weight(width, scale=0.1, around=1.0))

    x = "embedded"
    for _ in range(2):
        x = net("Add", x, net.attention(rms(x), length, width, 4, causal)[0])
        y = rms(x)
        gate = net.linear(y, width, 64)
        gated = net("Mul", net("Mul", gate, net("Sigmoid", gate)), net.linear(y, width, 64))
        x = net("Add", x, net.linear(gated, 64, width))
    return net.model({"embedded": (1, length, width)}, net.linear(rms(x), width, 50))


def lstm(seed: int = 7) -> onnx.ModelProto:
    """A bidirectional LSTM, then another one, and a linear layer."""
    net, hidden = Net(seed), 12
    w, r = net.weight(2, 4 * hidden, 8, scale=0.3), net.weight(2, 4 * hidden, hidden, scale=0.3)
    both = {"hidden_size": hidden, "direction": "bidirectional"}
    y = net("LSTM", "frames", w, r, net.weight(2, 8 * hidden, scale=0.1), **both)
    y = net("Reshape", net("Transpose", y, perm=[0, 2, 1, 3]), net.ints(9, 1, 2 * hidden))
    w, r = net.weight(1, 4 * hidden, 24, scale=0.3), net.weight(1, 4 * hidden, hidden, scale=0.3)
    y = net("LSTM", y, w, r, net.weight(1, 8 * hidden, scale=0.1), hidden_size=hidden)
    y = net("Squeeze", y, net.ints(1))
    return net.model({"frames": (9, 1, 8)}, net.linear(y, hidden, 15))


def gru(seed: int = 8) -> onnx.ModelProto:
    """A GRU after a convolution over time, and a Sigmoid gate."""
    net, hidden = Net(seed), 16
    filters, bias = net.weight(8, 6, 3, scale=0.25), net.weight(8, scale=0.1)
    x = net("Relu", net("Conv", "signal", filters, bias, pads=[1, 1]))
    frames = net("Transpose", x, perm=[2, 0, 1])
    w, r = net.weight(1, 3 * hidden, 8, scale=0.4), net.weight(1, 3 * hidden, hidden, scale=0.3)
    b = net.weight(1, 6 * hidden, scale=0.1)
    y = net("GRU", frames, w, r, b, hidden_size=hidden, linear_before_reset=1)
    flat = net("Reshape", y, net.ints(11, hidden))
    gate = net("Sigmoid", net.linear(flat, hidden, 9))
    return net.model({"signal": (1, 6, 11)}, net("Mul", net.linear(flat, hidden, 9), gate))


def masked_scores(seed: int = 9) -> onnx.ModelProto:
    """A block that gives its attention scores, too: more than half of them are -1e9."""
    net, (length, width) = Net(seed), (14, 24)
    mask = np.triu(np.full((1, 1, length, length), -1e9), 1)
    mask[..., 1:4] = -1e9  # never the first one: no row is masked whole
    y, scores = net.attention(net.layer_norm("embedded", width), length, width, 3, mask)
    return net.model({"embedded": (1, length, width)}, net("Add", "embedded", y), scores)


def masked_logits(seed: int = 10) -> onnx.ModelProto:
    """Logits of which a third of the vocabulary is the lowest float32."""
    net, width = Net(seed), 16
    hidden = net("Relu", net.linear("hidden", width, 32))
    logits = net.linear(hidden, 32, 90)
    banned = net.constant(np.arange(90) % 3 == 0)
    lowest = net.constant(np.array(np.finfo(np.float32).min, np.float32))
    return net.model({"hidden": (1, 4, width)}, net("Where", banned, lowest, logits))


MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "CNN, mobile": mobile,
    "CNN, U-Net": u_net,
    "CNN, residual": residual,
    "transformer, encoder": encoder,
    "transformer, vision": vision,
    "transformer, decoder": decoder,
    "LSTM": lstm,
    "GRU": gru,
    "mask, scores": masked_scores,
    "mask, logits": masked_logits,
}
QUANTIZED: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "quantized CNN": lambda: mobile(11),
    "quantized encoder": lambda: encoder(12),
}


def quantize(model: onnx.ModelProto, folder: Path, excluded: Sequence[str] = ()) -> onnx.ModelProto:
    """Static QDQ quantization by onnxruntime, calibrated on seeded inputs.

    Args:
        excluded: ops whose nodes stay as they are.
    """
    from onnxruntime.quantization import QuantType, quantize_static

    class Inputs:
        """A CalibrationDataReader."""

        def __init__(self) -> None:
            self._left = iter(list(inputs(model, 8)))

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._left, None)

    source, target = folder / "float.onnx", folder / "quantized.onnx"
    onnx.save(model, source)
    quantize_static(
        source,
        target,
        Inputs(),
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=[n.name for n in model.graph.node if n.op_type in excluded],
    )
    return onnx.load(target)


def inputs(model: onnx.ModelProto, count: int) -> Iterator[dict[str, np.ndarray]]:
    """Seeded normal inputs."""
    rng = np.random.default_rng(99)
    for _ in range(count):
        yield {
            value.name: rng.standard_normal(
                [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            ).astype(np.float32)
            for value in model.graph.input
        }
