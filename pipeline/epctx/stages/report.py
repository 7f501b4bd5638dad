"""Reports on one model or composition, as workers return them and the build report has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from epctx.graph.model import CutPoint, Decline, Outline, PassRecord, Placement
from epctx.quantization.report import QuantizeReport
from epctx.text import size_words

_SHOWN: Final = 4
"""Maximum number of values of a cut that are named."""


class PartitionReport(Struct, frozen=True, kw_only=True):
    """A partition: the provider's alias, its size in nodes, its border by value name."""

    provider: str
    nodes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class PieceReport(Struct, frozen=True, kw_only=True):
    """A piece of a model, which is compiled by itself.

    Attributes:
        nodes: nodes of the optimized model, and those that are computed again in it.
        weights: bytes of the initializers that it uses.
        memory: bytes that its compile should take at most, with the other models of its sharing
            group; None if the EP was not measured.
        cut: its end; None for the last piece.
    """

    nodes: int
    weights: int
    memory: int | None
    cut: CutPoint | None = None

    def words(self, number: int) -> tuple[str, ...]:
        """Describe the piece, and its end in a second line."""
        memory = "" if self.memory is None else f", about {size_words(self.memory)} to compile"
        nodes = f"{self.nodes} node{'s' * (self.nodes != 1)}"
        head = f"piece {number}: {nodes}, {size_words(self.weights)} of weights{memory}"
        if self.cut is None:
            return (head,)
        count, listed = len(self.cut.values), ", ".join(self.cut.values[:_SHOWN])
        more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
        several = f"{count} values of {size_words(self.cut.bytes)} cross"
        crossing = several if count != 1 else f"1 value of {size_words(self.cut.bytes)} crosses"
        again = f"; {len(self.cut.recomputed)} are computed again" if self.cut.recomputed else ""
        after = f"cut after {self.cut.after}: {self.cut.why}"
        return head, f"{after}; {crossing} ({listed}{more}){again}"


class ModelReport(Struct, frozen=True, kw_only=True):
    """Report on one model.

    Attributes:
        nodes: nodes of the optimized model's main graph.
        coverage: share of nodes on EPs, 0 to 1, without boundary Quantize/DequantizeLinear.
        partitions: partitions, one for each EPContext node of the published model.
        declined: nodes left to the default EP, with reasons.
        outline: the optimized model's nodes with their partitions; None if not compiled.
        placement: counts of the published model; None if not compiled.
        notes: notes of load on features of the source that ONNX forbids and ONNX Runtime accepts.
        quantized: report of the quantization; None if it was not quantized.
        ops: operators that EPs made, by name of the node, if their options ask for a trace. ONNX
            Runtime may have inserted nodes, which `outline` lacks.
        unstable: reasons why its EPs may write other bytes at each build, with remedies.
        pieces: pieces in which it was compiled; none if it was compiled whole.
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
    ops: Mapping[str, tuple[str, ...]] = {}
    unstable: tuple[str, ...] = ()
    pieces: tuple[PieceReport, ...] = ()

    @property
    def piece_lines(self) -> tuple[str, ...]:
        """Lines that describe its pieces and cuts; none if it was compiled whole."""
        pieces = enumerate(self.pieces, start=1)
        return tuple(line for number, piece in pieces for line in piece.words(number))


class CompositionReport(Struct, frozen=True, kw_only=True):
    """Wiring of a composition; a part's input or output is written `part.name`.

    Attributes:
        parts: `group/model` of each part, in the order in which they run.
        links: input of a part to the output that feeds it.
        inputs: input of the composition to the inputs of parts that it feeds.
        outputs: output of the composition to the output of the part that makes it.
    """

    parts: dict[str, str]
    links: dict[str, str]
    inputs: dict[str, tuple[str, ...]]
    outputs: dict[str, str]
