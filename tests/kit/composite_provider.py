"""An EP that is given more than it compiles, and gives back the rest, as ONNX Runtime's do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from epctx.files.digest import of_bytes
from epctx.graph import epcontext
from epctx.graph.epcontext import EPContextNode
from epctx.graph.model import OptimizedModel, Partition, Replacement
from epctx.graph.partition import surgery
from epctx.manifest import PartitionSettings
from epctx.providers.base import ContextBinary, PartitionedModel, SessionGroupSpec, Workspace
from epctx.stages import partition
from tests.kit.fake_providers import Taker, op_types
from tests.kit.onnx_text import names


class Composite(Taker):
    """Wants every node, as QNN through ONNX Runtime does, and compiles those of `taken`."""

    def __init__(self, *taken: str, label: str) -> None:
        super().__init__(lambda node: True, label=label)
        self.taken = taken
        self.sources = frozenset({label})
        self.asked: list[list[str | None]] = []

    def open_workspace(self, session_group: SessionGroupSpec) -> CompositeWorkspace:
        return CompositeWorkspace(self)


class CompositeWorkspace(Workspace):
    """Replaces what its EP takes of a partition by EPContext nodes, and gives back the rest."""

    def __init__(self, provider: Composite) -> None:
        self._provider = provider
        self._nodes: dict[str, list[ir.Node]] = {}

    def compile(
        self, model: PartitionedModel, partitions: Sequence[Partition]
    ) -> Sequence[Replacement]:
        label = self._provider.label
        self._nodes[model.name] = [node for each in partitions for node in each.nodes]
        self._provider.asked += [names(each.nodes) for each in partitions]
        made: list[Replacement] = []
        for number, each in enumerate(partitions):
            part = surgery.extract(model.model, each)
            whole = OptimizedModel(name="part", model=part, passes=(), digest=of_bytes(b""))
            inner = partition.run(whole, [op_types(*self._provider.taken)], PartitionSettings())
            surgery.splice(
                part,
                [
                    Replacement(partition=p, fragment=context(p, f"{label}_{number}_{i}", label))
                    for i, p in enumerate(inner.partitions)
                ],
            )
            if inner.partitions:
                made.append(Replacement(partition=each, fragment=part))
        return made

    def left_out(self, model: str) -> Mapping[ir.Node, str]:
        mine = [n for n in self._nodes.get(model, ()) if n.op_type not in self._provider.taken]
        return {node: f"no {node.op_type} in {self._provider.label}" for node in mine}

    def finish(self) -> Sequence[ContextBinary]:
        return ()

    def close(self) -> None:
        pass


def context(taken: Partition, name: str, source: str) -> ir.Model:
    def value(known: ir.Value) -> ir.Value:
        return ir.Value(name=known.name, type=known.type, shape=known.shape)

    inputs, outputs = list(map(value, taken.inputs)), list(map(value, taken.outputs))
    node = EPContextNode(
        name=name,
        inputs=tuple(str(v.name) for v in inputs),
        outputs=tuple(str(v.name) for v in outputs),
        ep_cache_context=b"payload",
        embed_mode=1,
        source=source,
    )
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=[node.to_ir(inputs, outputs)],
        opset_imports={"": 21, epcontext.DOMAIN: 1},
        name=name,
    )
    return ir.Model(graph, ir_version=10)
