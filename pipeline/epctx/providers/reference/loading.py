"""Loading EPContext nodes: every node finds its graph, and only its own.

Source: spec/ep-context-design.md, "Inference Workflow for EP Context Cache Models" and
"Implementation Guidelines for Inferencing from EPContext Models with Weight Sharing".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from epctx import codec
from epctx.errors import InvalidGraph
from epctx.graph.epcontext import EPContextNode
from epctx.providers.base import SharedContexts
from epctx.providers.reference import kernels, reader, versions
from epctx.providers.reference.kernels import ReferenceKernel
from epctx.providers.reference.notes import Notes
from epctx.providers.reference.options import NAME
from epctx.providers.reference.reader import Context, LoadedGraph
from epctx.providers.reference.versions import Toolchain

_BUILD_AGAIN = "build the model again, and ship it with the context binary of the same build"


@dataclass(frozen=True, kw_only=True, eq=False)
class _Located:
    """A graph and the context that has its weights: what lies in the shared workspace."""

    context: Context
    graph: LoadedGraph

    @property
    def key(self) -> str:
        return _key(self.context.meta.source, self.graph.entry.name, str(self.graph.digest))


class Loader:
    """One session's loading.

    Args:
        host: what this host is.
        folder: where context binaries are; None: from bytes, without a path.
        shared: the shared workspace; None: not shared.
    """

    def __init__(self, host: Toolchain, folder: Path | None, shared: SharedContexts | None) -> None:
        self._host = host
        self._folder = folder
        self._shared = shared
        self._contexts: dict[tuple[int, bytes], Context] = {}

    def load(self, nodes: Sequence[EPContextNode]) -> list[ReferenceKernel]:
        """A kernel for each node. A graph found in the shared workspace is moved out of it; if one
        is missing there, the binaries are read, and the graphs left over put there.

        Raises:
            InvalidGraph: whatever the reason; what was taken is put back.
        """
        taken: list[_Located] = []
        located: list[_Located] = []
        try:
            for node in nodes:
                found = self._take(node)
                if found is not None:
                    taken.append(found)
                located.append(found or self._read(node, nodes))
            made = [self._kernel(node, place) for node, place in zip(nodes, located, strict=True)]
        except BaseException:
            self._leave(taken)
            raise
        used = {place.key for place in located}
        self._leave(place for place in self._rest() if place.key not in used)
        return made

    def _take(self, node: EPContextNode) -> _Located | None:
        if self._shared is None:
            return None
        found = self._shared.take(_key(node.source, node.partition_name, _notes(node).graph))
        return found if isinstance(found, _Located) else None

    def _leave(self, places: Iterable[_Located]) -> None:
        if self._shared is not None:
            for place in places:
                self._shared.leave(place.key, place)

    def _rest(self) -> Iterator[_Located]:
        for context in self._contexts.values():
            for graph in context.graphs.values():
                yield _Located(context=context, graph=graph)

    def _read(self, node: EPContextNode, nodes: Sequence[EPContextNode]) -> _Located:
        """Find a node's graph in its own context, or in that of another node of the model."""
        primaries = [node] if node.main_context else [n for n in nodes if n.main_context]
        wanted = _notes(node).graph
        stale: Context | None = None
        for primary in primaries:
            context = self._open(primary)
            graph = context.graphs.get(node.partition_name or "")
            if graph is not None and str(graph.digest) == wanted:
                return _Located(context=context, graph=graph)
            stale = context if graph is not None else stale
        if stale is not None:
            raise InvalidGraph(
                f"has another graph {node.partition_name!r} than the node was built with",
                where=stale.where,
                remedy=_BUILD_AGAIN,
            )
        places = sorted({self._open(primary).where for primary in primaries})
        where = " and ".join(places) or "another node of the model (main_context = 1)"
        raise InvalidGraph(
            f"its graph {node.partition_name!r} is not in {where}",
            node=node.name,
            why=None if node.main_context else "it has no context of its own (main_context = 0)",
            remedy=_BUILD_AGAIN,
        )

    def _open(self, node: EPContextNode) -> Context:
        """Read the context of a primary node, once for all nodes that refer to it."""
        content = node.ep_cache_context
        if not content:
            raise InvalidGraph(
                "a primary node (main_context = 1) has no ep_cache_context",
                node=node.name,
                remedy=_BUILD_AGAIN,
            )
        key = (node.embed_mode, content)
        if key not in self._contexts:
            self._contexts[key] = self._read_context(node, content)
        return self._contexts[key]

    def _read_context(self, node: EPContextNode, content: bytes) -> Context:
        path = node.context_path
        if path is None:
            return reader.open_payload(content, where=f"the payload of node {node.name!r}")
        if self._folder is None:
            raise InvalidGraph(
                f"the context binary {path!r} cannot be found: the model was loaded from bytes",
                node=node.name,
                remedy="set the session option ep.context_file_path to where the model would be; "
                "the context binary is looked for in its folder",
            )
        where = f"node {node.name!r} of a model in {self._folder}"
        return reader.open_file(self._folder, path, where=where)

    def _kernel(self, node: EPContextNode, place: _Located) -> ReferenceKernel:
        meta = place.context.meta
        needed = Toolchain(
            sdk_version=meta.sdk_version,
            driver_version=meta.driver_version,
            hardware_architecture=meta.hardware_architecture,
        )
        versions.check(needed, self._host, where=place.context.where)
        _agree(node, place)
        return kernels.create(place.context, place.graph, node)


def _key(source: str | None, name: str | None, graph: str) -> str:
    return f"{NAME}/{source}/{name}/{graph}"


def _notes(node: EPContextNode) -> Notes:
    try:
        return codec.decode(node.notes or "", Notes)
    except msgspec.DecodeError as error:
        raise InvalidGraph(
            "its notes do not say which graph it was built with",
            node=node.name,
            why=str(error),
            remedy=_BUILD_AGAIN,
        ) from error


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
        remedy=_BUILD_AGAIN,
    )
