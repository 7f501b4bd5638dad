"""Helpers for providers that make and load their own contexts.

Source: spec/ep-context-design.md, "Inference Workflow for EP Context Cache Models" and
"Implementation Guidelines for Inferencing from EPContext Models with Weight Sharing".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import onnx_ir as ir

from epctx.errors import InvalidGraph, ModelError
from epctx.graph.epcontext import DOMAIN, EPContextNode
from epctx.graph.model import Partition, Replacement
from epctx.graph.weights.data_file import DataFile
from epctx.graph.weights.external_data import DataFolder
from epctx.providers.base import SharedContexts

G = TypeVar("G")
K = TypeVar("K")

_SHIP = (
    "ship the context binary with the model, at the same place beside it; "
    "`epctx inspect --files` lists the files of a model"
)
BUILD_AGAIN = "build the model again, and ship it with the context binary of the same build"


def replace_by_node(model: ir.Model, partition: Partition, node: EPContextNode) -> Replacement:
    """Replace a partition by one EPContext node with the partition's inputs and outputs."""
    inputs, outputs = (
        [ir.Value(name=value.name, type=value.type, shape=value.shape) for value in border]
        for border in (partition.inputs, partition.outputs)
    )
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=[node.to_ir(inputs, outputs)],
        opset_imports={**model.opset_imports, DOMAIN: 1},
        name=node.name,
    )
    fragment = ir.Model(graph, ir_version=model.ir_version)
    return Replacement(partition=partition, fragment=fragment)


def open_binary(folder: Path, location: str, *, where: str) -> DataFile:
    """Map the context binary at `location`, a path with `/` inside `folder`.

    Args:
        where: the node that refers to the binary, for messages.

    Raises:
        InvalidGraph: the path leads out of the folder or to no regular file.
    """
    try:
        return DataFolder(folder, model=folder).open(location, where=where)
    except ModelError as error:
        missing = not os.path.lexists(folder / location.replace("\0", ""))
        raise InvalidGraph(
            f"the context binary {location!r} cannot be used",
            where=where,
            why=f"it is not in {folder}" if missing else error.why or error.what,
            remedy=_SHIP,
        ) from error


def binary_of(node: EPContextNode, folder: Path | None) -> DataFile | None:
    """Map the context binary that a primary node refers to; None if its payload is the context.

    Args:
        folder: the model's folder; None for a model from bytes without a path.

    Raises:
        InvalidGraph: the node names no binary, or the binary does not exist.
    """
    where = node.words
    if not node.ep_cache_context:
        what = "a primary node (main_context = 1) has no ep_cache_context"
        raise InvalidGraph(what, where=where, remedy=BUILD_AGAIN)
    path = node.context_path
    if path is None:
        return None
    if folder is None:
        raise InvalidGraph(
            f"the context binary {path!r} cannot be found: the model was loaded from bytes",
            where=where,
            remedy="set the session option ep.context_file_path to the path of the model file; "
            "epctx looks for the context binary in the folder of that path",
        )
    return open_binary(folder, path, where=f"{where} of a model in {folder}")


def content_of(node: EPContextNode, folder: Path | None) -> memoryview:
    """Return the context of a primary node, its payload or its binary; see `binary_of`."""
    file = binary_of(node, folder)
    return memoryview(node.ep_cache_context or b"") if file is None else file.view()


def _itself(node: EPContextNode, graph: Any) -> Any:
    return graph


def _absent(node: EPContextNode, seen: Sequence[Mapping[str, object]]) -> InvalidGraph:
    return InvalidGraph(
        f"no context of the model has the graph {node.partition_name!r} of the same build",
        node=node.name,
        remedy=BUILD_AGAIN,
    )


def load(
    nodes: Sequence[EPContextNode],
    shared: SharedContexts | None,
    *,
    key: Callable[[EPContextNode], str],
    read: Callable[[EPContextNode], Mapping[str, G]],
    kind: type[G],
    make: Callable[[EPContextNode, G], K] = _itself,
    absent: Callable[[EPContextNode, Sequence[Mapping[str, G]]], InvalidGraph] = _absent,
) -> list[K]:
    """Return a kernel for each node, from the shared workspace or from a context read here.

    A graph that a node takes leaves the workspace. Graphs of a context that no node asked for stay
    in the workspace, for later sessions. A context is read at most once for all nodes, and only if
    a node needs it.

    Args:
        nodes: nodes of one model. For a node without its own context (main_context = 0), the
            contexts of the model's other nodes are searched.
        shared: the shared workspace; None if not shared.
        key: returns the key of a node's graph in the workspace, unique among builds.
        read: returns the graphs in the context of a primary node, by the same keys.
        kind: type of a graph.
        make: returns the kernel of a node, made from its graph; the graph itself if the graph is
            the kernel.
        absent: returns the error for a node whose graph is in none of the contexts that were read.

    Raises:
        InvalidGraph: a graph does not exist, or `read` or `make` raises it. Graphs that were taken
            are put back.
    """
    contexts: dict[tuple[int, bytes | None], Mapping[str, G]] = {}
    taken: dict[str, G] = {}
    graphs: list[G] = []

    def find(node: EPContextNode) -> G:
        seen = []
        for primary in [node] if node.main_context else [n for n in nodes if n.main_context]:
            content = (primary.embed_mode, primary.ep_cache_context)
            if content not in contexts:
                contexts[content] = read(primary)
            seen.append(contexts[content])
            graph = seen[-1].get(key(node))
            if graph is not None:
                return graph
        raise absent(node, seen)

    try:
        for node in nodes:
            own = shared.take(key(node)) if shared is not None else None
            if isinstance(own, kind):
                taken[key(node)] = own
            graphs.append(own if isinstance(own, kind) else find(node))
        kernels = [make(node, graph) for node, graph in zip(nodes, graphs, strict=True)]
    except BaseException:
        _leave(taken.items(), shared)
        raise
    requested = {key(node) for node in nodes}
    for context in contexts.values():
        _leave(((name, graph) for name, graph in context.items() if name not in requested), shared)
    return kernels


def _leave(graphs: Iterable[tuple[str, object]], shared: SharedContexts | None) -> None:
    if shared is not None:
        for name, graph in graphs:
            shared.leave(name, graph)
