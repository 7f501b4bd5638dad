"""Models of images: architectures of transformers with random weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from tests.zoo.recipes import Recipe
from tests.zoo.sources.exporting import Maker, in_turn, transformer

PATCHES: Mapping[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": 32,
    "patch_size": 8,
}
_STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 48, 64], "image_size": 64}

MODELS: Mapping[str, Mapping[str, Any]] = {
    "beit": PATCHES,
    "bit": {**_STAGES, "embedding_size": 16, "num_groups": 8},
    "convnext": _STAGES,
    "convnextv2": _STAGES,
    "data2vec-vision": PATCHES,
    "deit": PATCHES,
    "dinov2": PATCHES,
    "dpt": {**PATCHES, "backbone_out_indices": [0, 1, 1, 1], "is_hybrid": False},
    "focalnet": {"embed_dim": 16, "depths": [1, 1, 1, 1], "image_size": 64},
    "glpn": {**_STAGES, "num_attention_heads": [1, 2, 3, 4], "decoder_hidden_size": 16},
    "hiera": {"embed_dim": 16, "image_size": [64, 64], "depths": [1, 1, 1, 1]},
    "ijepa": PATCHES,
    "imagegpt": {
        "vocab_size": 16,
        "n_positions": 64,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
    },
    "levit": {"image_size": 224, "depths": [1, 1, 1]},
    "mobilenet_v1": {"depth_multiplier": 0.25, "image_size": 64},
    "mobilenet_v2": {"depth_multiplier": 0.35, "image_size": 64},
    "mobilevit": {
        "image_size": 64,
        "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [8, 16, 16, 24, 32, 40, 48],
    },
    "mobilevitv2": {"image_size": 64, "width_multiplier": 0.5},
    "poolformer": {**_STAGES, "num_encoder_blocks": 4},
    "pvt": {**_STAGES, "num_attention_heads": [1, 2, 3, 4], "depths": [1, 1, 1, 1]},
    "pvt_v2": {**_STAGES, "num_attention_heads": [1, 2, 3, 4]},
    "regnet": {**_STAGES, "embedding_size": 16, "groups_width": 8},
    "resnet": {**_STAGES, "embedding_size": 16},
    "segformer": {**_STAGES, "num_attention_heads": [1, 2, 3, 4], "decoder_hidden_size": 16},
    "seggpt": {**PATCHES, "image_size": [64, 32]},
    "siglip_vision_model": PATCHES,
    "swiftformer": {"embed_dims": [16, 24, 32, 40], "depths": [1, 1, 1, 1], "image_size": 64},
    "swin": {"embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2], "image_size": 64},
    "swin2sr": {"embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2], "image_size": 32},
    "swinv2": {"embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2], "image_size": 64},
    "textnet": {"image_size": 64},
    "timesformer": {**PATCHES, "num_frames": 2},
    "videomae": {**PATCHES, "num_frames": 2, "tubelet_size": 2},
    "vit": PATCHES,
    "vit_msn": PATCHES,
    "vitdet": {**PATCHES, "window_block_indices": [0]},
    "yolos": {**PATCHES, "image_size": [32, 32], "num_detection_tokens": 5},
}
"""By `model_type`, with what is smaller than by default."""

BOTH = frozenset({"vit", "resnet", "convnext", "swin"})
"""Written by both exporters; of the others one does."""


def _images(config: Any) -> Mapping[str, Any]:
    """One image, or two pictures of a film, of the size that the configuration names."""
    import torch

    if config.model_type == "imagegpt":
        return {"input_ids": torch.randint(0, 15, (1, 64))}
    size = getattr(config, "image_size", 64)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    channels = getattr(config, "num_channels", 3)
    if config.model_type in ("timesformer", "videomae"):
        return {"pixel_values": torch.randn(1, 2, channels, height, width)}
    if config.model_type == "seggpt":
        image = torch.randn(1, 3, height // 2, width)
        return {"pixel_values": image, "prompt_pixel_values": image, "prompt_masks": image}
    return {"pixel_values": torch.randn(1, channels, height, width)}


MAKERS: Mapping[str, Maker] = {
    kind: partial(transformer, kind, settings, _images) for kind, settings in MODELS.items()
}


def recipes() -> Iterator[Recipe]:
    """Each by one exporter in turn, some by both."""
    return in_turn(MAKERS, BOTH)
