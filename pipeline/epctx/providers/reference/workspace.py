"""Compiling: the sessions of a session group put their graphs into one context.

Source: spec/ep-context-design.md, "Implementation Guidelines for EPContext Model Generation with
Weight Sharing" and "EP Context Cache Model Generation Guidelines".
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from epctx.error_codes import Code
from epctx.errors import CompileError
from epctx.graph.epcontext import EPContextNode
from epctx.graph.model import Partition, Replacement
from epctx.graph.partition import surgery
from epctx.providers import contexts
from epctx.providers.base import ContextBinary, PartitionedModel, SessionGroupSpec, Workspace
from epctx.providers.reference.layout import Meta
from epctx.providers.reference.lowering import lower
from epctx.providers.reference.notes import Notes
from epctx.providers.reference.options import ReferenceOptions
from epctx.providers.reference.writer import ContextWriter, Graph

LARGEST_PAYLOAD = 2**31 - 2**20
"""Bytes: what protobuf holds, less room for the model around the payload."""


class ReferenceWorkspace(Workspace):
    """The graphs that the sessions so far have compiled.

    The first session names the context binary, whether or not it has a graph in it. `max_size` of
    a node is the bytes of stored weights of the largest graph that its model has in the context:
    what a runtime must be able to map at once to run any of them.
    """

    def __init__(self, options: ReferenceOptions, session_group: SessionGroupSpec) -> None:
        self._options = options
        self._spec = session_group
        self._writer = self._empty()

    def compile(
        self, model: PartitionedModel, partitions: Sequence[Partition]
    ) -> Sequence[Replacement]:
        """Compile one model's partitions: one session.

        Raises:
            CompileError: embedding and sharing do not go together, a graph of this name is in the
                context already, or the payload would exceed what an ONNX model holds.
        """
        if self._spec.embed_mode and self._spec.sharing:
            raise CompileError(
                "an embedded context cannot be shared",
                where=f"sharing group of {', '.join(self._spec.models)}",
                remedy="set `embed_mode: 0`, or take the models out of `sharing_groups`",
            )
        graphs = [self._lower(model, part, k) for k, part in enumerate(partitions)]
        self._add(graphs)
        nodes = self._nodes(model, partitions, graphs)
        return [
            contexts.replace_by_node(model.model, partition, node)
            for partition, node in zip(partitions, nodes, strict=True)
        ]

    def finish(self) -> Sequence[ContextBinary]:
        """The binary, `[first model]_[ep].bin`; none when embedded or when nothing was compiled."""
        if self._spec.embed_mode or not self._writer.graphs:
            return ()
        return (ContextBinary(name=self._binary, chunks=self._writer.chunks),)

    def close(self) -> None:
        """Forget all graphs: whoever compiles next is the first session."""
        self._writer = self._empty()

    @property
    def _binary(self) -> str:
        return f"{self._spec.first}_{self._options.source}.bin"

    def _empty(self) -> ContextWriter:
        needed = msgspec.structs.asdict(self._options.toolchain)
        return ContextWriter(meta=Meta(**needed, source=self._options.source))

    def _lower(self, model: PartitionedModel, partition: Partition, number: int) -> Graph:
        name = f"{self._spec.node_name_prefix}{model.name}_{self._options.source}_{number}"
        subgraph = surgery.extract(model.model, partition)
        return lower(subgraph, name=name, model=f"{model.name}.onnx")

    def _add(self, graphs: Sequence[Graph]) -> None:
        known = {graph.name for graph in self._writer.graphs}
        for graph in graphs:
            if graph.name in known:
                raise CompileError(
                    f"the context already has a graph called {graph.name!r}",
                    where=graph.model,
                    remedy="give the models of a sharing group different names",
                )
        self._writer.graphs.extend(graphs)

    def _nodes(
        self, model: PartitionedModel, partitions: Sequence[Partition], graphs: Sequence[Graph]
    ) -> list[EPContextNode]:
        content = self._payload(model) if self._spec.embed_mode else self._binary.encode()
        largest = max((graph.weight_bytes for graph in graphs), default=0)
        return [
            EPContextNode(
                name=graph.name,
                inputs=tuple(value.name or "" for value in partition.inputs),
                outputs=tuple(value.name or "" for value in partition.outputs),
                main_context=1 if graph is graphs[0] else 0,
                ep_cache_context=content if graph is graphs[0] else None,
                embed_mode=self._spec.embed_mode,
                ep_sdk_version=self._options.sdk_version,
                onnx_model_filename=graph.model,
                hardware_architecture=self._options.hardware_architecture,
                partition_name=graph.name,
                source=self._options.source,
                notes=Notes(graph=str(graph.digest), notes=self._options.notes).text,
                max_size=largest,
            )
            for graph, partition in zip(graphs, partitions, strict=True)
        ]

    def _payload(self, model: PartitionedModel) -> bytes:
        pieces = []
        size = 0
        for piece in self._writer.chunks():
            size += len(piece)
            if size > LARGEST_PAYLOAD:
                raise CompileError(
                    "the context does not fit into an ONNX model, which holds 2 GB",
                    model=model.name,
                    remedy="set `embed_mode: 0`",
                    code=Code.OUTPUT_TOO_LARGE,
                )
            pieces.append(piece)
        return b"".join(pieces)
