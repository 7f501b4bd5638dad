"""Execution providers that only say what they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import onnx_ir as ir

from epctx.files.digest import of_bytes
from epctx.graph.model import OptimizedModel
from epctx.manifest import PartitionSettings
from epctx.providers.base import Capability, ExecutionProvider, PartitionedModel
from epctx.stages import partition


class Taker:
    """Takes the nodes that `takes` says it takes."""

    name = "TakerExecutionProvider"
    sources = frozenset({"taker"})
    isolated = False
    can_share = False
    native = False

    def __init__(
        self,
        takes: Callable[[ir.Node], bool],
        *,
        label: str = "taker",
        declines: Mapping[str, str] | None = None,
    ) -> None:
        self.label = label
        self._takes = takes
        self._declines = declines or {}

    def get_capability(self, model: ir.Model) -> Capability:
        return Capability(
            nodes=[node for node in model.graph if self._takes(node)],
            declined={
                node: self._declines[node.op_type]
                for node in model.graph
                if node.op_type in self._declines
            },
        )


def op_types(*taken: str, label: str = "taker") -> Taker:
    """Takes the nodes of these op types."""
    return Taker(lambda node: node.op_type in taken, label=label)


def eps(*found: Taker) -> Sequence[ExecutionProvider]:
    """What the partition stage asks of an EP, such a fake has."""
    return cast(Sequence[ExecutionProvider], found)


def partitioned(
    model: ir.Model, *providers: Taker, settings: PartitionSettings | None = None
) -> PartitionedModel:
    """The partition stage's answer."""
    optimized = OptimizedModel(name="m", model=model, passes=(), digest=of_bytes(b""))
    return partition.run(optimized, eps(*providers), settings or PartitionSettings())
