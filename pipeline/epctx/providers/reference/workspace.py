"""Compile: the sessions of a session group put their graphs into one context.

Source: spec/ep-context-design.md, "Implementation Guidelines for EPContext Model Generation with
Weight Sharing" and "EP Context Cache Model Generation Guidelines".

`lower` turns a partition into a graph of the context binary, and takes its weights out.

Small tensors stay in the graph, as do tensors that ONNX Runtime may read before weights are bound
(shapes, axes, splits). Weights inside control-flow bodies and Constant nodes are taken out too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count

import msgspec
import onnx_ir as ir
from msgspec import Struct, field
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from epctx.error_codes import Code
from epctx.errors import CompileError
from epctx.files.digest import Buffer, Digest, of_bytes
from epctx.graph.epcontext import EPContextNode
from epctx.graph.model import Partition, Replacement
from epctx.graph.partition import surgery
from epctx.graph.serde import canonical
from epctx.graph.weights import tensors
from epctx.providers import contexts
from epctx.providers.base import ContextBinary, PartitionedModel, SessionGroupSpec, Workspace
from epctx.providers.reference.layout import (
    KINDS,
    NO_CHECKSUM,
    PREFIX_SIZE,
    REFERENCE_PREFIX,
    SECTION_ALIGNMENT,
    TENSOR,
    TENSOR_ALIGNMENT,
    GraphEntry,
    Meta,
    Notes,
    Section,
    TensorEntry,
    align,
    pack_json,
    pack_prefix,
    pack_tensors,
    raw,
)
from epctx.providers.reference.options import ReferenceOptions

Chunks = Callable[[], Iterator[Buffer]]


class Weight(Struct, frozen=True, kw_only=True):
    """A tensor's bytes, identified by content: `length` > 0, and their source."""

    digest: Digest
    length: int
    chunks: Chunks


class Graph(Struct, frozen=True, kw_only=True):
    """A graph to store: its ModelProto, and the weights that the ModelProto refers to by digest."""

    name: str
    model: str
    proto: bytes
    weights: tuple[Weight, ...]

    @property
    def digest(self) -> Digest:
        """Digest of the graph with its weights."""
        return of_bytes(self.proto)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the graph's weights, each content counted once."""
        return sum({w.digest: w.length for w in self.weights}.values())


class ContextWriter(Struct, kw_only=True):
    """Writer of the graphs and weights of one context. The same graphs in the same order give the
    same bytes.
    """

    meta: Meta
    graphs: list[Graph] = field(default_factory=list)

    def chunks(self) -> Iterator[Buffer]:
        """Yield the file in pieces, without holding weights in memory. `layout` describes the
        format.
        """
        weights = self._weights()
        contents = [pack_json(self.meta), pack_json(self._entries()), self._protos()]
        lengths = [*map(len, contents), TENSOR.size * len(weights)]
        offsets = _place(PREFIX_SIZE, lengths, SECTION_ALIGNMENT)
        data = align(offsets[-1] + lengths[-1], TENSOR_ALIGNMENT)
        tensors = _tensors(data, weights)
        size = tensors[-1].end if tensors else data
        contents.append(pack_tensors(tensors))
        sections = [
            Section(kind=kind, offset=offset, length=len(content), digest=raw(of_bytes(content)))
            for kind, offset, content in zip(KINDS, offsets, contents, strict=False)
        ]
        sections.append(
            Section(kind=KINDS[-1], offset=data, length=size - data, digest=NO_CHECKSUM)
        )
        yield pack_prefix(sections, size)
        position = PREFIX_SIZE
        for section, content in zip(sections, [*contents, b""], strict=True):
            yield bytes(section.offset - position)
            yield content
            position = section.offset + len(content)
        for entry, weight in zip(tensors, weights, strict=True):
            yield bytes(entry.offset - position)
            yield from weight.chunks()
            position = entry.end

    def _weights(self) -> list[Weight]:
        """Return every weight once, in the order of first use."""
        return list({w.digest: w for graph in self.graphs for w in graph.weights}.values())

    def _protos(self) -> bytes:
        return b"".join(graph.proto for graph in self.graphs)

    def _entries(self) -> list[GraphEntry]:
        offset = 0
        entries = []
        for graph in self.graphs:
            length = len(graph.proto)
            entries.append(
                GraphEntry(
                    name=graph.name,
                    model=graph.model,
                    offset=offset,
                    length=length,
                    weights=graph.weight_bytes,
                )
            )
            offset += length
        return entries


def _place(start: int, lengths: Sequence[int], alignment: int) -> list[int]:
    """Return the aligned offsets of consecutive parts of these lengths."""
    offsets = []
    for length in lengths:
        offsets.append(align(start, alignment))
        start = offsets[-1] + length
    return offsets


def _tensors(start: int, weights: Sequence[Weight]) -> list[TensorEntry]:
    offsets = _place(start, [weight.length for weight in weights], TENSOR_ALIGNMENT)
    return [
        TensorEntry(offset=offset, length=weight.length, digest=weight.digest)
        for offset, weight in zip(offsets, weights, strict=True)
    ]


INLINE_BYTES = 1024
"""Tensors smaller than this stay in the graph."""

INLINE_INDICES = 8192
"""One-dimensional integer tensors with up to this many elements stay in the graph, since shape
inference may need them."""

_STORED_WIDTHS = frozenset({2, 4, 8, 16, 32, 64})
"""Element widths, in bits, that ONNX Runtime takes from a buffer."""
_NOT_STORED = frozenset({ir.DataType.STRING, ir.DataType.COMPLEX64})


def lower(subgraph: ir.Model, *, name: str, model: str) -> Graph:
    """Take the weights out of a partition's model. Changes the model.

    Args:
        subgraph: model of the partition alone.
        name: name of the graph in the context.
        model: file name of the model that the partition is a part of.
    """
    LiftConstantsToInitializersPass(size_limit=INLINE_BYTES // 8)(subgraph)
    _hoist(subgraph)
    subgraph.graph.name = name
    weights = []
    for value in subgraph.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and is_stored(tensor):
            digest, chunks = tensors.content_digest(tensor), partial(tensors.chunks, tensor)
            weights.append(Weight(digest=digest, length=tensor.nbytes, chunks=chunks))
            value.const_value = tensors.external(tensor, REFERENCE_PREFIX + digest.hex)
    proto = canonical.serialize(subgraph)
    return Graph(name=name, model=model, proto=proto, weights=tuple(weights))


def is_stored(tensor: ir.TensorProtocol) -> bool:
    """Tell whether a tensor is stored in the table of tensors."""
    if tensor.dtype in _NOT_STORED or tensor.dtype.bitwidth not in _STORED_WIDTHS:
        return False
    integers = tensor.dtype in (ir.DataType.INT32, ir.DataType.INT64)
    if integers and tensor.shape.rank() == 1 and tensor.size <= INLINE_INDICES:
        return False
    return tensor.nbytes >= INLINE_BYTES


def _hoist(model: ir.Model) -> None:
    """Move the weights of control-flow bodies to the main graph, where they can be bound."""
    fresh = _fresh_names(model)
    for graph in model.graphs():
        if graph is model.graph:
            continue
        for name, value in tuple(graph.initializers.items()):
            tensor = value.const_value
            edge = value.is_graph_input() or value.is_graph_output()
            if tensor is None or edge or not is_stored(tensor):
                continue
            del graph.initializers[name]
            value.name = next(fresh)
            model.graph.register_initializer(value)


def _fresh_names(model: ir.Model) -> Iterator[str]:
    """Yield names that no value of any graph has. Deterministic for a model."""
    taken: set[str | None] = set()
    for graph in model.graphs():
        taken.update(value.name for value in (*graph.inputs, *graph.initializers.values()))
        taken.update(value.name for node in graph for value in node.outputs)
    return (name for name in (f"hoisted_{i}" for i in count()) if name not in taken)


LARGEST_PAYLOAD = 2**31 - 2**20
"""Largest payload in bytes: protobuf's limit, less room for the model around the payload."""


class ReferenceWorkspace(Workspace):
    """The graphs that the sessions so far have compiled.

    The first session names the context binary, even if it compiled no graph. A node's `max_size` is
    the stored weights, in bytes, of the largest graph that the node's model has in the context. A
    runtime must be able to map that much at once to run any of these graphs.
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
            CompileError: the group both embeds and shares, the context already has a graph of this
                name, or the payload is too large for an ONNX model.
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
        """Return the binary, `[first model]_[ep].bin`; an empty list if embedded or if nothing was
        compiled.
        """
        if self._spec.embed_mode or not self._writer.graphs:
            return ()
        return (ContextBinary(name=self._binary, chunks=self._writer.chunks),)

    def close(self) -> None:
        """Drop all graphs; the next compile is then the first session."""
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
        taken = {graph.name for graph in self._writer.graphs}
        for graph in graphs:
            if graph.name in taken:
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
