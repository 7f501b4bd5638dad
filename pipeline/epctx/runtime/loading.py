"""A model made ready to run: its EPs' kernels loaded, the rest given to onnxruntime.

Source: spec/ep-context-design.md, "Inference Workflow for EP Context Cache Models".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeAlias

import onnx
import onnxruntime as ort

from epctx.errors import EpctxError, InvalidGraph, ModelError
from epctx.graph import protos
from epctx.graph.epcontext import EPContextNode, is_epcontext
from epctx.providers.base import ExecutionProvider, Kernel, NativeSessions
from epctx.runtime.arguments import NodeArg
from epctx.runtime.cutting import KernelStep, SegmentBuilder, SegmentStep, cut
from epctx.runtime.options import (
    DATA_FOLDER,
    ENABLE,
    FILE_PATH,
    SessionConfig,
    SessionOptions,
    for_session,
)
from epctx.runtime.selection import DEFAULT, Claim, claim
from epctx.runtime.sources import ModelSource
from epctx.runtime.steps import KernelRunner, Pipeline, Runner, SessionRunner
from epctx.runtime.values import Value, of_tensor
from epctx.runtime.workspace import SHARED

Options: TypeAlias = "ort.SessionOptions | SessionOptions | None"


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model ready to run, and the names of the EPs that run it, the default EP last."""

    pipeline: Pipeline
    providers: tuple[str, ...]


def load(
    source: ModelSource,
    config: SessionConfig,
    options: Options,
    providers: Sequence[ExecutionProvider] | None,
) -> Loaded:
    """Load a model, with or without EPContext nodes.

    Raises:
        ModelError: no such file, no ONNX model, or one that onnxruntime refuses.
        InvalidGraph: a context that cannot be loaded, or a node that no EP takes.
    """
    if not source.has_contexts():
        return Loaded(pipeline=_plain(source, config, options), providers=(DEFAULT,))
    model = source.read()
    places = [i for i, node in enumerate(model.graph.node) if is_epcontext(node)]
    inner = [n for n in _inner_nodes(model) if is_epcontext(n)]
    nodes = [EPContextNode.from_proto(n) for n in (*(model.graph.node[i] for i in places), *inner)]
    claims = claim(nodes, providers)
    for found in claims:
        _require_main_graph(found, nodes, len(places))
    names = (*dict.fromkeys(found.provider.name for found in claims), DEFAULT)
    kernels = _kernels(claims, nodes, source, config)
    native = [found.provider for found in claims if found.provider.native]
    builder = _Builder(source, config, options, native)
    if not kernels:
        return Loaded(pipeline=builder.whole(), providers=names)
    by_place = {places[i]: (nodes[i], kernel) for i, kernel in kernels.items()}
    return Loaded(pipeline=builder.parts(model, by_place), providers=names)


def _plain(source: ModelSource, config: SessionConfig, options: Options) -> Pipeline:
    try:
        return _Builder(source, config, options, ()).whole()
    except InvalidGraph as error:
        raise ModelError(
            error.what, where=error.where, why=error.why, remedy="see what ONNX Runtime says of it"
        ) from error


def _inner_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The nodes that are not in the main graph: of control flow, of functions."""
    for graph in protos.graphs(model):
        if graph is not model.graph:
            yield from graph.node
    for function in model.functions:
        yield from function.node


def _require_main_graph(found: Claim, nodes: Sequence[EPContextNode], count: int) -> None:
    for index in found.nodes:
        if index >= count and not found.provider.native:
            raise InvalidGraph(
                "an EPContext node inside a control-flow body or a function",
                where=f"node {nodes[index].name!r}",
                why=f"{found.provider.name} takes nodes of the main graph",
                remedy="build the model again: epctx leaves control flow whole",
            )


def _kernels(
    claims: Sequence[Claim],
    nodes: Sequence[EPContextNode],
    source: ModelSource,
    config: SessionConfig,
) -> dict[int, Kernel]:
    """For each EPContext node that onnxruntime does not run itself, its kernel."""
    kernels: dict[int, Kernel] = {}
    with ExitStack() as stack:
        shared = (
            stack.enter_context(SHARED.session(last=config.stop_share)) if config.share else None
        )
        for found in claims:
            if found.provider.native:
                continue
            own = [nodes[i] for i in found.nodes]
            try:
                loaded = found.provider.load(own, source.folder, shared)
            except EpctxError:
                raise
            except Exception as error:  # a provider is anybody's code
                raise InvalidGraph(
                    f"{found.provider.name} failed to load its nodes",
                    where=source.where,
                    why=f"{type(error).__name__}: {error}",
                    remedy=f"report it to who makes {found.provider.name}",
                ) from error
            kernels.update(zip(found.nodes, loaded, strict=True))
    return kernels


class _Builder:
    """Makes the steps of a model.

    Args:
        native: the EPs of onnxruntime that have nodes in the model.
    """

    def __init__(
        self,
        source: ModelSource,
        config: SessionConfig,
        options: Options,
        native: Sequence[ExecutionProvider],
    ) -> None:
        self._source = source
        self._config = config
        self._options = options
        self._native = native

    def whole(self) -> Pipeline:
        """The model as it is, in one session."""
        given = self._source.data if self._source.path is None else str(self._source.path)
        session = self._session(given, {}, self._native)
        runner = SessionRunner(session)
        overridable = session.get_overridable_initializers()
        return Pipeline(
            inputs=tuple(map(NodeArg.of_session, (*session.get_inputs(), *overridable))),
            overridable=frozenset(arg.name for arg in overridable),
            outputs=tuple(map(NodeArg.of_session, session.get_outputs())),
            constants={},
            runners=(runner,),
        )

    def parts(
        self, model: onnx.ModelProto, kernels: Mapping[int, tuple[EPContextNode, Kernel]]
    ) -> Pipeline:
        """The model in steps: kernels, and sessions of what lies between them."""
        graph = model.graph
        types = {v.name: v for v in (*graph.value_info, *graph.output)}
        promised = {n: NodeArg.of(v) for n, v in types.items() if v.type.HasField("tensor_type")}
        segments = SegmentBuilder(model)
        runners: list[Runner] = []
        for step in cut(graph, kernels.keys()):
            if isinstance(step, KernelStep):
                runners.append(_kernel_runner(*kernels[step.node], promised))
            elif step.outputs:  # nobody needs what the others make
                runner = self._segment(model, segments, step)
                segments.learn(
                    NodeArg.of_session(a).value_info() for a in runner.session.get_outputs()
                )
                runners.append(runner)
        weights = {tensor.name for tensor in graph.initializer}
        overridable = frozenset(value.name for value in graph.input) & weights
        inputs = sorted(graph.input, key=lambda value: value.name in weights)
        return Pipeline(
            inputs=tuple(map(NodeArg.of, inputs)),
            overridable=overridable,
            outputs=tuple(map(NodeArg.of, graph.output)),
            constants=self._constants(graph, kernels),
            runners=tuple(runners),
        )

    def _constants(
        self, graph: onnx.GraphProto, kernels: Mapping[int, tuple[EPContextNode, Kernel]]
    ) -> dict[str, Value]:
        needed = {name for node, _ in kernels.values() for name in node.inputs}
        needed.update(value.name for value in graph.output)
        folder = str(self._source.data_folder)
        return {t.name: of_tensor(t, folder) for t in graph.initializer if t.name in needed}

    def _segment(
        self, model: onnx.ModelProto, segments: SegmentBuilder, step: SegmentStep
    ) -> SessionRunner:
        part = segments.build(step)
        entries = {}
        if any(t.data_location == onnx.TensorProto.EXTERNAL for t in protos.tensors(part)):
            entries[DATA_FOLDER] = str(self._source.data_folder)
        native: Sequence[ExecutionProvider] = ()
        if any(is_epcontext(node) for node in protos.nodes(part)):
            native = self._native
            if self._source.path is not None:
                entries[FILE_PATH] = str(self._source.path)
        return SessionRunner(self._session(part.SerializeToString(), entries, native))

    def _session(
        self,
        given: str | bytes,
        entries: Mapping[str, str],
        native: Sequence[ExecutionProvider],
    ) -> ort.InferenceSession:
        """An onnxruntime session that never falls back silently to another EP."""
        # What was generated is not generated again.
        off = {ENABLE: "0"} if self._config.enable else {}
        with for_session(self._options, {**entries, **off}) as options:
            if not options.has_providers():  # the caller's own choice stays
                for provider in native:
                    if isinstance(provider, NativeSessions):
                        provider.add_to(options)
            names = None if options.has_providers() else [DEFAULT]
            try:
                return ort.InferenceSession(given, options, providers=names, enable_fallback=0)
            except Exception as error:  # onnxruntime's errors have no base of their own
                raise InvalidGraph(
                    "ONNX Runtime refuses it",
                    where=self._source.where,
                    why=str(error),
                    remedy="build the model again for this version of onnxruntime",
                ) from error


def _kernel_runner(
    node: EPContextNode, kernel: Kernel, promised: Mapping[str, NodeArg]
) -> KernelRunner:
    if "" in (*node.inputs, *node.outputs):
        raise InvalidGraph(
            "an input or output of an EPContext node is left out",
            where=f"node {node.name!r}",
            remedy="build the model again",
        )
    return KernelRunner(
        node=node.name,
        kernel=kernel,
        reads=node.inputs,
        makes=node.outputs,
        promised={name: promised[name] for name in node.outputs if name in promised},
    )
