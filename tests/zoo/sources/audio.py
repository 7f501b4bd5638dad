"""Models of sound and of time series: architectures of transformers with random weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from tests.zoo.recipes import Recipe
from tests.zoo.sources.exporting import Maker, in_turn, transformer
from tests.zoo.sources.sequences import PAIRED

WAVES: Mapping[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": [16, 16, 16],
    "conv_stride": [4, 4, 4],
    "conv_kernel": [8, 4, 4],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.0,
    "mask_feature_prob": 0.0,
}

LISTENERS: Mapping[str, Mapping[str, Any]] = {
    "data2vec-audio": WAVES,
    "hubert": WAVES,
    "sew": {**WAVES, "squeeze_factor": 2},
    "unispeech": WAVES,
    "unispeech-sat": WAVES,
    "wav2vec2": WAVES,
    "wavlm": WAVES,
    "audio-spectrogram-transformer": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_length": 64,
        "num_mel_bins": 32,
    },
    "whisper": {
        **PAIRED,
        "num_mel_bins": 16,
        "max_source_positions": 32,
        "max_target_positions": 32,
    },
    "speech_to_text": {
        **PAIRED,
        "input_feat_per_channel": 16,
        "conv_channels": 32,
        "max_source_positions": 128,
        "max_target_positions": 32,
    },
    "patchtst": {"context_length": 64, "num_input_channels": 2, "d_model": 32},
    "patchtsmixer": {"context_length": 64, "num_input_channels": 2, "d_model": 32},
}
"""By `model_type`, with what is smaller than by default."""


def _sounds(config: Any) -> Mapping[str, Any]:
    import torch

    kind = config.model_type
    starts = {"decoder_input_ids": torch.randint(3, 250, (1, 4))}
    if kind == "whisper":
        return {"input_features": torch.randn(1, 16, 64), **starts}
    if kind == "speech_to_text":
        return {"input_features": torch.randn(1, 64, 16), **starts}
    if kind == "audio-spectrogram-transformer":
        return {"input_values": torch.randn(1, 64, 32)}
    if kind in ("patchtst", "patchtsmixer"):
        return {"past_values": torch.randn(1, 64, 2)}
    return {"input_values": torch.randn(1, 2048)}


MAKERS: Mapping[str, Maker] = {
    kind: partial(transformer, kind, settings, _sounds) for kind, settings in LISTENERS.items()
}


def recipes() -> Iterator[Recipe]:
    """Each by one exporter in turn; wav2vec2 by both."""
    return in_turn(MAKERS, frozenset({"wav2vec2"}))
