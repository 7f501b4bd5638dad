"""Networks written with torch alone, as papers describe them: recurrent, U-shaped, generative."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.zoo.recipes import Recipe
from tests.zoo.sources.exporting import exported, network

Made = tuple[Any, tuple[Any, ...]]


def _recurrent(kind: str, both_ways: bool) -> Callable[[], Made]:
    def make() -> Made:
        from torch import nn, randn

        cells = getattr(nn, kind)(8, 16, num_layers=2, batch_first=True, bidirectional=both_ways)
        head = nn.Linear(32 if both_ways else 16, 5)
        made = network(
            {"cells": cells, "head": head},
            lambda parts, values: parts["head"](parts["cells"](values)[0]).softmax(-1),
        )
        return made, (randn(1, 12, 8),)

    return make


def _unet() -> Made:
    import torch
    from torch import nn

    def block(before: int, after: int) -> Any:
        convolution = nn.Conv2d(before, after, 3, padding=1)
        return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.SiLU())

    def forward(parts: Mapping[str, Any], image: Any) -> Any:
        first = parts["down"](image)
        second = parts["deep"](nn.functional.max_pool2d(first, 2))
        wide = nn.functional.interpolate(second, scale_factor=2.0, mode="bilinear")
        return parts["last"](parts["up"](torch.cat([first, wide], 1)))

    blocks = {"down": block(3, 8), "deep": block(8, 16), "up": block(24, 8)}
    made = network({**blocks, "last": nn.Conv2d(8, 2, 1)}, forward)
    return made, (torch.randn(1, 3, 32, 32),)


def _generator() -> Made:
    from torch import nn, randn

    layers = [
        nn.ConvTranspose2d(16, 16, 4),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 4, 2, 1),
        nn.InstanceNorm2d(8, affine=True),
        nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(8, 3, 4, 2, 1),
        nn.Tanh(),
    ]
    return nn.Sequential(*layers), (randn(1, 16, 1, 1),)


def _upscaler() -> Made:
    from torch import nn, randn

    layers = [nn.Conv2d(1, 16, 5, padding=2), nn.PReLU(16), nn.Conv2d(16, 9, 3, padding=1)]
    return nn.Sequential(*layers, nn.PixelShuffle(3)), (randn(1, 1, 16, 16),)


def _mixer() -> Made:
    from torch import nn, randn

    def forward(parts: Mapping[str, Any], values: Any) -> Any:
        turned = parts["first"](values).transpose(1, 2)
        values = values + parts["tokens"](turned).transpose(1, 2)
        return values + parts["channels"](parts["second"](values))

    def layer() -> Any:
        parts = {
            "first": nn.LayerNorm(16),
            "second": nn.LayerNorm(16),
            "tokens": nn.Sequential(nn.Linear(9, 18), nn.GELU(), nn.Linear(18, 9)),
            "channels": nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)),
        }
        return network(parts, forward)

    return nn.Sequential(layer(), layer()), (randn(1, 9, 16),)


def _encoder() -> Made:
    from torch import nn, randn

    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (randn(1, 10, 32),)


def _volumes() -> Made:
    from torch import nn, randn

    layers = [nn.Conv3d(1, 4, 3), nn.ReLU(), nn.AvgPool3d(2), nn.Flatten(), nn.Linear(108, 4)]
    return nn.Sequential(*layers), (randn(1, 1, 8, 8, 8),)


def _waves() -> Made:
    from torch import nn, randn

    layers = [
        nn.Conv1d(1, 8, 9, dilation=2, padding=8),
        nn.GLU(1),
        nn.GroupNorm(2, 4),
        nn.Hardswish(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers), (randn(1, 1, 64),)


def _depthwise() -> Made:
    from torch import nn, randn

    squeeze = [nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.ReLU6(), nn.Conv2d(4, 8, 1)]
    gated = network(
        {"gate": nn.Sequential(*squeeze)},
        lambda parts, values: values * nn.functional.hardsigmoid(parts["gate"](values)),
    )
    layers = [nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8, padding=1), gated]
    return nn.Sequential(*layers), (randn(1, 3, 16, 16),)


def _variational() -> Made:
    import torch
    from torch import nn

    def forward(parts: Mapping[str, Any], values: Any, noise: Any) -> Any:
        mean, variance = parts["encode"](values).chunk(2, -1)
        return torch.sigmoid(parts["decode"](mean + noise * torch.exp(0.5 * variance)))

    made = network({"encode": nn.Linear(16, 8), "decode": nn.Linear(4, 16)}, forward)
    return made, (torch.randn(1, 16), torch.randn(1, 4))


def _recommender() -> Made:
    import torch
    from torch import nn

    def forward(parts: Mapping[str, Any], dense: Any, sparse: Any) -> Any:
        tables = [table(sparse[:, place]) for place, table in enumerate(parts["deep"])]
        return torch.sigmoid(parts["wide"](dense) + parts["last"](torch.cat(tables, -1)))

    deep = nn.ModuleList(nn.Embedding(20, 4) for _ in range(3))
    parts = {"wide": nn.Linear(8, 1), "deep": deep, "last": nn.Linear(12, 1)}
    return network(parts, forward), (torch.randn(1, 8), torch.randint(0, 20, (1, 3)))


def _graph_convolution() -> Made:
    import torch
    from torch import nn

    def forward(parts: Mapping[str, Any], nodes: Any, edges: Any) -> Any:
        scale = edges.sum(-1, keepdim=True).clamp(min=1).rsqrt()
        edges = edges * scale * scale.transpose(0, 1)
        hidden = (edges @ parts["first"](nodes)).relu()
        return (edges @ parts["second"](hidden)).log_softmax(-1)

    made = network({"first": nn.Linear(6, 8), "second": nn.Linear(8, 3)}, forward)
    return made, (torch.randn(5, 6), (torch.rand(5, 5) > 0.5).float())


def _experts() -> Made:
    import torch
    from torch import nn

    def forward(parts: Mapping[str, Any], values: Any) -> Any:
        best, place = parts["gate"](values).softmax(-1).topk(2)
        weights = parts["experts"](place).reshape(3, 2, 8, 8)
        return torch.einsum("bk,bkio,bi->bo", best, weights, values)

    made = network({"gate": nn.Linear(8, 4), "experts": nn.Embedding(4, 64)}, forward)
    return made, (torch.randn(3, 8),)


def _detector() -> Made:
    import torch
    from torch import nn

    def forward(parts: Mapping[str, Any], image: Any) -> Any:
        found = parts["body"](image).relu()
        boxes = parts["boxes"](found).flatten(2).transpose(1, 2)
        scores, kind = parts["scores"](found).sigmoid().flatten(2).max(1)
        best, order = scores.topk(5)
        near = boxes.gather(1, order[..., None].expand(-1, -1, 4))
        return near, best, kind.gather(1, order)

    heads = {"boxes": nn.Conv2d(8, 4, 1), "scores": nn.Conv2d(8, 3, 1)}
    made = network({"body": nn.Conv2d(3, 8, 3, 2, 1), **heads}, forward)
    return made, (torch.randn(1, 3, 16, 16),)


def _rotary() -> Made:
    import torch
    from torch import nn

    def forward(parts: Mapping[str, Any], values: Any, past: Any) -> Any:
        query, key, value = parts["project"](values).chunk(3, -1)
        key = torch.cat([past, key], 1)
        angle = torch.arange(key.shape[1])[:, None] / torch.arange(1, 17)
        key = key * angle.cos() + key.roll(8, -1) * angle.sin()
        value = torch.cat([past, value], 1)
        scores = (query @ key.transpose(1, 2) * 0.25).softmax(-1)
        return scores @ value, key

    made = network({"project": nn.Linear(16, 48)}, forward)
    return made, (torch.randn(1, 1, 16), torch.randn(1, 7, 16))


MODULES: Mapping[str, Callable[[], Made]] = {
    "lstm": _recurrent("LSTM", both_ways=False),
    "lstm_bidirectional": _recurrent("LSTM", both_ways=True),
    "gru": _recurrent("GRU", both_ways=False),
    "gru_bidirectional": _recurrent("GRU", both_ways=True),
    "rnn": _recurrent("RNN", both_ways=False),
    "unet": _unet,
    "gan_generator": _generator,
    "super_resolution": _upscaler,
    "mlp_mixer": _mixer,
    "encoder_layers": _encoder,
    "conv3d": _volumes,
    "conv1d_glu": _waves,
    "depthwise_squeeze": _depthwise,
    "vae": _variational,
    "wide_and_deep": _recommender,
    "graph_convolution": _graph_convolution,
    "mixture_of_experts": _experts,
    "detector_head": _detector,
    "rotary_attention": _rotary,
}


def recipes() -> Iterator[Recipe]:
    """Each network by both exporters."""
    for name, maker in MODULES.items():
        yield from exported(f"module_{name}", maker, ("dynamo", "script"))
