"""Writing a context binary: graphs gathered in memory, weights streamed from where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, field

from epctx.files.digest import Buffer, Digest, of_bytes
from epctx.providers.reference.layout import (
    KINDS,
    NO_CHECKSUM,
    PREFIX_SIZE,
    SECTION_ALIGNMENT,
    TENSOR,
    TENSOR_ALIGNMENT,
    GraphEntry,
    Meta,
    Section,
    TensorEntry,
    align,
    pack_json,
    pack_prefix,
    pack_tensors,
    raw,
)

Chunks = Callable[[], Iterator[Buffer]]


class Weight(Struct, frozen=True, kw_only=True):
    """A tensor's bytes, by content: `length` > 0, and where they come from."""

    digest: Digest
    length: int
    chunks: Chunks


class Graph(Struct, frozen=True, kw_only=True):
    """A graph to be stored: its ModelProto, and the weights that it refers to by digest."""

    name: str
    model: str
    proto: bytes
    weights: tuple[Weight, ...]

    @property
    def digest(self) -> Digest:
        """Identifies the graph with its weights."""
        return of_bytes(self.proto)

    @property
    def weight_bytes(self) -> int:
        """Bytes of its weights, each content once."""
        return sum({w.digest: w.length for w in self.weights}.values())


class ContextWriter(Struct, kw_only=True):
    """The graphs and weights of one context. The same graphs in the same order: the same bytes."""

    meta: Meta
    graphs: list[Graph] = field(default_factory=list)

    def chunks(self) -> Iterator[Buffer]:
        """The file, in pieces; no weight is held. `layout` says what it is made of."""
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
        """Every weight once, in the order of first use."""
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
    """Offsets of parts of these lengths, one after the other, each aligned."""
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
