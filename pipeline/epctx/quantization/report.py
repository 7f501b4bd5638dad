"""What is told of a model that was quantized."""

from __future__ import annotations

from msgspec import Struct


class TensorLoss(Struct, frozen=True, kw_only=True):
    """How far a tensor of the quantized model is from that of the float one, on the samples.

    Attributes:
        name: of the tensor, in the float model.
        op_type: of the node that computes it; empty: it is a weight.
        sqnr: signal-to-quantization-noise ratio, in decibels; None: there is no noise.
    """

    name: str
    op_type: str
    sqnr: float | None


class QuantizeReport(Struct, frozen=True, kw_only=True):
    """How a model was quantized, and what that costs.

    Attributes:
        preset: whose settings: qnn, openvino, cpu.
        activations: their type; None: they stay float.
        weights: their type.
        samples: how many it was calibrated with; 0: none was needed.
        random: they were generated.
        limited: tensors whose ranges begin at `range_floor`; or, where there is none, that reach
            as far as masks do, so that what matters in them is lost.
        range_floor: of the manifest; None: no range was raised.
        bodies: nodes, as If and Loop, whose bodies stay float.
        quantized: nodes of the float model whose inputs are integers now, of `nodes`.
        nodes: of the float model's main graph.
        size: of the quantized model and its data, in bytes; `float_size` of the float one.
        outputs: of the graph, in order.
        tensors: every other one that could be matched, the worst first.
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
