"""Encoder-decoders of text and models of text and images: architectures of transformers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from tests.zoo.recipes import Recipe
from tests.zoo.sources.exporting import Maker, in_turn, transformer
from tests.zoo.sources.text import SMALL

PAIRED: Mapping[str, Any] = {
    **SMALL,
    "d_model": 64,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "decoder_start_token_id": 1,
}

TRANSLATORS: Mapping[str, Mapping[str, Any]] = {
    "bart": {},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "blenderbot": {},
    "blenderbot-small": {},
    "m2m_100": {},
    "marian": {},
    "mbart": {},
    "mt5": {"d_kv": 16, "d_ff": 128, "num_layers": 1, "num_heads": 4},
    "mvp": {},
    "pegasus": {},
    "plbart": {},
    "t5": {"d_kv": 16, "d_ff": 128, "num_layers": 1, "num_heads": 4},
    "umt5": {"d_kv": 16, "d_ff": 128, "num_layers": 1, "num_heads": 4},
}

_TOWER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 32,
    "image_size": 32,
    "patch_size": 8,
    "projection_dim": 16,
    "eos_token_id": 2,
}
TOWERS = ("clip", "siglip", "chinese_clip", "altclip", "clipseg", "blip")
"""Two towers, of text and of images."""


def _pair(config: Any) -> Mapping[str, Any]:
    import torch

    return {
        "input_ids": torch.randint(3, 250, (1, 16)),
        "attention_mask": torch.ones(1, 16, dtype=torch.int64),
        "decoder_input_ids": torch.randint(3, 250, (1, 8)),
    }


def _captioned(config: Any) -> Mapping[str, Any]:
    import torch

    return {
        "input_ids": torch.randint(3, 250, (1, 8)),
        "pixel_values": torch.randn(1, 3, 32, 32),
        "attention_mask": torch.ones(1, 8, dtype=torch.int64),
    }


MAKERS: Mapping[str, Maker] = {
    kind: partial(transformer, kind, {**PAIRED, **own}, _pair) for kind, own in TRANSLATORS.items()
} | {
    kind: partial(
        transformer,
        kind,
        {"text_config": _TOWER, "vision_config": _TOWER, "projection_dim": 16},
        _captioned,
    )
    for kind in TOWERS
}


def recipes() -> Iterator[Recipe]:
    """Translators and towers."""
    return in_turn(MAKERS, frozenset({"t5", "clip"}))
