"""Build a decoder-only transformer with grouped-query attention and a KV cache.

    python -m scripts.transformer out.onnx [--layers 2] [--hidden 64] [--heads 4] [--kv-heads 2] ...

RMSNorm, rotary position embeddings, SwiGLU, a head tied to the embedding or of its own; ops of the
standard domain at opset 18 only, as an exporter writes them: shapes are computed by nodes (Shape,
Concat, Expand, Range, ...), so that fixing the dimensions leaves much to fold.

Inputs, with symbolic dimensions `batch`, `sequence`, `past`:

- `input_ids` int64 [batch, sequence];
- `past_mask` int64 [batch, past]: 1 where the cache holds a token, 0 where it is padding. A static
  graph without any past runs with `past` 1 and a mask of 0;
- `past_key_values.<layer>.key` and `.value` float32 [batch, kv_heads, past, head_dim].

Outputs: `logits` float32 [batch, sequence, vocab]; `present.<layer>.key` and `.value`, the past
followed by the new tokens. A token's position is the number of tokens before it.

With `--npu` in the form that models for NPUs are exported in: what is added to the scores is an
input (`attention_bias` float32 [batch, 1, sequence, total], 0 where a token may be attended to),
the weights of the norms are folded into the linear layers after them, and heads are repeated by
Tile.

Weights are seeded (`scripts.seeded`) and written as external data (`<out>.data`), one at a time.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from scripts import seeded

OPSET = 18
MASKED = -1e9
"""Added to the scores of what must not be attended to: exp of it is 0 in float32."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes of the transformer.

    Attributes:
        hidden: model width; a multiple of twice `heads`.
        heads: query heads; a multiple of `kv_heads`.
        intermediate: width of the SwiGLU; 0: 8/3 of `hidden`, rounded up to a multiple of 16.
        positions: most tokens that past and sequence may have together.
        tied: the head is the transposed embedding.
        npu: in the form for NPUs, which QAIRT 2.51 compiles to the same bytes each time.
    """

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 0
    vocab: int = 256
    positions: int = 512
    tied: bool = False
    npu: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.hidden % (2 * self.heads) or self.heads % self.kv_heads:
            raise ValueError("hidden must divide by 2*heads, and heads by kv_heads")

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads

    @property
    def feed_forward(self) -> int:
        """Width of the SwiGLU."""
        return self.intermediate or -(-8 * self.hidden // 3 // 16) * 16


def write(target: Path, config: Config) -> None:
    """Write the model as `target`, its weights in `<target stem>.data` beside it."""
    ir.save(build(config), target, external_data=f"{target.stem}.data", alignment=4096)


def build(config: Config) -> ir.Model:
    """The transformer as a graph; its weights are lazy tensors."""
    return _Decoder(config).model()


class _Decoder:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.tape = ir.tape.Tape()
        self.constants: dict[str, ir.Value] = {}
        self.names: dict[str, int] = {}

    def model(self) -> ir.Model:
        config = self.config
        ids = ir.val("input_ids", ir.DataType.INT64, ["batch", "sequence"])
        mask = ir.val("past_mask", ir.DataType.INT64, ["batch", "past"])
        cache: list[int | str] = [config.kv_heads, "past", config.head_dim]
        past = [
            ir.val(f"past_key_values.{layer}.{kind}", ir.DataType.FLOAT, ["batch", *cache])
            for layer in range(config.layers)
            for kind in ("key", "value")
        ]
        bias = [ir.val("attention_bias", ir.DataType.FLOAT, ["batch", 1, "sequence", "total"])]
        self._positions(ids, mask)
        self.bias = bias[0] if config.npu else self._causal_bias(mask)
        embedding = self._weight("embed_tokens", (config.vocab, config.hidden), 1 / 4)
        x = self._op("/embed_tokens", "Gather", embedding, ids)
        present: list[ir.Value] = []
        for layer in range(config.layers):
            x, key, value = self._layer(f"/layers.{layer}", x, past[2 * layer], past[2 * layer + 1])
            present += [key, value]
        logits = self._head(x, embedding)
        _name_output(logits, "logits", ["batch", "sequence", config.vocab])
        for source, result in zip(past, present, strict=True):
            name = str(source.name).replace("past_key_values", "present")
            total: list[int | str] = ["batch", config.kv_heads, "total", config.head_dim]
            _name_output(result, name, total)
        graph = ir.Graph(
            [ids, mask, *(bias if config.npu else ()), *past],
            [logits, *present],
            nodes=self.tape.nodes,
            initializers=self.tape.initializers,
            opset_imports={"": OPSET},
            name="decoder",
        )
        return ir.Model(graph, ir_version=8)

    def _positions(self, ids: ir.Value, mask: ir.Value) -> None:
        """Rotary tables of the new tokens' positions."""
        op, ints = self._op, self._ints
        self.batch = op("/batch", "Shape", ids, start=0, end=1)
        self.sequence = op("/sequence", "Shape", ids, start=1, end=2)
        self.total = op("/total", "Add", self.sequence, op("/past", "Shape", mask, start=1, end=2))
        length = op("/positions", "Squeeze", self.sequence, ints(0))
        self.steps = op("/positions", "Range", self._scalar(0), length, self._scalar(1))
        before = op("/positions", "ReduceSum", mask, ints(1), keepdims=1)
        positions = op("/positions", "Add", before, self.steps)
        angles = np.outer(
            np.arange(self.config.positions),
            10000.0 ** (-np.arange(0, self.config.head_dim, 2) / self.config.head_dim),
        )
        self.cos, self.sin = (
            op("/rotary", "Unsqueeze", op("/rotary", "Gather", table, positions), ints(1))
            for table in (self._table("cos", np.cos(angles)), self._table("sin", np.sin(angles)))
        )

    def _causal_bias(self, mask: ir.Value) -> ir.Value:
        """What is added to the scores: [batch, 1, sequence, total]."""
        op, ints = self._op, self._ints
        columns = op("/mask", "Unsqueeze", self.steps, ints(1))
        causal = self._bias(op("/mask/causal", "GreaterOrEqual", columns, self.steps))
        cached = op("/mask/past", "Cast", mask, to=ir.DataType.BOOL)
        cached = self._bias(op("/mask/past", "Unsqueeze", cached, ints(1, 2)))
        height = (self.batch, ints(1), self.sequence)
        past_length = op("/mask/past", "Shape", mask, start=1, end=2)
        return op(
            "/mask",
            "Concat",
            op("/mask/past", "Expand", cached, self._join("/mask/past", *height, past_length)),
            op("/mask/causal", "Expand", causal, self._join("/mask", *height, self.sequence)),
            axis=-1,
        )

    def _bias(self, allowed: ir.Value) -> ir.Value:
        return self._op("/mask", "Where", allowed, self._number(0.0), self._number(MASKED))

    def _layer(
        self, scope: str, x: ir.Value, past_key: ir.Value, past_value: ir.Value
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        config = self.config
        small = 1 / math.sqrt(2 * config.layers)
        normed = self._norm(f"{scope}/input_layernorm", x)
        attended, key, value = self._attention(f"{scope}/self_attn", normed, past_key, past_value)
        attended = self._linear(f"{scope}/self_attn/o_proj", attended, config.hidden, small)
        x = self._op(f"{scope}/residual_1", "Add", x, attended)
        normed = self._norm(f"{scope}/post_attention_layernorm", x)
        gate = self._linear(f"{scope}/mlp/gate_proj", normed, config.feed_forward)
        up = self._linear(f"{scope}/mlp/up_proj", normed, config.feed_forward)
        swish = self._op(f"{scope}/mlp", "Mul", gate, self._op(f"{scope}/mlp", "Sigmoid", gate))
        down = self._op(f"{scope}/mlp", "Mul", swish, up)
        down = self._linear(f"{scope}/mlp/down_proj", down, config.hidden, small)
        return self._op(f"{scope}/residual_2", "Add", x, down), key, value

    def _attention(
        self, scope: str, x: ir.Value, past_key: ir.Value, past_value: ir.Value
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        config, op = self.config, self._op
        query = self._rotate(f"{scope}/q", self._heads(f"{scope}/q_proj", x, config.heads))
        key = self._rotate(f"{scope}/k", self._heads(f"{scope}/k_proj", x, config.kv_heads))
        value = self._heads(f"{scope}/v_proj", x, config.kv_heads)
        key = op(f"{scope}/cache", "Concat", past_key, key, axis=2)
        value = op(f"{scope}/cache", "Concat", past_value, value, axis=2)
        query = op(scope, "Mul", query, self._number(1 / math.sqrt(config.head_dim)))
        keys = op(scope, "Transpose", self._repeat(f"{scope}/k", key), perm=[0, 1, 3, 2])
        scores = op(scope, "Add", op(f"{scope}/scores", "MatMul", query, keys), self.bias)
        weights = op(scope, "Softmax", scores, axis=-1)
        mixed = op(f"{scope}/mix", "MatMul", weights, self._repeat(f"{scope}/v", value))
        mixed = op(f"{scope}/mix", "Transpose", mixed, perm=[0, 2, 1, 3])
        return op(f"{scope}/mix", "Reshape", mixed, self._ints(0, 0, config.hidden)), key, value

    def _heads(self, scope: str, x: ir.Value, heads: int) -> ir.Value:
        """Project to [batch, heads, sequence, head_dim]."""
        x = self._linear(scope, x, heads * self.config.head_dim)
        x = self._op(scope, "Reshape", x, self._ints(0, 0, heads, self.config.head_dim))
        return self._op(scope, "Transpose", x, perm=[0, 2, 1, 3])

    def _rotate(self, scope: str, x: ir.Value) -> ir.Value:
        op, scope = self._op, f"{scope}/rotary"
        first, second = self.tape.op_multi_out(
            "Split",
            [x],
            {"axis": -1, "num_outputs": 2},
            num_outputs=2,
            name=self._unique(f"{scope}/Split"),
        )
        real = op(
            scope, "Sub", op(scope, "Mul", first, self.cos), op(scope, "Mul", second, self.sin)
        )
        imaginary = op(
            scope, "Add", op(scope, "Mul", second, self.cos), op(scope, "Mul", first, self.sin)
        )
        return op(scope, "Concat", real, imaginary, axis=-1)

    def _repeat(self, scope: str, x: ir.Value) -> ir.Value:
        """Give each query head its key or value head: [batch, heads, total, head_dim]."""
        config, ints = self.config, self._ints
        times = config.heads // config.kv_heads
        if config.npu:
            repeats = ints(1, 1, times, 1, 1)
            x = self._op(scope, "Tile", self._op(scope, "Unsqueeze", x, ints(2)), repeats)
        else:
            groups = ints(config.kv_heads, times)
            wide = self._join(scope, self.batch, groups, self.total, ints(config.head_dim))
            x = self._op(scope, "Expand", self._op(scope, "Unsqueeze", x, ints(2)), wide)
        flat = self._join(scope, self.batch, ints(config.heads), self.total, ints(config.head_dim))
        return self._op(scope, "Reshape", x, flat)

    def _norm(self, scope: str, x: ir.Value) -> ir.Value:
        op, name = self._op, f"{scope[1:]}.weight"
        square = op(scope, "Mul", x, x)
        mean = op(scope, "ReduceMean", square, self._ints(-1), keepdims=1)
        root = op(scope, "Sqrt", op(scope, "Add", mean, self._number(1e-6)))
        normed = op(scope, "Div", x, root)
        if self.config.npu:
            return normed
        shape, seed = (self.config.hidden,), self.config.seed
        weight = self._lazy(name, shape, lambda: seeded.around(name, seed, shape, 1.0, 0.25))
        return op(scope, "Mul", normed, weight)

    def _head(self, x: ir.Value, embedding: ir.Value) -> ir.Value:
        x = self._norm("/norm", x)
        if not self.config.tied:
            return self._linear("/lm_head", x, self.config.vocab, 2.0)
        turned = self._op("/lm_head", "Transpose", embedding, perm=[1, 0])
        return self._op("/lm_head", "MatMul", x, turned)

    def _linear(self, scope: str, x: ir.Value, width: int, gain: float = 1.0) -> ir.Value:
        depth = self.config.feed_forward if scope.endswith("down_proj") else self.config.hidden
        weight = self._weight(scope[1:], (depth, width), gain / math.sqrt(depth))
        return self._op(scope, "MatMul", x, weight)

    def _weight(self, scope: str, shape: tuple[int, int], deviation: float) -> ir.Value:
        name, seed = f"{scope}.weight", self.config.seed

        def make() -> seeded.Floats:
            numbers = seeded.integers(name, seed, shape).astype(np.float32)
            numbers *= seeded.scale(deviation)
            return numbers

        return self._lazy(name, shape, make)

    def _lazy(
        self, name: str, shape: tuple[int, ...], make: Callable[[], seeded.Floats]
    ) -> ir.Value:
        tensor = ir.LazyTensor(
            lambda: ir.tensor(make(), name=name), ir.DataType.FLOAT, ir.Shape(shape), name=name
        )
        return self.tape.initializer(tensor)

    def _table(self, name: str, table: npt.NDArray[np.float64]) -> ir.Value:
        return self.tape.initializer(ir.tensor(table.astype(np.float32), name=f"rotary.{name}"))

    def _ints(self, *values: int) -> ir.Value:
        return self._constant("ints", np.array(values, np.int64))

    def _scalar(self, value: int) -> ir.Value:
        return self._constant("int", np.array(value, np.int64))

    def _number(self, value: float) -> ir.Value:
        return self._constant("float", np.array(value, np.float32))

    def _constant(self, kind: str, array: npt.NDArray[np.generic]) -> ir.Value:
        name = "_".join((kind, *(str(item) for item in array.ravel().tolist())))
        if name not in self.constants:
            self.constants[name] = self.tape.initializer(ir.tensor(array, name=name))
        return self.constants[name]

    def _join(self, scope: str, *parts: ir.Value) -> ir.Value:
        return self._op(scope, "Concat", *parts, axis=0)

    def _op(
        self, scope: str, op_type: str, *inputs: ir.Value, **attributes: int | Sequence[int]
    ) -> ir.Value:
        return self.tape.op(op_type, inputs, attributes, name=self._unique(f"{scope}/{op_type}"))

    def _unique(self, name: str) -> str:
        count = self.names[name] = self.names.get(name, 0) + 1
        return name if count == 1 else f"{name}_{count - 1}"


def _name_output(value: ir.Value, name: str, shape: Sequence[int | str]) -> None:
    value.name, value.type = name, ir.TensorType(ir.DataType.FLOAT)
    value.shape = ir.Shape(shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("target", type=Path, help="model written; its data goes beside it")
    for option in fields(Config):
        flag = f"--{option.name.replace('_', '-')}"
        if option.type == "bool":
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=int, default=option.default)
    arguments = vars(parser.parse_args())
    write(arguments.pop("target"), Config(**arguments))


if __name__ == "__main__":
    main()
