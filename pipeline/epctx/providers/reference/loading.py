"""Loading EPContext nodes: every node finds its graph, and only its own (`providers.contexts`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from epctx import codec
from epctx.errors import InvalidGraph
from epctx.graph.epcontext import EPContextNode
from epctx.providers import contexts
from epctx.providers.base import SharedContexts
from epctx.providers.reference import kernels, reader, versions
from epctx.providers.reference.kernels import ReferenceKernel
from epctx.providers.reference.notes import Notes
from epctx.providers.reference.options import NAME
from epctx.providers.reference.reader import Context, LoadedGraph
from epctx.providers.reference.versions import Toolchain


class _Located(Struct, frozen=True, kw_only=True, eq=False):
    """A graph and the context that has its weights: what lies in the shared workspace."""

    context: Context
    graph: LoadedGraph


def load(
    nodes: Sequence[EPContextNode],
    host: Toolchain,
    folder: Path | None,
    shared: SharedContexts | None,
) -> list[ReferenceKernel]:
    """A kernel for each node.

    Args:
        host: what this host is.
        folder: where context binaries are; None: from bytes, without a path.
        shared: the shared workspace; None: not shared.

    Raises:
        InvalidGraph: whatever the reason; what was taken is put back.
    """

    def read(primary: EPContextNode) -> dict[str, _Located]:
        file = contexts.binary_of(primary, folder)
        if file is None:
            where = f"the payload of node {primary.name!r}"
            context = reader.open_payload(primary.ep_cache_context or b"", where=where)
        else:
            context = reader.read_file(file)
        return {
            _key(context.meta.source, graph.entry.name, str(graph.digest)): _Located(
                context=context, graph=graph
            )
            for graph in context.graphs.values()
        }

    def make(node: EPContextNode, place: _Located) -> ReferenceKernel:
        versions.check(place.context.meta, host, where=place.context.where)
        _agree(node, place)
        return kernels.create(place.context, place.graph, node)

    return contexts.load(
        nodes, shared, key=_key_of, read=read, kind=_Located, make=make, absent=_absent
    )


def _key(source: str | None, name: str | None, graph: str) -> str:
    return f"{NAME}/{source}/{name}/{graph}"


def _key_of(node: EPContextNode) -> str:
    return _key(node.source, node.partition_name, _notes(node).graph)


def _notes(node: EPContextNode) -> Notes:
    try:
        return codec.decode(node.notes or "", Notes)
    except msgspec.DecodeError as error:
        raise InvalidGraph(
            "its notes do not say which graph it was built with",
            node=node.name,
            why=str(error),
            remedy=contexts.BUILD_AGAIN,
        ) from error


def _absent(node: EPContextNode, seen: Sequence[Mapping[str, _Located]]) -> InvalidGraph:
    """A node's graph is in none of the contexts: what is there in its place, or where not."""
    places = [place for context in seen for place in context.values()]
    for place in places:
        if place.graph.entry.name == node.partition_name:
            if str(place.graph.digest) == _notes(node).graph:
                _agree(node, place)  # they are of another source
            return InvalidGraph(
                f"has another graph {node.partition_name!r} than the node was built with",
                where=place.context.where,
                remedy=contexts.BUILD_AGAIN,
            )
    where = " and ".join(sorted({place.context.where for place in places}))
    return InvalidGraph(
        f"its graph {node.partition_name!r} is not in "
        f"{where or 'another node of the model (main_context = 1)'}",
        node=node.name,
        why=None if node.main_context else "it has no context of its own (main_context = 0)",
        remedy=contexts.BUILD_AGAIN,
    )


def _agree(node: EPContextNode, place: _Located) -> None:
    """What the node says of its graph and context is what they are; an absent attribute agrees."""
    meta, entry = place.context.meta, place.graph.entry
    said = {
        "source": (node.source, meta.source),
        "ep_sdk_version": (node.ep_sdk_version, meta.sdk_version),
        "hardware_architecture": (node.hardware_architecture, meta.hardware_architecture),
        "onnx_model_filename": (node.onnx_model_filename, entry.model),
    }
    for name, (own, other) in said.items():
        if own is not None and own != other:
            raise _disagree(node, place, f"{name} is {own!r}, its context binary says {other!r}")
    if 0 < node.max_size < entry.weights:
        raise _disagree(
            node,
            place,
            f"max_size is {node.max_size} bytes, its graph has {entry.weights} bytes of weights",
        )


def _disagree(node: EPContextNode, place: _Located, why: str) -> InvalidGraph:
    return InvalidGraph(
        f"does not belong to {place.context.where}",
        node=node.name,
        why=why,
        remedy=contexts.BUILD_AGAIN,
    )
