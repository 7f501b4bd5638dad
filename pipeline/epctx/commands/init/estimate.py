"""Estimates of what a compile takes, from a model's weights and what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psutil
from msgspec import Struct

from epctx.parsing.schema import providers
from epctx.text import size_words

_SHARE: Final = 0.8
"""Part of this machine's memory that a compile may take."""
_BESIDE: Final = 4
"""Pieces that are to fit into this machine's memory beside each other."""
_GB: Final = 1_000_000_000


class Estimate(Struct, frozen=True, kw_only=True):
    """Memory, size and time of a compile of models over the same weights.

    Attributes:
        weights: how many.
        memory: bytes, of all of them in one context.
        largest: bytes of memory, of the largest weight alone.
        context: bytes of the context.
        most: bytes of a context that a device loads.
        seconds: of one core.
        machine: bytes of memory that this machine has.
        measured_on: the EP's version.
    """

    weights: int
    memory: int
    largest: int
    context: int
    most: int
    seconds: float
    machine: int
    measured_on: str

    @property
    def max_memory(self) -> str | None:
        """`partition.pieces.max_memory` as the manifest writes it; None: one context will do."""
        if self.memory <= _SHARE * self.machine and self.context <= self.most:
            return None
        wanted = max(self.largest, min(self.machine // _BESIDE, 2 * self.most))
        return f"{max(1, -(-wanted // _GB) if wanted == self.largest else wanted // _GB)}GB"

    @property
    def words(self) -> tuple[str, ...]:
        """Lines for people, with the basis; none if that is next to nothing."""
        if self.memory < _GB and self.max_memory is None:
            return ()
        minutes = self.seconds / 60
        return (
            f"{self.weights / 1e9:.2f} billion weights: compiled whole, about "
            f"{size_words(self.memory)} of memory (this machine has {size_words(self.machine)}),",
            f"one context of {size_words(self.context)} (a device loads {size_words(self.most)}), "
            f"{minutes:.0f} min of one core, {size_words(2 * self.context)} of disk with the",
            f"cache: estimated from bytes and seconds a weight, measured with {self.measured_on}.",
        )


def of_model(path: Path, provider: str, models: int) -> Estimate | None:
    """Return what so many models of one source would take together on an EP; None where that was
    not measured. Weights are not read.

    Raises:
        ModelError: the model cannot be read.
    """
    import onnx_ir as ir

    from epctx.graph.serde import reader
    from epctx.graph.weights import tensors

    schema = providers.find(provider)
    if schema is None or (memory := schema.knowledge.compile_memory) is None:
        return None
    if (made := schema.knowledge.context) is None:
        return None
    values = ir.from_proto(reader.read(path)).graph.initializers.values()
    known = tensors.counts_by_kind(values)
    each = [dict([tensors.kind_and_count(value)]) for value in values]
    return Estimate(
        weights=sum(known.values()),
        memory=memory.of([known] * models),
        largest=max((memory.of([one] * models) for one in each), default=0),
        context=round(sum(made.size[kind] * known[kind] for kind in known)),
        most=made.most,
        seconds=models * sum(made.seconds[kind] * known[kind] for kind in known) / 1e9,
        machine=psutil.virtual_memory().total,
        measured_on=memory.measured_on,
    )
