"""Write a model folder as onnxruntime-genai's model builder does, of a small random decoder.

    python -m scripts.genai_folder out [--kind llama|qwen3] [--precision int4|fp32|fp16] ...

Node for node what `python -m onnxruntime_genai.models.builder` 0.18.0 writes of a Llama, a Qwen2
without biases or a Qwen3 (`-e cpu`; fp16 as for a GPU), but without torch: norms of ONNX Runtime's
own in the default domain, GroupQueryAttention with rotary embeddings and its cache in place,
MatMulNBits. Beside `model.onnx` and its data: genai_config.json, and a tokenizer of bytes.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from scripts import seeded

Array = npt.NDArray[np.generic]
BLOCK = 32
"""Weights of 4 bits that have one scale."""
_ROTARY = ("cos_cache", "sin_cache", "", "", "")
SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes of the decoder; `positions`: of a conversation, at most."""

    kind: Literal["llama", "qwen3"] = "llama"
    precision: Literal["int4", "fp32", "fp16"] = "int4"
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 128
    vocab: int = 512
    positions: int = 256
    seed: int = 0

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.hidden // self.heads

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Of everything that is no weight of 4 bits."""
        return np.dtype(np.float16 if self.precision == "fp16" else np.float32)


@dataclass
class _Graph:
    config: Config
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def op(
        self, kind: str, name: str, inputs: list[str], *, outputs: list[str] | None = None,
        domain: str = "", **attributes: int | float,
    ) -> str:  # fmt: skip
        made = outputs or [f"{name}/output_0"]
        node = helper.make_node(kind, inputs, made, name=name, domain=domain)
        node.attribute.extend(helper.make_attribute(*each) for each in attributes.items())
        self.nodes.append(node)
        return made[0]

    def weight(self, name: str, value: Array) -> str:
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def constant(self, values: list[int] | int) -> str:
        name = f"/model/constants/INT64/{values}"
        if all(node.output[0] != name for node in self.nodes):
            value = numpy_helper.from_array(np.array(values, np.int64))
            maker = f"/model/constant_nodes/INT64/{values}"
            self.nodes.append(helper.make_node("Constant", [], [name], name=maker, value=value))
        return name

    def norm(self, name: str, x: str, width: int, weight: str, *, out: str = "") -> str:
        scale = self.weight(f"{weight}.weight", self._near_one(weight, width))
        return self.op(
            "SimplifiedLayerNormalization", name, [x, scale],
            outputs=[out or f"{name}/output_0"], axis=-1, epsilon=1e-6, stash_type=1,
        )  # fmt: skip

    def skip_norm(self, name: str, x: str, skip: str, *, last: bool = False) -> tuple[str, str]:
        """The norm of a sum, and the sum."""
        place = _path(name)
        scale = self.weight(f"{name}.weight", self._near_one(name, self.config.hidden))
        outputs = [f"{place}/output_0", "", "", f"{place}/output_3"][: 1 if last else 4]
        self.op(
            "SkipSimplifiedLayerNormalization", f"{place}/SkipLayerNorm", [x, skip, scale],
            outputs=outputs, domain="com.microsoft", epsilon=1e-6,
        )  # fmt: skip
        return outputs[0], outputs[-1]

    def linear(self, name: str, x: str, inner: int, outer: int, *, out: str | None = None) -> str:
        """A product with a weight, of 4 bits in blocks or as it is."""
        place = f"{_path(name)}/MatMul"
        outputs = [out or f"{place}/output_0"]
        weight = seeded.around(name, self.config.seed, (outer, inner), 0, 0.35)
        if self.config.precision != "int4":
            given = self.weight(f"{name}.MatMul.weight", weight.T.astype(self.config.dtype))
            return self.op("MatMul", place, [x, given], outputs=outputs)
        blocks = weight.reshape(outer, inner // BLOCK, BLOCK)
        scales = np.abs(blocks).max(axis=2) / np.float32(7)
        quantized = np.clip(np.rint(blocks / scales[..., None]) + 8, 0, 15).astype(np.uint8)
        packed = quantized[..., ::2] | (quantized[..., 1::2] << 4)
        names = [
            self.weight(f"{name}.MatMul.weight_Q4", packed),
            self.weight(f"{name}.MatMul.weight_scales", scales),
        ]
        return self.op(
            "MatMulNBits", f"{place}_Q4", [x, *names], outputs=outputs, domain="com.microsoft",
            K=inner, N=outer, accuracy_level=4, bits=4, block_size=BLOCK,
        )  # fmt: skip

    def _near_one(self, name: str, width: int) -> Array:
        found = seeded.around(name, self.config.seed, (width,), 1, 0.2)
        return found.astype(self.config.dtype)


def _path(name: str) -> str:
    """The name of a node that goes with that of a weight."""
    return "/" + re.sub(r"\.(?!\d)", "/", name)


def write(folder: Path, config: Config = Config()) -> Path:
    """Write the folder; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx.data").unlink(missing_ok=True)
    onnx.save(
        _model(config),
        folder / "model.onnx",
        save_as_external_data=True,
        location="model.onnx.data",
        size_threshold=0,
    )
    for name, content in (
        ("genai_config.json", _genai_config(config)),
        ("tokenizer.json", _tokenizer()),
        ("tokenizer_config.json", _tokenizer_config(config)),
    ):
        (folder / name).write_text(json.dumps(content, indent=4), encoding="utf-8")
    return folder


def _model(config: Config) -> onnx.ModelProto:
    graph = _Graph(config=config)
    counts = _counts(graph)
    name, shape = "model.embed_tokens.weight", (config.vocab, config.hidden)
    table = seeded.around(name, config.seed, shape, 0, 1.7).astype(config.dtype)
    given = [graph.weight(name, table), "input_ids"]
    embedded = graph.op("Gather", "/model/embed_tokens/Gather", given)
    _rotary(graph)
    first = "model.layers.0.input_layernorm"
    name, out = f"{_path(first)}/LayerNorm", f"{_path(first)}/output_0"
    x = graph.norm(name, embedded, config.hidden, first, out=out)
    rest = embedded
    for layer in range(config.layers):
        place = f"model.layers.{layer}"
        attended = _attention(graph, place, x, counts, layer)
        x, rest = graph.skip_norm(f"{place}.post_attention_layernorm", rest, attended)
        fed = _mlp(graph, place, x)
        last = layer + 1 == config.layers
        after = "final_norm_layernorm" if last else "input_layernorm"
        x, rest = graph.skip_norm(f"model.layers.{layer + 1}.{after}", rest, fed, last=last)
    graph.linear("lm_head", x, config.hidden, config.vocab, out="logits")
    made = helper.make_graph(graph.nodes, "main_graph", *_border(config), graph.weights)
    domains = [helper.make_opsetid("", 22), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=domains, ir_version=10)


def _counts(graph: _Graph) -> list[str]:
    """How many tokens are there before the last one, by the mask; and how long the mask is."""
    place = "/model/attn_mask_reformat/attn_mask_subgraph"
    one = graph.constant([1])
    total = graph.op("ReduceSum", f"{place}/ReduceSum", ["attention_mask", one], keepdims=0)
    before = graph.op("Sub", f"{place}/Sub", [total, one])
    shape = graph.op("Shape", f"{place}/Shape", ["attention_mask"])
    length = graph.op("Gather", f"{place}/Gather", [shape, graph.constant(1)], axis=0)
    return [
        graph.op("Cast", f"{place}/Sub/Cast", [before], to=TensorProto.INT32),
        graph.op("Cast", f"{place}/Gather/Cast", [length], to=TensorProto.INT32),
    ]


def _rotary(graph: _Graph) -> None:
    config = graph.config
    rates = 10000 ** (-np.arange(0, config.head, 2) / config.head)
    angles = np.outer(np.arange(config.positions), rates)
    graph.weight("cos_cache", np.cos(angles).astype(config.dtype))
    graph.weight("sin_cache", np.sin(angles).astype(config.dtype))


def _attention(graph: _Graph, place: str, x: str, counts: list[str], layer: int) -> str:
    config, path = graph.config, f"{_path(place)}/attn"
    query, key = config.heads * config.head, config.kv_heads * config.head
    packed = graph.linear(f"{place}.attn.qkv_proj", x, config.hidden, query + 2 * key)
    states = [packed, "", ""]
    if config.kind == "qwen3":
        states = _normed(graph, place, packed, query, key)
    past = [f"past_key_values.{layer}.{each}" for each in ("key", "value")]
    present = [f"present.{layer}.{each}" for each in ("key", "value")]
    name = f"{path}/GroupQueryAttention"
    attended = graph.op(
        "GroupQueryAttention", name, [*states, *past, *counts, *_ROTARY],
        outputs=[f"{name}/output_0", *present], domain="com.microsoft",
        num_heads=config.heads, kv_num_heads=config.kv_heads, scale=config.head**-0.5,
        local_window_size=-1, softcap=0.0, do_rotary=1, rotary_interleaved=0,
    )  # fmt: skip
    return graph.linear(f"{place}.attn.o_proj", attended, query, config.hidden)


def _normed(graph: _Graph, place: str, packed: str, query: int, key: int) -> list[str]:
    """Queries and keys with a norm of each head; values."""
    path = f"{_path(place)}/attn"
    split = f"{path}/qkv_proj/Split"
    parts = [f"{split}/output_{index}" for index in range(3)]
    graph.op("Split", split, [packed, graph.constant([query, key, key])], outputs=parts, axis=-1)
    for index, (which, width) in enumerate((("q", query), ("k", key))):
        name, head = f"{path}/{which}_norm", graph.config.head
        heads = [parts[index], graph.constant([0, -1, head])]
        apart = graph.op("Reshape", f"{name}/Reshape_1", heads)
        normed = graph.norm(
            f"{name}/SimplifiedLayerNormalization", apart, head,
            f"{place}.attn.{which}_norm.layernorm",
        )  # fmt: skip
        shape = graph.constant([0, -1, width])
        parts[index] = graph.op("Reshape", f"{name}/Reshape_2", [normed, shape])
    return parts


def _mlp(graph: _Graph, place: str, x: str) -> str:
    config, path = graph.config, f"{_path(place)}/mlp"
    gate = graph.linear(f"{place}.mlp.gate_proj", x, config.hidden, config.intermediate)
    up = graph.linear(f"{place}.mlp.up_proj", x, config.hidden, config.intermediate)
    opened = graph.op("Sigmoid", f"{path}/act_fn/Sigmoid", [gate])
    acted = graph.op("Mul", f"{path}/act_fn/Mul", [gate, opened])
    product = graph.op("Mul", f"{path}/Mul", [acted, up])
    return graph.linear(f"{place}.mlp.down_proj", product, config.intermediate, config.hidden)


def _border(config: Config) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    real = helper.np_dtype_to_tensor_dtype(config.dtype)
    value = helper.make_tensor_value_info
    inputs = [
        value("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"]),
        value("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"]),
    ]
    outputs = [value("logits", real, ["batch_size", "sequence_length", config.vocab])]
    for which in ("key", "value"):
        for layer in range(config.layers):
            past: list[int | str | None] = [
                "batch_size",
                config.kv_heads,
                "past_sequence_length",
                "kv_cache_dim",
            ]
            now: list[int | str | None] = [
                "batch_size",
                config.kv_heads,
                "total_sequence_length",
                "kv_cache_dim",
            ]
            inputs.append(value(f"past_key_values.{layer}.{which}", real, past))
            outputs.append(value(f"present.{layer}.{which}", real, now))
    return inputs, outputs


def _genai_config(config: Config) -> dict[str, object]:
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": "model.onnx",
        "head_size": config.head,
        "hidden_size": config.hidden,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.kv_heads,
    }
    model = {
        "bos_token_id": 1,
        "context_length": config.positions,
        "decoder": decoder,
        "eos_token_id": 2,
        "pad_token_id": 3,
        "type": config.kind,
        "vocab_size": config.vocab,
    }
    search = {"do_sample": False, "max_length": config.positions, "past_present_share_buffer": True}
    return {"model": model, "search": search}


def _tokenizer() -> dict[str, object]:
    """A token for each byte, in the letters that byte-level BPE writes them in."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = [*map(chr, plain), *(chr(256 + index) for index in range(len(others)))]
    vocab = {token: index for index, token in enumerate((*SPECIAL, *letters))}
    added = [
        {
            "id": index,
            "content": token,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for index, token in enumerate(SPECIAL)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {**level, "use_regex": True},
        "post_processor": None,
        "decoder": {**level, "use_regex": True},
        "model": {"type": "BPE", "unk_token": "<unk>", "vocab": vocab, "merges": []},
    }


def _tokenizer_config(config: Config) -> dict[str, object]:
    named = zip(("unk_token", "bos_token", "eos_token", "pad_token"), SPECIAL, strict=True)
    return {
        **dict(named),
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.positions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a model folder of onnxruntime-genai.")
    parser.add_argument("folder", type=Path)
    for each in fields(Config):
        kind = int if isinstance(each.default, int) else str
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=kind, default=each.default)
    arguments = vars(parser.parse_args())
    write(arguments.pop("folder"), Config(**arguments))


if __name__ == "__main__":
    main()
