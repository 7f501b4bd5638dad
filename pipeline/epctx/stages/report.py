"""What happened to one model or composition, as workers tell it and the build report has it."""

from __future__ import annotations

from msgspec import Struct

from epctx.graph.model import Decline, Outline, PassRecord, Placement
from epctx.quantization.report import QuantizeReport


class PartitionReport(Struct, frozen=True, kw_only=True):
    """A partition: the provider's alias, its size in nodes, its border by value name."""

    provider: str
    nodes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class ModelReport(Struct, frozen=True, kw_only=True):
    """What happened to one model.

    Attributes:
        nodes: nodes of the optimized model's main graph.
        coverage: EP nodes over all nodes, boundary Quantize/DequantizeLinear apart, 0 to 1.
        partitions: where it was compiled, one for each EPContext node of the published model.
        declined: each node left to the default EP, and why.
        outline: the optimized model's nodes, and in which of `partitions` they are; None: it was
            not compiled.
        placement: what is in the published model; None: it was not compiled.
        notes: what load noted of the source: what ONNX forbids and ONNX Runtime takes.
        quantized: how it was quantized; None: it was not.
        unstable: why its EPs may write other bytes at each build, and what to do.
    """

    name: str
    passes: tuple[PassRecord, ...]
    nodes: int
    coverage: float
    partitions: tuple[PartitionReport, ...]
    declined: tuple[Decline, ...]
    outline: Outline | None = None
    placement: Placement | None = None
    notes: tuple[str, ...] = ()
    quantized: QuantizeReport | None = None
    unstable: tuple[str, ...] = ()


class CompositionReport(Struct, frozen=True, kw_only=True):
    """How a composition is wired; what is of a part is written `part.name`.

    Attributes:
        parts: `group/model` of each part, in the order in which they run.
        links: input of a part to the output that feeds it.
        inputs: input of the composition to the inputs of parts that it feeds.
        outputs: output of the composition to the output of a part that it is.
    """

    parts: dict[str, str]
    links: dict[str, str]
    inputs: dict[str, tuple[str, ...]]
    outputs: dict[str, str]
