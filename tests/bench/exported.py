"""Models as torch exports them, with random weights: `python exported.py NAME FOLDER`.

It writes FOLDER/NAME.onnx, and beside it the weights where there are many. For the environment
.venv-zoo, which has torch and no epctx.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import torch
import transformers
from torch import nn

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Logits(nn.Module):
    """A model of transformers without anything but its first output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Its logits."""
        found: torch.Tensor = self.model(given, return_dict=False)[0]
        return found


class Block(nn.Sequential):
    """Two convolutions."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(
            nn.Conv2d(before, after, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1),
            nn.ReLU(),
        )


class Squeeze(nn.Module):
    """Squeeze and excite: each channel times a weight that follows from all of them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        less = max(8, channels // 4)
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, less, 1),
            nn.ReLU(),
            nn.Conv2d(less, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """The channels, weighed."""
        weighed: torch.Tensor = given * self.weigh(given)
        return weighed


class Bottleneck(nn.Module):
    """Expand, convolve each channel, squeeze and excite, project; added to what was given."""

    def __init__(
        self,
        before: int,
        kernel: int,
        wide: int,
        after: int,
        squeezes: bool,
        hard: bool,
        stride: int,
    ) -> None:
        super().__init__()
        act = nn.Hardswish if hard else nn.ReLU
        padding = kernel // 2
        depthwise = nn.Conv2d(wide, wide, kernel, stride, padding, groups=wide, bias=False)
        parts = [nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide), act()]
        parts += [depthwise, nn.BatchNorm2d(wide), act()]
        parts += [Squeeze(wide)] if squeezes else []
        parts += [nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after)]
        self.parts = nn.Sequential(*parts)
        self.adds = stride == 1 and before == after

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """What the next one is given."""
        found: torch.Tensor = self.parts(given)
        return given + found if self.adds else found


class MobileNet(nn.Sequential):
    """MobileNetV3-small: table 2 of Howard et al. 2019 (arXiv:1905.02244)."""

    BLOCKS = (
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

    def __init__(self) -> None:
        first = nn.Conv2d(3, 16, 3, 2, 1, bias=False)
        parts: list[nn.Module] = [first, nn.BatchNorm2d(16), nn.Hardswish()]
        before = 16
        for block in self.BLOCKS:
            parts.append(Bottleneck(before, *block))
            before = block[2]
        parts += [nn.Conv2d(before, 576, 1, bias=False), nn.BatchNorm2d(576), nn.Hardswish()]
        parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        parts += [nn.Linear(576, 1024), nn.Hardswish(), nn.Linear(1024, 1000)]
        super().__init__(*parts)


class UNet(nn.Module):
    """Of Ronneberger et al. 2015 (arXiv:1505.04597), with fewer channels."""

    def __init__(self, channels: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        pairs = list(pairwise(channels))
        self.first = Block(3, channels[0])
        self.down = nn.ModuleList(Block(*pair) for pair in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs))
        self.join = nn.ModuleList(Block(2 * a, a) for a, _ in reversed(pairs))
        self.last = nn.Conv2d(channels[0], 1, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """A mask as large as the image."""
        kept = [self.first(image)]
        for down in self.down:
            kept.append(down(nn.functional.max_pool2d(kept[-1], 2)))
        found = kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            found = join(torch.cat([up(found), kept.pop()], 1))
        mask: torch.Tensor = self.last(found)
        return mask


def _image(size: int) -> tuple[torch.Tensor]:
    return (torch.zeros(1, 3, size, size),)


def mobilenet() -> Made:
    """MobileNetV3-small."""
    return MobileNet(), _image(224)


def resnet() -> Made:
    """ResNet-50."""
    return Logits(transformers.ResNetForImageClassification(transformers.ResNetConfig())), _image(
        224
    )


def deit() -> Made:
    """DeiT-tiny: 12 layers of 3 heads, 5.7 million parameters."""
    config = transformers.DeiTConfig(
        hidden_size=192,
        num_attention_heads=3,
        intermediate_size=768,
        num_labels=1000,
        attn_implementation="eager",
    )
    return Logits(transformers.DeiTForImageClassification(config)), _image(224)


def unet() -> Made:
    """A small UNet."""
    return UNet(), _image(128)


MODELS: Mapping[str, Callable[[], Made]] = {
    "mobilenet": mobilenet,
    "resnet": resnet,
    "deit": deit,
    "unet": unet,
}


def main(name: str, folder: str) -> None:
    """Write a model."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    path = Path(folder) / f"{name}.onnx"
    torch.onnx.export(model.eval(), inputs, path, dynamo=True, opset_version=18, verbose=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
