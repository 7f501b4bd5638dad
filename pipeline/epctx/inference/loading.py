"""Load a model to run: the kernels of its EPs, and onnxruntime sessions for the rest.

Source: the EPContext design, "Inference Workflow for EP Context Cache Models".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import onnx
from msgspec import Struct, field

from epctx.errors import (
    CompileError,
    InvalidGraph,
    ModelError,
    ProviderUnavailable,
)
from epctx.graph.epcontext import EPContextNode, is_epcontext
from epctx.graph.serde import protos
from epctx.inference import selection
from epctx.inference.options import NativeOptions, SessionConfig
from epctx.inference.pipeline import ModelSource, Pipeline, PipelineBuilder
from epctx.inference.selection import Claim, claim
from epctx.manifest import DEFAULT_EP
from epctx.providers.base import ExecutionProvider, Kernel, SharedContexts
from epctx.providers.onnxruntime.session import Mark

SHARED = SharedContexts()
"""Contexts shared by the sessions of this process (`ep.share_ep_contexts`)."""


def release_shared_contexts() -> None:
    """Release graphs that sessions with `ep.share_ep_contexts` left for later sessions."""
    SHARED.clear()


class Loaded(Struct, frozen=True, kw_only=True):
    """A model ready to run.

    Attributes:
        providers: the names of the EPs that run it, the default EP last.
        apart: why EPs of onnxruntime run in sessions of their own; None if one session is enough.
        nodes: number of nodes that each EP runs, where it was recorded.
    """

    pipeline: Pipeline
    providers: tuple[str, ...]
    apart: str | None = None
    nodes: Mapping[str, int] = field(default_factory=dict)


def load(
    source: ModelSource,
    config: SessionConfig,
    options: NativeOptions,
    providers: Sequence[ExecutionProvider] | None,
    dimensions: Mapping[str, int] | None = None,
) -> Loaded:
    """Load a model, with or without EPContext nodes.

    Raises:
        ModelError: the file does not exist, is not an ONNX model, or onnxruntime refuses it.
        InvalidGraph: a context cannot be loaded, or no EP takes a node.
        ProviderUnavailable: this host cannot run the model.
        UsageError: the model has no EPContext nodes, and the EPs run only EPContext nodes.
        CompileError: the model has no EPContext nodes, and the EPs take no node of it, or fail.
    """
    if not source.has_contexts():
        return _plain(source, config, options, providers or (), dimensions or {})
    model = source.read()
    places = [i for i, node in enumerate(model.graph.node) if is_epcontext(node)]
    inner = [n for n in _inner_nodes(model) if is_epcontext(n)]
    nodes = [EPContextNode.from_proto(n) for n in (*(model.graph.node[i] for i in places), *inner)]
    claims = claim(nodes, providers)
    for claimed in claims:
        _require_main_graph(claimed, nodes, len(places))
    names = (*dict.fromkeys(claimed.provider.name for claimed in claims), DEFAULT_EP)
    kernels = _kernels(claims, nodes, source, config)
    native = [claimed for claimed in claims if claimed.provider.native]
    for claimed in native:
        _require_host(claimed, nodes, source, sharing=config.share)
    contexts = {claimed.provider: [nodes[i] for i in claimed.nodes] for claimed in native}
    builder = PipelineBuilder(source, config, options, [*contexts], contexts=contexts)
    apart = _why_apart(native, nodes)
    if not kernels and apart is None:
        return Loaded(pipeline=builder.whole(), providers=names, nodes=builder.nodes)
    pipeline = builder.parts(
        model,
        {places[i]: (nodes[i], kernel) for i, kernel in kernels.items()},
        {
            claimed.provider: [places[i] for i in claimed.nodes]
            for claimed in native
            if all(i < len(places) for i in claimed.nodes)
        },
    )
    of_kernels = {f.provider.name: len(f.nodes) for f in claims if not f.provider.native}
    counts = Counter(of_kernels) + builder.nodes
    return Loaded(pipeline=pipeline, providers=names, apart=apart, nodes=counts)


def _require_host(
    found: Claim, nodes: Sequence[EPContextNode], source: ModelSource, *, sharing: bool
) -> None:
    """Refuse a model that would crash the process instead of failing in onnxruntime (measured).

    Raises:
        ProviderUnavailable: this host cannot run the model.
    """
    own = [nodes[i] for i in found.nodes]
    why = found.provider.cannot_load(own, source.folder or Path(), sharing=sharing)
    if why is not None:
        raise ProviderUnavailable(
            "this host cannot run it", where=source.where, why=why, remedy="run it on the device"
        )


def _why_apart(claims: Sequence[Claim], nodes: Sequence[EPContextNode]) -> str | None:
    """Return why EPs of onnxruntime need sessions of their own here; None if one session is
    enough.
    """
    for found in claims:
        own = {nodes[i].source for i in found.nodes}
        beside = {node.source for node in nodes if node.source is not None} - own
        why = found.provider.runs_apart(beside)
        if why is not None:
            return why
    return None


def _plain(
    source: ModelSource,
    config: SessionConfig,
    options: NativeOptions,
    providers: Sequence[ExecutionProvider],
    dimensions: Mapping[str, int],
) -> Loaded:
    named = selection.able(providers, source.where)
    log = Mark.here()
    builder = PipelineBuilder(source, config, options, named, dimensions)
    try:
        pipeline = builder.whole(counted=bool(named))
    except InvalidGraph as error:
        if named and _runs_on_cpu(source, config, options, dimensions):
            who = " and ".join(provider.name for provider in named)
            remedy = "read its message, and check the provider's options"
            failed = CompileError.of(error.failure, remedy=remedy)
            failed.what = f"{who} cannot run it"
            raise failed from error
        raise ModelError.of(error.failure, remedy="see what ONNX Runtime says of it") from error
    selection.require_some(named, builder.nodes, source.where, log)
    used = [provider.name for provider in named if builder.nodes.get(provider.name)]
    (session,) = pipeline.sessions()  # its EPs may be those of the caller's session options
    names = (*used, DEFAULT_EP) if named else tuple(session.get_providers())
    return Loaded(pipeline=pipeline, providers=names, nodes=builder.nodes)


def _runs_on_cpu(
    source: ModelSource,
    config: SessionConfig,
    options: NativeOptions,
    dimensions: Mapping[str, int],
) -> bool:
    """Tell whether the CPU EP loads a model that other EPs refuse. If so, they are at fault."""
    try:
        PipelineBuilder(source, config, options, (), dimensions).whole()
    except InvalidGraph:
        return False
    return True


def _inner_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes outside the main graph, in control-flow bodies and functions."""
    for graph in protos.graphs(model):
        if graph is not model.graph:
            yield from graph.node
    for function in model.functions:
        yield from function.node


def _require_main_graph(found: Claim, nodes: Sequence[EPContextNode], count: int) -> None:
    for index in found.nodes:
        if index >= count and not found.provider.native:
            raise InvalidGraph(
                "an EPContext node is inside a control-flow body or a function",
                node=nodes[index].name,
                why=f"{found.provider.name} takes only nodes of the main graph",
                remedy="build the model again with epctx, which leaves control flow whole",
            )


def _kernels(
    claims: Sequence[Claim],
    nodes: Sequence[EPContextNode],
    source: ModelSource,
    config: SessionConfig,
) -> dict[int, Kernel]:
    """Load a kernel for each EPContext node that onnxruntime does not run itself."""
    kernels: dict[int, Kernel] = {}
    with ExitStack() as stack:
        shared = (
            stack.enter_context(SHARED.session(last=config.stop_share)) if config.share else None
        )
        for found in claims:
            if found.provider.native:
                continue
            own = [nodes[i] for i in found.nodes]
            loaded = found.provider.load(own, source.folder, shared)
            kernels.update(zip(found.nodes, loaded, strict=True))
    return kernels
