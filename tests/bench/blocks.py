"""Layers of a decoder for a prompt, without a cache: in float16, or in 4 bits as ONNX Runtime's
`MatMulNBits` has them. Weights are random numbers from a pool, in a file beside the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_POOL: Final = 1 << 24
_GROUP: Final = 32
"""Weights that share a scale."""


@dataclass(kw_only=True)
class Block:
    """Layers of Llama 3.2 1B's shape: 60.8 million weights each.

    Attributes:
        kind: of the weights.
        layers: 4 have 243 million weights.
        tokens: of the prompt.
    """

    kind: Literal["float16", "4-bit"]
    layers: int = 4
    width: int = 2048
    inner: int = 8192
    heads: int = 32
    kv_heads: int = 8
    tokens: int = 64
    _nodes: list[onnx.NodeProto] = field(default_factory=list)
    _weights: list[TensorProto] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the model, and `<name>.data` beside it."""
        size, shape = self.width // self.heads, [1, self.tokens, self.width]
        with path.with_suffix(".data").open("wb") as stream:
            rng = np.random.default_rng(0)
            self._pool = (rng.standard_normal(_POOL, np.float32) * 0.02).astype(np.float16)
            self._rng, self._stream = rng, stream
            mask = np.triu(np.full((self.tokens, self.tokens), -1e4, np.float16), 1)
            self._small("mask", mask)
            self._small("scale", np.array(size**-0.5, np.float16))
            last = "x"
            for layer in range(self.layers):
                last = self._layer(f"l{layer}", last, size)
        graph = helper.make_graph(
            self._nodes,
            "block",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT16, shape)],
            [helper.make_tensor_value_info(last, TensorProto.FLOAT16, shape)],
            self._weights,
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)

    def _layer(self, name: str, x: str, size: int) -> str:
        normal = self._norm(f"{name}.norm1", x)
        heads = {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}
        made = {}
        for each, count in heads.items():
            flat = self._linear(f"{name}.{each}", normal, self.width, count * size)
            self._small(f"{name}.{each}.shape", np.array([1, self.tokens, count, size]))
            split = self._node("Reshape", [flat, f"{name}.{each}.shape"], f"{name}.{each}.split")
            order = [0, 2, 3, 1] if each == "k" else [0, 2, 1, 3]
            made[each] = self._node("Transpose", [split], f"{name}.{each}.heads", perm=order)
            if count < self.heads:
                index = np.repeat(np.arange(count), self.heads // count)
                self._small(f"{name}.{each}.index", index)
                inputs = [made[each], f"{name}.{each}.index"]
                made[each] = self._node("Gather", inputs, f"{name}.{each}.all", axis=1)
        scores = self._node("MatMul", [made["q"], made["k"]], f"{name}.scores")
        scaled = self._node("Mul", [scores, "scale"], f"{name}.scaled")
        masked = self._node("Add", [scaled, "mask"], f"{name}.masked")
        weights = self._node("Softmax", [masked], f"{name}.softmax", axis=-1)
        mixed = self._node("MatMul", [weights, made["v"]], f"{name}.mixed")
        back = self._node("Transpose", [mixed], f"{name}.back", perm=[0, 2, 1, 3])
        self._small(f"{name}.flat", np.array([1, self.tokens, self.width]))
        flat = self._node("Reshape", [back, f"{name}.flat"], f"{name}.joined")
        out = self._linear(f"{name}.o", flat, self.width, self.width)
        x = self._node("Add", [x, out], f"{name}.residual1")
        normal = self._norm(f"{name}.norm2", x)
        gate = self._linear(f"{name}.gate", normal, self.width, self.inner)
        up = self._linear(f"{name}.up", normal, self.width, self.inner)
        sigmoid = self._node("Sigmoid", [gate], f"{name}.sigmoid")
        swish = self._node("Mul", [gate, sigmoid], f"{name}.swish")
        product = self._node("Mul", [swish, up], f"{name}.product")
        down = self._linear(f"{name}.down", product, self.inner, self.width)
        return self._node("Add", [x, down], f"{name}.out")

    def _norm(self, name: str, x: str) -> str:
        self._small(f"{name}.weight", np.ones(self.width, np.float16))
        inputs = [x, f"{name}.weight"]
        return self._node("LayerNormalization", inputs, name, axis=-1, epsilon=1e-5)

    def _linear(self, name: str, x: str, rows: int, columns: int) -> str:
        if self.kind == "float16":
            self._large(f"{name}.weight", TensorProto.FLOAT16, [rows, columns], 2)
            return self._node("MatMul", [x, f"{name}.weight"], f"{name}.y")
        groups = rows // _GROUP
        self._large(f"{name}.weight", TensorProto.UINT8, [columns, groups, _GROUP // 2], 1)
        scales = (0.002 + 0.001 * self._rng.random((columns, groups))).astype(np.float16)
        self._small(f"{name}.scales", scales)
        return self._node(
            "MatMulNBits",
            [x, f"{name}.weight", f"{name}.scales"],
            f"{name}.y",
            domain="com.microsoft",
            K=rows,
            N=columns,
            bits=4,
            block_size=_GROUP,
        )

    def _node(
        self, op: str, inputs: Sequence[str], output: str, domain: str = "", **given: Any
    ) -> str:
        made = helper.make_node(op, inputs, [output], name=output, domain=domain, **given)
        self._nodes.append(made)
        return output

    def _small(self, name: str, array: np.ndarray[Any, Any]) -> None:
        self._weights.append(numpy_helper.from_array(array, name))

    def _large(self, name: str, kind: int, shape: Sequence[int], size: int) -> None:
        """Write a weight to the file, from the pool: to draw each takes minutes."""
        stream: BinaryIO = self._stream
        stream.seek(-(-stream.tell() // 4096) * 4096)
        length = int(np.prod(shape)) * size
        tensor = TensorProto(name=name, data_type=kind, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        location = {"location": Path(stream.name).name, "offset": stream.tell(), "length": length}
        for key, value in location.items():
            tensor.external_data.add(key=key, value=str(value))
        data, left = self._pool.view(np.uint8), length
        while left:
            start, count = 2 * int(self._rng.integers(_POOL // 2)), min(left, 1 << 20)
            stream.write(data[start : start + count].data)
            left -= count
        self._weights.append(tensor)
