"""A decoder of any size, with random float16 weights: for a prompt, and for a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PAST: Final = 64
_POOL: Final = 1 << 25
_PIECE: Final = 1 << 20
_NORM: Final = np.float16(1e-3)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large a decoder is: each layer has `width` * (4 * `width` + 3 * `inner`) weights."""

    layers: int
    width: int = 2048
    inner: int = 5632
    heads: int = 16
    tokens: int = 32000

    @property
    def weights(self) -> dict[str, tuple[int, int]]:
        """The shapes of its matrices."""
        square, wide = (self.width, self.width), (self.width, self.inner)
        layer = dict.fromkeys("qkvo", square) | {"gate": wide, "up": wide, "down": wide[::-1]}
        found = {"embed": (self.tokens, self.width), "head": (self.width, self.tokens)}
        names = (f"{number}." for number in range(self.layers))
        return found | {n + each: shape for n in names for each, shape in layer.items()}


def write_pair(folder: Path, sizes: Sizes) -> int:
    """Write prefill.onnx, decode.onnx and weights.data; return the bytes of the last."""
    weights = _write_weights(folder / "weights.data", sizes)
    for name, count in (("prefill", 64), ("decode", 1)):
        onnx.save(_Decoder(sizes=sizes, count=count).model(weights), folder / f"{name}.onnx")
    return (folder / "weights.data").stat().st_size


def _write_weights(path: Path, sizes: Sizes) -> list[TensorProto]:
    """Pieces of a pool of random numbers: to draw each takes minutes, and EPs see equal ones."""
    rng = np.random.default_rng(0)
    pool = (rng.standard_normal(_POOL, np.float32) * 0.02).astype(np.float16)
    made = []
    with path.open("wb") as stream:
        for name, shape in sizes.weights.items():
            stream.seek(-(-stream.tell() // 4096) * 4096)
            made.append(_external(name, shape, path.name, stream.tell()))
            left = shape[0] * shape[1]
            while left:
                start, count = int(rng.integers(_POOL - _PIECE)), min(left, _PIECE)
                stream.write(pool[start : start + count].data)
                left -= count
    return made


def _external(name: str, shape: tuple[int, int], location: str, offset: int) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT16, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    length = 2 * shape[0] * shape[1]
    for key, value in {"location": location, "offset": offset, "length": length}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


@dataclass(kw_only=True)
class _Decoder:
    """The graph for `count` tokens after `PAST` others."""

    sizes: Sizes
    count: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def model(self, weights: Sequence[TensorProto]) -> onnx.ModelProto:
        """The whole of it."""
        sizes, head = self.sizes, self.sizes.width // self.sizes.heads
        self.inputs.append(helper.make_tensor_value_info("ids", TensorProto.INT32, [1, self.count]))
        self._input("mask", 1, 1, self.count, PAST + self.count)
        self._input("cos", 1, 1, self.count, head)
        self._input("sin", 1, 1, self.count, head)
        self._constant("eps", _NORM)
        self._constant("scale", np.float16(head**-0.5))
        self._constant("gain", np.linspace(0.5, 1.5, sizes.width, dtype=np.float16))
        self._constant("last", [-1])
        self._constant("halves", [head // 2, head // 2])
        self._constant("split", [1, self.count, sizes.heads, head])
        self._constant("joined", [1, self.count, sizes.width])
        found = self._node("Gather", "embed", "ids")
        for layer in range(sizes.layers):
            found = self._layer(found, layer)
        self._node("MatMul", self._norm(found), "head", out="logits")
        self._output("logits", 1, self.count, sizes.tokens)
        graph = helper.make_graph(
            self.nodes, "decoder", self.inputs, self.outputs, [*weights, *self.constants]
        )
        opsets = [helper.make_opsetid("", 18)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def _layer(self, given: str, layer: int) -> str:
        added = self._node("Add", given, self._attention(self._norm(given), layer))
        normed = self._norm(added)
        gate = self._node("MatMul", normed, f"{layer}.gate")
        gated = self._node("Mul", gate, self._node("Sigmoid", gate))
        inner = self._node("Mul", gated, self._node("MatMul", normed, f"{layer}.up"))
        return self._node("Add", added, self._node("MatMul", inner, f"{layer}.down"))

    def _attention(self, given: str, layer: int) -> str:
        query = self._rotated(self._heads(given, f"{layer}.q"))
        key = self._cached(self._rotated(self._heads(given, f"{layer}.k")), f"{layer}.key")
        value = self._cached(self._heads(given, f"{layer}.v"), f"{layer}.value")
        turned = self._node("Transpose", key, perm=[0, 1, 3, 2])
        scores = self._node("MatMul", self._node("Mul", query, "scale"), turned)
        seen = self._node("Softmax", self._node("Add", scores, "mask"), axis=-1)
        mixed = self._node("Transpose", self._node("MatMul", seen, value), perm=[0, 2, 1, 3])
        return self._node("MatMul", self._node("Reshape", mixed, "joined"), f"{layer}.o")

    def _heads(self, given: str, weights: str) -> str:
        split = self._node("Reshape", self._node("MatMul", given, weights), "split")
        return self._node("Transpose", split, perm=[0, 2, 1, 3])

    def _rotated(self, given: str) -> str:
        one, two = f"{given}.one", f"{given}.two"
        self.nodes.append(helper.make_node("Split", [given, "halves"], [one, two], axis=-1))
        turned = self._node("Concat", self._node("Neg", two), one, axis=-1)
        return self._node("Add", self._node("Mul", given, "cos"), self._node("Mul", turned, "sin"))

    def _cached(self, given: str, name: str) -> str:
        heads, head = self.sizes.heads, self.sizes.width // self.sizes.heads
        self._input(f"past.{name}", 1, heads, PAST, head)
        self._output(f"present.{name}", 1, heads, PAST + self.count, head)
        return self._node("Concat", f"past.{name}", given, out=f"present.{name}", axis=2)

    def _norm(self, given: str) -> str:
        mean = self._node("ReduceMean", self._node("Mul", given, given), "last")
        root = self._node("Sqrt", self._node("Add", mean, "eps"))
        return self._node("Mul", self._node("Div", given, root), "gain")

    def _node(self, op_type: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        name = out or f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def _constant(self, name: str, value: Any) -> None:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))

    def _input(self, name: str, *shape: int) -> None:
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape))

    def _output(self, name: str, *shape: int) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape))
