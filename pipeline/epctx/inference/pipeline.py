"""A model in steps: onnxruntime sessions and EP kernels, which pass values on.

`PipelineBuilder` makes the steps: it creates the sessions and binds kernels to their edges.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import onnx
import onnxruntime as ort
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs
from msgspec import Struct

from epctx.errors import InvalidGraph, ModelError
from epctx.graph import structure
from epctx.graph.epcontext import EPContextNode, is_epcontext
from epctx.graph.serde import protos, reader
from epctx.graph.weights.data_file import DataFile
from epctx.graph.weights.external_data import DataFolder
from epctx.inference.options import (
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
from epctx.inference.split import KernelStep, SegmentBuilder, cut, segment
from epctx.inference.values import NodeArg, Value, of_tensor, to_python, to_value
from epctx.manifest import DEFAULT_EP
from epctx.providers.base import ExecutionProvider, Kernel
from epctx.providers.contexts import binary_of

_METADATA: Final = ("producer_name", "domain", "model_version", "doc_string", "metadata_props")
"""Fields of a model that onnxruntime's `ModelMetadata` is made of."""


class ModelSource(Struct, frozen=True, kw_only=True):
    """A model that is not read yet.

    Attributes:
        path: the file; None if `data` has it.
        data: the model's bytes.
        folder: folder of the context binaries; None for a model from bytes without
            `ep.context_file_path`.
        data_folder: folder of the external data.
    """

    path: Path | None
    data: bytes
    folder: Path | None
    data_folder: Path

    @classmethod
    def of(cls, given: str | os.PathLike[str] | bytes, config: SessionConfig) -> ModelSource:
        """Resolve a caller's path or bytes, without reading the model.

        External data is in `session.model_external_initializers_file_folder_path`, as in
        onnxruntime 1.31, else beside the model; for a model from bytes in the current folder.
        Context binaries are beside the model; for a model from bytes beside `ep.context_file_path`,
        which need not exist.
        """
        if isinstance(given, bytes | bytearray | memoryview):
            folder = None if config.file_path is None else config.file_path.absolute().parent
            return cls(
                path=None,
                data=bytes(given),
                folder=folder,
                data_folder=config.data_folder or Path.cwd(),
            )
        path = Path(given).absolute()
        data_folder = (config.data_folder or path.parent).absolute()
        return cls(path=path, data=b"", folder=path.parent, data_folder=data_folder)

    @property
    def where(self) -> str:
        """The model's description in messages."""
        return "the model from bytes" if self.path is None else str(self.path)

    def has_contexts(self) -> bool:
        """Tell whether the model has EPContext nodes, also inside control flow and functions.

        Raises:
            ModelError: the file does not exist, or is not an ONNX model.
        """
        model = self._parse(self.data) if self.path is None else reader.read(self.path)
        return any(is_epcontext(node) for node in protos.nodes(model))

    def read(self) -> onnx.ModelProto:
        """Read the model, sort its nodes topologically, and check every reference to external data.

        Raises:
            ModelError: the file does not exist, or is not an ONNX model.
            InvalidGraph: the graph is broken, or refers to data that is missing or outside.
        """
        data = self.data
        if self.path is not None:
            data = bytes(DataFile.open(self.path).view())
        model = self._parse(data)
        folder = DataFolder(self.data_folder, model=self.path or Path("model from bytes"))
        try:
            structure.normalize(model, where=self.where)
            for tensor in protos.tensors(model):
                if tensor.data_location == onnx.TensorProto.EXTERNAL:
                    folder.resolve(tensor)
        except ModelError as error:
            raise InvalidGraph.of(error.failure) from error
        return model

    def _parse(self, data: bytes) -> onnx.ModelProto:
        try:
            model: onnx.ModelProto = onnx.ModelProto.FromString(data)
        except DecodeError as error:
            raise ModelError(
                "is not an ONNX model",
                where=self.where,
                why=str(error),
                remedy="give the bytes of an .onnx file",
            ) from error
        return model


class SessionRunner:
    """A step that onnxruntime runs."""

    def __init__(self, session: ort.InferenceSession) -> None:
        outputs = session.get_outputs()
        inputs = (*session.get_inputs(), *session.get_overridable_initializers())
        self.session = session
        self.reads = tuple(dict.fromkeys(arg.name for arg in inputs))
        self.makes = tuple(arg.name for arg in outputs)
        self._tensors = all(_is_numeric_tensor(arg.type) for arg in outputs)

    def run(
        self, values: Mapping[str, Value], run_options: ort.RunOptions | None
    ) -> Sequence[Value]:
        """Run the session. If all values are OrtValues, they stay so; strings and sequences go
        through Python.
        """
        feeds = {name: values[name] for name in self.reads if name in values}
        if self._tensors and all(isinstance(v, ort.OrtValue) for v in feeds.values()):
            outputs: Sequence[Value] = self.session.run_with_ort_values(
                self.makes, feeds, run_options
            )
            return outputs
        return [to_value(v) for v in self.session.run(self.makes, feeds, run_options)]


class KernelRunner(Struct, frozen=True, kw_only=True):
    """A step that an EP's kernel runs.

    Attributes:
        node: the EPContext node's name.
        kernel: the kernel that the EP loaded for the node.
        reads: names of the node's inputs.
        makes: names of the node's outputs.
        promised: types and shapes that the model declares for outputs, by name.
    """

    node: str
    kernel: Kernel
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    promised: Mapping[str, NodeArg]

    def run(
        self, values: Mapping[str, Value], run_options: ort.RunOptions | None
    ) -> Sequence[Value]:
        """Run the kernel; its outputs have the types and shapes that the model promises.

        Raises:
            InvalidGraph: an output has another type or shape.
        """
        outputs = self.kernel.compute([values[name] for name in self.reads])
        for name, value in zip(self.makes, outputs, strict=True):
            why = self.promised[name].misfit(value) if name in self.promised else None
            if why is not None:
                raise InvalidGraph(
                    f"output {name!r} has another type or shape than the model declares",
                    node=self.node,
                    why=why,
                    remedy="correct the type and shape of this output in the source model, "
                    "and build it again",
                )
        return outputs


class ApartRunner(Struct, frozen=True, kw_only=True):
    """A step that runs one EPContext node. Its session holds all nodes of its EP and no others.

    This allows nodes of several EPs to alternate in a model that onnxruntime cannot run in one
    session: on the x86 simulator, QNN fails to run beside OpenVINO (measured). All nodes of an EP
    are in one session, since nodes with `main_context` 0 find their graphs in the context of
    another node.

    Attributes:
        session: session of the EP's nodes and no others.
        reads: the session's inputs that the node needs, and those that its predecessors in the
            session need. The predecessors run again, since onnxruntime does not accept feeds for
            values that it computes.
        makes: names of the node's outputs.
        idle: a placeholder for each input of the session. onnxruntime requires all inputs, but
            reads only those of the nodes that run.
    """

    session: ort.InferenceSession
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    idle: Mapping[str, ort.OrtValue]

    def run(
        self, values: Mapping[str, Value], run_options: ort.RunOptions | None
    ) -> Sequence[Value]:
        """Run the node and those of the session's nodes that it depends on."""
        options = ort.RunOptions()  # the caller's options must not change
        options.only_execute_path_to_fetches = True
        feeds = {**self.idle, **{name: values[name] for name in self.reads if name in values}}
        outputs = self.session.run_with_ort_values(self.makes, feeds, options)
        return [to_value(to_python(value)) for value in outputs]  # copy out of the EP's memory


Runner = SessionRunner | KernelRunner | ApartRunner
"""A step with the session or kernel that runs it. Called from many threads. `reads` and `makes` are
the names of its input and output values. `run` computes the outputs; optional inputs may be
missing."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A model's steps in the order in which they run.

    Attributes:
        inputs: the model's inputs, including those with an initializer.
        overridable: names of the inputs with an initializer.
        outputs: the model's outputs.
        constants: initializers that kernels read or that are outputs, by name.
        runners: the steps.
        whole: the session that runs the whole model; None if there are several steps.
        frame: small model with the metadata of a model of several steps; empty for one step.
    """

    inputs: tuple[NodeArg, ...]
    overridable: frozenset[str]
    outputs: tuple[NodeArg, ...]
    constants: Mapping[str, Value]
    runners: tuple[Runner, ...]
    whole: ort.InferenceSession | None = None
    frame: bytes = b""
    _last_use: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for index, runner in enumerate(self.runners):
            self._last_use.update(dict.fromkeys(runner.reads, index))
        self._last_use.update(dict.fromkeys((a.name for a in self.outputs), len(self.runners)))

    def sessions(self) -> list[ort.InferenceSession]:
        """Return the onnxruntime sessions of the steps. A session may have several steps."""
        return [each.session for each in self.runners if not isinstance(each, KernelRunner)]

    def run(
        self,
        names: Sequence[str],
        feeds: Mapping[str, Value],
        run_options: ort.RunOptions | None,
    ) -> list[Value]:
        """Return the outputs of these names. Each value is released after its last use."""
        values: dict[str, Value] = {**self.constants, **feeds}
        for index, runner in enumerate(self.runners):
            values.update(zip(runner.makes, runner.run(values, run_options), strict=True))
            for name in (*runner.reads, *runner.makes):
                if self._last_use.get(name, -1) <= index:
                    values.pop(name, None)
        return [values[name] for name in names]


def _frame(model: onnx.ModelProto) -> bytes:
    """Return a small model that onnxruntime loads, with the metadata of `model`."""
    metadata = {each.name: value for each, value in model.ListFields() if each.name in _METADATA}
    frame = onnx.ModelProto(ir_version=10, **metadata)
    frame.opset_import.add(version=21)
    frame.graph.name, frame.graph.doc_string = model.graph.name, model.graph.doc_string
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [])
    frame.graph.input.append(value)
    frame.graph.output.append(value)
    return bytes(frame.SerializeToString())


def _is_numeric_tensor(type_: str) -> bool:
    return type_.startswith("tensor(") and type_ != "tensor(string)"


def apart_runners(part: onnx.ModelProto, session: ort.InferenceSession) -> Iterator[ApartRunner]:
    """Yield a runner for each node of `part`, the model of `session`."""
    idle = {value.name: _idle(value) for value in part.graph.input}
    needs: dict[str, frozenset[str]] = {name: frozenset((name,)) for name in idle}
    for node in part.graph.node:
        origins = (needs[name] for name in node.input if name in needs)
        own: frozenset[str] = frozenset().union(*origins)
        needs.update(dict.fromkeys(node.output, own))
        makes = tuple(name for name in node.output if name)
        yield ApartRunner(session=session, reads=tuple(sorted(own)), makes=makes, idle=idle)


def _idle(value: onnx.ValueInfoProto) -> ort.OrtValue:
    tensor = value.type.tensor_type
    shape = [dim.dim_value or 1 for dim in tensor.shape.dim]
    return ort.OrtValue.ortvalue_from_shape_and_type(shape, tensor.elem_type)


class PipelineBuilder:
    """Makes the steps of a model.

    Args:
        native: EPs of onnxruntime that have nodes in the model, or may take nodes.
        dimensions: sizes of symbolic dimensions.
        contexts: the EPContext nodes of each of `native`.

    Attributes:
        nodes: number of nodes that each EP took in the sessions so far, where it was recorded.
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
        """Make a pipeline that runs the unchanged model in one session.

        Args:
            counted: record the number of nodes per EP in `nodes`, regardless of the caller's
                options.

        Raises:
            InvalidGraph: onnxruntime refuses the model.
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
            whole=session,
        )

    def parts(
        self,
        model: onnx.ModelProto,
        kernels: Mapping[int, tuple[EPContextNode, Kernel]],
        own_sessions: Mapping[ExecutionProvider, Sequence[int]],
    ) -> Pipeline:
        """Make a pipeline of steps: kernels, nodes of EPs with sessions of their own, and sessions
        for the nodes between them.

        Args:
            kernels: kernels by the node's index in the main graph.
            own_sessions: indices of all nodes of each EP of onnxruntime that needs a session of its
                own.

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
                elif step.outputs:  # otherwise nothing needs the step's values
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
            frame=_frame(model),
        )

    def _apart(
        self,
        model: onnx.ModelProto,
        provider: ExecutionProvider,
        places: Sequence[int],
        lend: Lender,
    ) -> Iterable[tuple[int, Runner]]:
        part = SegmentBuilder(model).build(segment(model.graph, places))
        session = self._session(part.SerializeToString(), lend, [provider])
        return zip(places, apart_runners(part, session), strict=True)

    def _constants(self, graph: onnx.GraphProto, runners: Iterable[Runner]) -> dict[str, Value]:
        needed = {name for runner in runners for name in runner.reads}
        needed.update(value.name for value in graph.output)
        folder = str(self._source.data_folder)
        return {t.name: of_tensor(t, folder) for t in graph.initializer if t.name in needed}

    def _places(self, model: onnx.ModelProto) -> dict[str, str]:
        """Return the options with which sessions from bytes find the files that the model refers
        to.
        """
        entries = {}
        if any(t.data_location == onnx.TensorProto.EXTERNAL for t in protos.tensors(model)):
            entries[DATA_FOLDER] = str(self._source.data_folder)
        if self._native and self._source.path is not None:
            entries[FILE_PATH] = str(self._source.path)
        return entries

    def _contexts_beside_model(self) -> dict[str, str]:
        """Return the option for the folder of context binaries, if external data is elsewhere.
        Without it, QNN 2.7.0 and OpenVINO 1.8.1 look for the binaries in the folder of the external
        data.
        """
        path = self._source.path
        if not self._native or path is None or self._source.data_folder == path.parent:
            return {}
        return {FILE_PATH: str(path)}

    def _lent(self, entries: Mapping[str, str]) -> AbstractContextManager[Lender]:
        # The session must not dump an EPContext model again.
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
        """Create an onnxruntime session that never silently falls back to another EP."""
        options = lend(bool(native))
        if native and not options.has_providers():  # the caller's own choice stays
            for provider in native:
                provider.add_to(options)
        for name, size in self._dimensions.items():
            options.add_free_dimension_override_by_name(name, size)
        names = None if options.has_providers() else [DEFAULT_EP]
        try:
            session = ort.InferenceSession(given, options, providers=names, enable_fallback=0)
        except Exception as error:  # onnxruntime's errors have no common base class
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
        """Return the reason why a session cannot be made, if the EP does not give it, and a
        remedy.
        """
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
                    "ONNX Runtime loads it only without its optimizations, which turn inputs of an "
                    "EPContext node into constants, or refuse a branch that is never taken",
                    "set graph_optimization_level to ORT_DISABLE_ALL in the session options, or "
                    "build the source with `epctx build`, which folds constants before it compiles",
                )
        except InvalidGraph as error:
            return f"{error.where}: {error.reason}", error.remedy
        except Exception:  # onnxruntime has reported any other fault
            pass
        finally:
            options.graph_optimization_level = level
        return (
            "",
            "build the model again for the versions of onnxruntime and of the EPs on this host",
        )


def _kernel_runner(
    node: EPContextNode, kernel: Kernel, promised: Mapping[str, NodeArg]
) -> KernelRunner:
    if "" in (*node.inputs, *node.outputs):
        raise InvalidGraph(
            "an EPContext node omits an input or output",
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
