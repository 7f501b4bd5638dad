"""Execution providers that only say what they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from epctx.files.digest import of_bytes
from epctx.graph.epcontext import EPContextNode
from epctx.graph.model import OptimizedModel
from epctx.manifest import PartitionSettings
from epctx.providers.base import (
    Capability,
    ExecutionProvider,
    Fingerprint,
    Kernel,
    PartitionedModel,
    SessionGroupSpec,
    SharedContexts,
    Workspace,
)
from epctx.stages import partition


class Fake(ExecutionProvider):
    """An EP that has not been asked for anything yet: each test's own says what it answers."""

    name = "FakeExecutionProvider"
    label = "fake"
    sources = frozenset({"fake"})

    def fingerprint(self) -> Fingerprint:
        raise AssertionError("nobody asks it for a fingerprint")

    def get_capability(self, model: ir.Model) -> Capability:
        raise AssertionError("nobody asks it for nodes")

    def open_workspace(self, session_group: SessionGroupSpec) -> Workspace:
        raise AssertionError("nobody compiles on it")

    def load(
        self, nodes: Sequence[EPContextNode], folder: Path | None, shared: SharedContexts | None
    ) -> Sequence[Kernel]:
        raise AssertionError("nobody loads its nodes")


class Taker(Fake):
    """Takes the nodes that `takes` says it takes."""

    name = "TakerExecutionProvider"
    sources = frozenset({"taker"})

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


def partitioned(
    model: ir.Model, *providers: Taker, settings: PartitionSettings | None = None
) -> PartitionedModel:
    """The partition stage's answer."""
    optimized = OptimizedModel(name="m", model=model, passes=(), digest=of_bytes(b""))
    return partition.run(optimized, providers, settings or PartitionSettings())
