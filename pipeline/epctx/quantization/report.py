"""Reports on a quantized model."""

from __future__ import annotations

from msgspec import Struct


class TensorLoss(Struct, frozen=True, kw_only=True):
    """Difference between a tensor of the quantized model and of the float model, on the samples.

    Attributes:
        name: name of the tensor in the float model.
        op_type: op type of the node that computes it; empty for a weight.
        sqnr: signal-to-quantization-noise ratio, in decibels; None if there is no noise or signal,
            or one of them is not finite.
    """

    name: str
    op_type: str
    sqnr: float | None


class QuantizeReport(Struct, frozen=True, kw_only=True):
    """Settings of a quantization, and its losses.

    Attributes:
        preset: preset of the settings: qnn, openvino, cpu.
        activations: type of activations; None if they stay float.
        weights: type of weights.
        samples: number of calibration samples; 0 if none was needed.
        random: true if the samples were generated.
        limited: tensors whose ranges begin at `range_floor`; without it, tensors whose ranges reach
            as far as masks do, so their other values lose precision.
        range_floor: the manifest's floor; None if no range was raised.
        bodies: nodes, such as If and Loop, whose bodies stay float.
        quantized: nodes of the float model whose inputs are integers now, of `nodes`.
        nodes: nodes of the float model's main graph.
        size: bytes of the quantized model and its data; `float_size` of the float model.
        outputs: losses of the graph's outputs, in order.
        tensors: losses of all other matched tensors, the worst first.
    """

    preset: str
    activations: str | None
    weights: str
    samples: int
    random: bool
    limited: tuple[str, ...]
    range_floor: float | None
    bodies: tuple[str, ...]
    quantized: int
    nodes: int
    size: int
    float_size: int
    outputs: tuple[TensorLoss, ...]
    tensors: tuple[TensorLoss, ...]
