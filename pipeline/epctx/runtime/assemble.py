"""The steps of a model made: onnxruntime's sessions created, kernels bound to their edges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

import onnx
import onnxruntime as ort

from epctx.errors import InvalidGraph
from epctx.graph.epcontext import EPContextNode, is_epcontext
from epctx.graph.serde import protos
from epctx.manifest import DEFAULT_EP
from epctx.providers.base import ExecutionProvider, Kernel
from epctx.providers.contexts import binary_of
from epctx.runtime import node_sessions
from epctx.runtime.arguments import NodeArg
from epctx.runtime.model_source import ModelSource
from epctx.runtime.options import (
    ASSIGNMENT,
    DATA_FOLDER,
    ENABLE,
    FILE_PATH,
    Lender,
    NativeOptions,
    SessionConfig,
    lent,
    recorded,
)
from epctx.runtime.split import KernelStep, SegmentBuilder, cut
from epctx.runtime.steps import KernelRunner, Pipeline, Runner, SessionRunner
from epctx.runtime.values import Value, of_tensor


class PipelineBuilder:
    """Makes the steps of a model.

    Args:
        native: the EPs of onnxruntime that have nodes in the model, or are to take some.
        dimensions: sizes of symbolic dimensions.
        contexts: the EPContext nodes of each of `native`.

    Attributes:
        nodes: how many nodes each EP took in the sessions that were made, where it was recorded.
    """

    def __init__(
        self,
        source: ModelSource,
        config: SessionConfig,
        options: NativeOptions,
        native: Sequence[ExecutionProvider],
        dimensions: Mapping[str, int] | None = None,
        contexts: Mapping[ExecutionProvider, Sequence[EPContextNode]] | None = None,
    ) -> None:
        self._contexts = contexts or {}
        self.nodes: Counter[str] = Counter()
        self._dimensions = dimensions or {}
        self._source = source
        self._config = config
        self._options = options
        self._native = native

    def whole(self, *, counted: bool = False) -> Pipeline:
        """The model as it is, in one session.

        Args:
            counted: `nodes` is to tell who took how many, whatever the caller's options are.

        Raises:
            InvalidGraph: onnxruntime refuses it.
        """
        given = self._source.data if self._source.path is None else str(self._source.path)
        count = {ASSIGNMENT: "1"} if counted else {}
        with self._lent({**self._contexts_beside_model(), **count}) as lend:
            session = self._session(given, lend, self._native)
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
        self,
        model: onnx.ModelProto,
        kernels: Mapping[int, tuple[EPContextNode, Kernel]],
        own_sessions: Mapping[ExecutionProvider, Sequence[int]],
    ) -> Pipeline:
        """The model in steps: kernels, nodes of EPs with a session of their own, and sessions of
        what lies between them.

        Args:
            kernels: by the node's index in the main graph.
            own_sessions: of EPs of onnxruntime, the indices of their nodes, all of them.

        Raises:
            InvalidGraph: onnxruntime refuses a part.
        """
        graph = model.graph
        types = {v.name: v for v in (*graph.value_info, *graph.output)}
        promised = {n: NodeArg.of(v) for n, v in types.items() if v.type.HasField("tensor_type")}
        segments = SegmentBuilder(model)
        runners: list[Runner] = []
        with self._lent(self._places(model)) as lend:
            single: dict[int, Runner] = {
                place: _kernel_runner(node, kernel, promised)
                for place, (node, kernel) in kernels.items()
            }
            for provider, places in own_sessions.items():
                single.update(self._apart(model, provider, places, lend))
            for step in cut(graph, single.keys()):
                if isinstance(step, KernelStep):
                    runners.append(single[step.node])
                elif step.outputs:  # nobody needs what the others make
                    runner = self._segment(segments.build(step), lend)
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
            constants=self._constants(graph, single.values()),
            runners=tuple(runners),
        )

    def _apart(
        self,
        model: onnx.ModelProto,
        provider: ExecutionProvider,
        places: Sequence[int],
        lend: Lender,
    ) -> Iterable[tuple[int, Runner]]:
        part = node_sessions.build(model, places)
        session = self._session(part.SerializeToString(), lend, [provider])
        return zip(places, node_sessions.runners(part, session), strict=True)

    def _constants(self, graph: onnx.GraphProto, runners: Iterable[Runner]) -> dict[str, Value]:
        needed = {name for runner in runners for name in runner.reads}
        needed.update(value.name for value in graph.output)
        folder = str(self._source.data_folder)
        return {t.name: of_tensor(t, folder) for t in graph.initializer if t.name in needed}

    def _places(self, model: onnx.ModelProto) -> dict[str, str]:
        """Where sessions from bytes find what the model refers to."""
        entries = {}
        if any(t.data_location == onnx.TensorProto.EXTERNAL for t in protos.tensors(model)):
            entries[DATA_FOLDER] = str(self._source.data_folder)
        if self._native and self._source.path is not None:
            entries[FILE_PATH] = str(self._source.path)
        return entries

    def _contexts_beside_model(self) -> dict[str, str]:
        """Where context binaries are if external data is elsewhere: QNN 2.7.0 and OpenVINO 1.8.1
        look for them in the folder of the external data otherwise.
        """
        path = self._source.path
        if not self._native or path is None or self._source.data_folder == path.parent:
            return {}
        return {FILE_PATH: str(path)}

    def _lent(self, entries: Mapping[str, str]) -> AbstractContextManager[Lender]:
        # What was generated is not generated again.
        off = {ENABLE: "0"} if self._config.enable else {}
        return lent(self._options, {**entries, **off}, any_native=bool(self._native))

    def _segment(self, part: onnx.ModelProto, lend: Lender) -> SessionRunner:
        native = any(is_epcontext(node) for node in protos.nodes(part))
        return SessionRunner(
            self._session(part.SerializeToString(), lend, self._native if native else ())
        )

    def _session(
        self, given: str | bytes, lend: Lender, native: Sequence[ExecutionProvider]
    ) -> ort.InferenceSession:
        """An onnxruntime session that never falls back silently to another EP."""
        options = lend(native=bool(native))
        if native and not options.has_providers():  # the caller's own choice stays
            for provider in native:
                provider.add_to(options)
        for name, size in self._dimensions.items():
            options.add_free_dimension_override_by_name(name, size)
        names = None if options.has_providers() else [DEFAULT_EP]
        try:
            session = ort.InferenceSession(given, options, providers=names, enable_fallback=0)
        except Exception as error:  # onnxruntime's errors have no base of their own
            why, remedy = self._diagnosed(given, options, names)
            raise InvalidGraph(
                "ONNX Runtime refuses it",
                where=self._source.where,
                why=f"{why}: {error}" if why else str(error),
                remedy=remedy,
            ) from error
        if recorded(options):
            for part in session.get_provider_graph_assignment_info():
                self.nodes[part.ep_name] += len(part.get_nodes())
        return session

    def _diagnosed(
        self, given: str | bytes, options: ort.SessionOptions, names: Sequence[str] | None
    ) -> tuple[str, str]:
        """Return why a session cannot be made, as far as the EP does not say it, and what helps."""
        level = options.graph_optimization_level
        try:
            for provider, nodes in self._contexts.items():
                for node in nodes:
                    file = binary_of(node, self._source.folder) if node.main_context else None
                    if file is not None:
                        provider.inspect_binary(file.path)
            if self._contexts:
                options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
                ort.InferenceSession(given, options, providers=names, enable_fallback=0)
                return (
                    "ONNX Runtime loads it only without its optimizations, which make constants of "
                    "inputs of an EPContext node, or find a branch wrong that is not taken",
                    "set graph_optimization_level to ORT_DISABLE_ALL in the session options, or "
                    "build the source with `epctx build`, which folds constants before it compiles",
                )
        except InvalidGraph as error:
            return f"{error.where}: {error.reason}", error.remedy
        except Exception:  # whatever else is wrong, onnxruntime has said it
            pass
        finally:
            options.graph_optimization_level = level
        return "", "build the model again for the versions of onnxruntime and EPs that load it"


def _kernel_runner(
    node: EPContextNode, kernel: Kernel, promised: Mapping[str, NodeArg]
) -> KernelRunner:
    if "" in (*node.inputs, *node.outputs):
        raise InvalidGraph(
            "an input or output of an EPContext node is left out",
            node=node.name,
            remedy="build the model again",
        )
    return KernelRunner(
        node=node.name,
        kernel=kernel,
        reads=node.inputs,
        makes=node.outputs,
        promised={name: promised[name] for name in node.outputs if name in promised},
    )
