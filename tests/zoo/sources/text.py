"""Encoders and decoders of text: architectures of transformers with random weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from tests.zoo.recipes import Recipe
from tests.zoo.sources.exporting import Maker, in_turn, transformer

SMALL: Mapping[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Two layers that compile in a second on an NPU's simulator."""

ENCODERS: dict[str, Mapping[str, Any]] = {
    "albert": {"embedding_size": 32},
    "bert": {},
    "big_bird": {"attention_type": "original_full"},
    "camembert": {},
    "canine": {},
    "convbert": {"embedding_size": 64},
    "data2vec-text": {},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "distilbert": {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128},
    "electra": {"embedding_size": 32},
    "ernie": {},
    "esm": {},
    "flaubert": {"emb_dim": 64, "n_layers": 2, "n_heads": 4, "n_words": 256},
    "ibert": {},
    "layoutlm": {},
    "longformer": {"attention_window": 8},
    "luke": {"entity_vocab_size": 16, "entity_emb_size": 16},
    "megatron-bert": {},
    "mobilebert": {"intra_bottleneck_size": 32, "embedding_size": 32},
    "modernbert": {"cls_token_id": 1, "sep_token_id": 2, "reference_compile": False},
    "mpnet": {},
    "mra": {},
    "rembert": {"input_embedding_size": 32, "output_embedding_size": 32},
    "roberta": {},
    "roberta-prelayernorm": {},
    "roc_bert": {"pronunciation_vocab_size": 16, "shape_vocab_size": 16},
    "roformer": {"embedding_size": 64},
    "splinter": {},
    "squeezebert": {"embedding_size": 64},
    "xlm": {"emb_dim": 64, "n_layers": 2, "n_heads": 4, "n_words": 256},
    "xlm-roberta": {},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "yoso": {"use_expectation": True},
}
"""Encoders by `model_type`, with what is set beside SMALL."""

DECODERS: dict[str, Mapping[str, Any]] = {
    "biogpt": {},
    "bloom": {"n_layer": 2, "n_head": 4},
    "codegen": {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 64},
    "cohere": {"num_key_value_heads": 2},
    "ctrl": {"n_embd": 64, "n_layer": 2, "n_head": 4, "dff": 128, "n_positions": 64},
    "exaone4": {"num_key_value_heads": 2, "head_dim": 16},
    "falcon": {"new_decoder_architecture": False},
    "gemma": {"num_key_value_heads": 1, "head_dim": 16},
    "gemma2": {"num_key_value_heads": 1, "head_dim": 16},
    "gemma3_text": {"num_key_value_heads": 1, "head_dim": 16},
    "glm4": {"num_key_value_heads": 2, "head_dim": 16},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_bigcode": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    "gpt_neox": {},
    "gptj": {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 64},
    "granite": {"num_key_value_heads": 2},
    "llama": {"num_key_value_heads": 2},
    "mamba": {"state_size": 8},
    "mistral": {"num_key_value_heads": 2},
    "mpt": {"d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    "nemotron": {"num_key_value_heads": 2},
    "olmo": {"num_key_value_heads": 2},
    "olmo2": {"num_key_value_heads": 2},
    "openai-gpt": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "opt": {"word_embed_proj_dim": 64, "ffn_dim": 128},
    "persimmon": {},
    "phi": {"num_key_value_heads": 4},
    "phi3": {"num_key_value_heads": 2},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 16},
    "rwkv": {"attention_hidden_size": 64, "context_length": 64},
    "smollm3": {"num_key_value_heads": 2},
    "stablelm": {"num_key_value_heads": 2},
    "starcoder2": {"num_key_value_heads": 2},
    "xglm": {"d_model": 64, "num_layers": 2, "attention_heads": 4, "ffn_dim": 128},
}
"""Decoders by `model_type`, with what is set beside SMALL."""

BOTH = frozenset({"bert", "gpt2", "llama", "distilbert", "qwen3", "deberta-v2"})
"""Written by both exporters; of the others one does, in turn."""


def _tokens(config: Any) -> Mapping[str, Any]:
    """One sentence of sixteen tokens, none of them masked."""
    import torch

    tokens = torch.randint(3, 250, (1, 16))
    if config.model_type in ("mamba", "rwkv"):
        return {"input_ids": tokens}
    return {"input_ids": tokens, "attention_mask": torch.ones(1, 16, dtype=torch.int64)}


MAKERS: Mapping[str, Maker] = {
    kind: partial(transformer, kind, {**SMALL, **own}, _tokens)
    for kind, own in (ENCODERS | DECODERS).items()
}


def recipes() -> Iterator[Recipe]:
    """Encoders and decoders."""
    return in_turn(MAKERS, BOTH)
