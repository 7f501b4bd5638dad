"""Models as torch exports them, with random weights: `python exported.py NAME FOLDER`.

It writes FOLDER/NAME.onnx, and beside it the weights where there are many. For the environment
.venv-zoo, which has torch and no epctx.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

LAYERS, HEADS = 12, 12
CHANNELS = (32, 64, 128, 256)
BOTTLENECKS = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)
"""Of MobileNetV3-small, table 2 of Howard et al. 2019 (arXiv:1905.02244): kernel, channels inside,
channels, whether it squeezes and excites, whether it is hard-swish, stride."""


def module(forward: Callable[..., Any], **parts: Any) -> Any:
    """A torch module of `parts` that computes `forward(parts, *inputs)`."""

    def call(self: Any, *given: Any) -> Any:
        return forward(self.parts, *given)

    made = type("Network", (nn.Module,), {"forward": call})()
    made.parts = nn.ModuleDict(parts)
    return made


def logits(model: Any) -> Any:
    """A model of transformers without anything but its first output."""
    return module(lambda parts, given: parts["model"](given, return_dict=False)[0], model=model)


def convolutions(before: int, after: int) -> Any:
    """Two convolutions."""
    first, second = (nn.Conv2d(n, after, 3, padding=1) for n in (before, after))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())


def squeezed(channels: int) -> Any:
    """Squeeze and excite: each channel times a weight that follows from all of them."""
    less = max(8, channels // 4)
    weigh = nn.Sequential(
        nn.AdaptiveAvgPool2d(1),
        nn.Conv2d(channels, less, 1),
        nn.ReLU(),
        nn.Conv2d(less, channels, 1),
        nn.Hardsigmoid(),
    )
    return module(lambda parts, given: given * parts["weigh"](given), weigh=weigh)


def bottleneck(
    before: int, kernel: int, wide: int, after: int, squeezes: bool, hard: bool, stride: int
) -> Any:
    """Expand, convolve each channel, squeeze and excite, project; added to what was given."""
    act = nn.Hardswish if hard else nn.ReLU
    depthwise = nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False)
    own = nn.Sequential(
        *(nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide), act()),
        *(depthwise, nn.BatchNorm2d(wide), act()),
        *([squeezed(wide)] if squeezes else []),
        *(nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after)),
    )
    if stride > 1 or before != after:
        return own
    return module(lambda parts, given: given + parts["own"](given), own=own)


def mobilenet() -> Any:
    """MobileNetV3-small."""
    parts = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish()]
    before = 16
    for block in BOTTLENECKS:
        parts.append(bottleneck(before, *block))
        before = block[2]
    parts += [nn.Conv2d(before, 576, 1, bias=False), nn.BatchNorm2d(576), nn.Hardswish()]
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*parts, nn.Linear(576, 1024), nn.Hardswish(), nn.Linear(1024, 1000))


def resnet() -> Any:
    """ResNet-50."""
    return logits(transformers.ResNetForImageClassification(transformers.ResNetConfig()))


def deit() -> Any:
    """DeiT-tiny: 12 layers of 3 heads, 5.7 million parameters."""
    config = transformers.DeiTConfig(
        hidden_size=192,
        num_attention_heads=3,
        intermediate_size=768,
        num_labels=1000,
        attn_implementation="eager",
    )
    return logits(transformers.DeiTForImageClassification(config))


def unet() -> Any:
    """A UNet of Ronneberger et al. 2015 (arXiv:1505.04597), with fewer channels."""
    pairs = list(pairwise(CHANNELS))

    def forward(parts: Any, image: Any) -> Any:
        kept = [parts["first"](image)]
        for down in parts["down"]:
            kept.append(down(nn.functional.max_pool2d(kept[-1], 2)))
        found = kept.pop()
        for up, join in zip(parts["up"], parts["join"], strict=True):
            found = join(torch.cat([up(found), kept.pop()], 1))
        return parts["last"](found)

    return module(
        forward,
        first=convolutions(3, CHANNELS[0]),
        down=nn.ModuleList(convolutions(*pair) for pair in pairs),
        up=nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs)),
        join=nn.ModuleList(convolutions(2 * a, a) for a, _ in reversed(pairs)),
        last=nn.Conv2d(CHANNELS[0], 1, 1),
    )


def llama() -> Any:
    """A Llama of 134 million parameters, which takes its cache of keys and values and gives it."""
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        attn_implementation="eager",
    )

    def forward(parts: Any, ids: Any, mask: Any, positions: Any, *past: Any) -> Any:
        cache = transformers.DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        given = {"attention_mask": mask, "position_ids": positions, "past_key_values": cache}
        scores = parts["model"](ids, **given, return_dict=False)[0]
        return scores, *(each for layer in cache.layers for each in (layer.keys, layer.values))

    model = transformers.LlamaForCausalLM(config)
    for name, weights in model.named_parameters():
        if "norm" in name:
            nn.init.uniform_(weights, 0.5, 1.5)
    return module(forward, model=model)


MODELS: Mapping[str, tuple[Callable[[], Any], int]] = {
    "mobilenet": (mobilenet, 224),
    "resnet": (resnet, 224),
    "deit": (deit, 224),
    "unet": (unet, 256),
}
"""By name: what makes it, and the height and width of its image."""


def tokens(count: int, past: int = 64) -> tuple[Any, ...]:
    """What a Llama takes for so many tokens that come after `past` others."""
    caches = (torch.zeros(1, HEADS, past, 64) for _ in range(2 * LAYERS))
    ids = torch.zeros(1, count, dtype=torch.int32)
    mask = torch.zeros(1, 1, count, past + count)
    return ids, mask, torch.arange(past, past + count, dtype=torch.int32)[None], *caches


def export(model: Any, inputs: Any, path: Path) -> None:
    """Write a model."""
    torch.onnx.export(model.eval(), inputs, path, dynamo=True, opset_version=18, verbose=False)


def main(name: str, folder: str) -> None:
    """Write a model, or of a Llama one for a prompt of 64 tokens and one for a token."""
    torch.manual_seed(0)
    if name == "llama":
        model = llama()
        export(model, tokens(64), Path(folder) / "prefill.onnx")
        export(model, tokens(1), Path(folder) / "decode.onnx")
        return
    make, size = MODELS[name]
    export(make(), (torch.zeros(1, 3, size, size),), Path(folder) / f"{name}.onnx")


if __name__ == "__main__":
    main(*sys.argv[1:])
