"""The contract of an execution provider (EP): abstract classes to subclass, and their data types.

A provider implements `ExecutionProvider`, `Workspace` and `Kernel`. Only a few methods are
abstract. The default of every other method means "nothing is known": a provider with these defaults
still builds and runs, and reports say "not checkable", or leave out, the facts that only the
provider can know.

`epctx.providers.guard` reports every exception except an EpctxError as an error of the provider.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol

from msgspec import Struct, field

from epctx.errors import ProviderUnavailable
from epctx.files.digest import Buffer
from epctx.files.outputs import OwnFile
from epctx.graph.epcontext import EPContextNode
from epctx.graph.model import Decline, Partition, Refusal, Replacement
from epctx.manifest import OptionValue, PartitionSettings, Tolerance

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime as ort


Precision = Literal["float64", "float32", "bfloat16", "float16", "quantized"]
"""Precision of a source model: quantized if it has Quantize- or DequantizeLinear nodes, else its
least exact floating-point type."""
Outcome = Literal["pass", "fail", "not checkable"]
"""Outcome of a check, by an EP or by epctx."""
PrefixPlace = Literal["name", "partition_name", "graph"]
"""Name that carries `node_name_prefix`: the EPContext node's name, its `partition_name`, or the
name of its graph in the context binary."""
DeviceKind = Literal["cpu", "gpu", "npu"]
"""Kinds of hardware that ONNX Runtime tells apart."""
FLOAT16_MAX: Final = 65504.0
HEAD_SIZE: Final = 4096
"""Bytes by which a provider recognizes its binaries."""


# Answers about an EP and about a model.


class Fingerprint(Struct, frozen=True, kw_only=True):
    """Facts of the toolchain, and of the host, that can change the bytes an EP makes.

    Attributes:
        toolchain: facts for the cache key and the lock: package versions, digests of shared
            libraries.
        host: facts of this host that the EP's bytes depend on (OpenVINO: CPU instruction set).
        files: files whose digests belong to `toolchain`, by their labels there. The caller computes
            the digests, since it may have them already.
    """

    toolchain: Mapping[str, str]
    host: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


class Capability(Struct, frozen=True, kw_only=True):
    """An EP's answer to `get_capability`.

    Attributes:
        nodes: nodes of the main graph that the EP can take. Each is a candidate by itself.
        declined: reasons why the EP does not take other nodes. A node in neither attribute is "not
            supported".
    """

    nodes: Sequence[ir.Node]
    declined: Mapping[ir.Node, str] = field(default_factory=dict)

    @classmethod
    def by(cls, model: ir.Model, refusal: Callable[[ir.Node], str | None]) -> Capability:
        """Take every node of the main graph for which `refusal` returns no reason."""
        reasons = {node: refusal(node) for node in model.graph}
        return cls(
            nodes=[node for node, reason in reasons.items() if reason is None],
            declined={node: reason for node, reason in reasons.items() if reason is not None},
        )


class Verdict(Struct, frozen=True, kw_only=True):
    """A provider's judgement: a finding without its subject."""

    outcome: Outcome
    message: str
    remedy: str = ""


class KnownFault(Struct, frozen=True, kw_only=True, eq=False):
    """Nodes for which an EP was measured to compute wrong numbers.

    Attributes:
        op_type: op type of these nodes, in ONNX's own domain.
        concerns: tells whether a node of that type is affected.
        what: the fault, in words, with the version of the EP.
        remedy: how to avoid the fault.
    """

    op_type: str
    concerns: Callable[[ir.Node], bool]
    what: str
    remedy: str


class OnDevice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Instructions for a process without epctx to get an EP from ONNX Runtime (`check_device.py`).

    Attributes:
        ep: ONNX Runtime's name of the EP.
        registration: name under which the EP's library is registered; None if the EP is built in.
        package: name for pip; empty if not known.
        module: Python module that knows the library's path; None if the user must give the path.
        library: the module's function that gives the library's path.
        kinds: types of devices that can load the model, best first; empty if the first device of
            any type will do.
        metadata: further metadata that the device must have.
        options: provider options for inference.
        paths: provider options that are paths, and the module's functions that give them.
    """

    ep: str
    registration: str | None = None
    package: str = ""
    module: str | None = None
    library: str = "get_library_path"
    kinds: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)


# Context binaries.


class BinaryTensor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An input or output of a graph in a context binary.

    Attributes:
        scale: its scale as in ONNX's QuantizeLinear; None if it is not quantized as a whole.
        zero_point: its zero point, likewise.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: float | None = None
    zero_point: int | None = None

    def __str__(self) -> str:
        words = f"{self.name} {self.dtype}{list(self.shape)}"
        if self.scale is None:
            return words
        return f"{words}, scale {self.scale:.6g}, zero point {self.zero_point}"


class BinaryGraph(Struct, frozen=True, kw_only=True):
    """A graph in a context binary.

    Attributes:
        name: the EP finds the graph by this name.
        weights: bytes of stored weights that the graph uses; None if the format does not tell.
        properties: other facts about the graph, for people.
    """

    name: str
    inputs: tuple[BinaryTensor, ...] = ()
    outputs: tuple[BinaryTensor, ...] = ()
    weights: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


class BinaryInfo(Struct, frozen=True, kw_only=True):
    """Description of a context binary.

    Attributes:
        kind: kind of file, as in `reference EP context binary, format 1`.
        properties: versions, hardware and other identifying facts, for people.
        graphs: its graphs, in the file's order.
        tensors: count of stored weight tensors; None if the format does not tell.
        stored: bytes of stored weights, each content once; None if the format does not tell.
    """

    kind: str
    properties: Mapping[str, str] = field(default_factory=dict)
    graphs: tuple[BinaryGraph, ...] = ()
    tensors: int | None = None
    stored: int | None = None

    @property
    def saved(self) -> int | None:
        """Bytes saved because the graphs share weights."""
        used = [graph.weights for graph in self.graphs]
        if self.stored is None or any(weights is None for weights in used):
            return None
        return sum(weights for weights in used if weights is not None) - self.stored


class ContextBinary(Struct, frozen=True, kw_only=True):
    """A context binary to be written beside the models, by bare `name`, streamed.

    Attributes:
        name: `[first model]_[ep].bin`.
        chunks: makes a fresh iterator over the content each time it is called.
        file: file with the content, if the caller may move the file instead of copying it; else
            None.
    """

    name: str
    chunks: Callable[[], Iterator[Buffer]]
    file: OwnFile | None = None


# Compiling.


class SessionGroupSpec(Struct, frozen=True, kw_only=True):
    """Sessions that share a workspace: one sharing group, or one model that shares with nobody.

    Attributes:
        models: the models' names, in the sharing group's order.
        embed_mode: 0 for an external binary, 1 for an embedded context (then there is one model).
        node_name_prefix: put before every EPContext node name, partition name and graph name.
        session_options: ONNX Runtime session config entries of the manifest.
        folder: an empty folder that the EP may write to. epctx removes the folder after the group.
        open_ended: sessions of models not named here may follow the first, until `finish`. Only for
            EPs that need no isolation.
        binary: stem of the context binary's name; empty for the first model's name.
    """

    models: tuple[str, ...]
    embed_mode: Literal[0, 1]
    node_name_prefix: str
    session_options: Mapping[str, str]
    folder: Path
    open_ended: bool = False
    binary: str = ""

    @property
    def first(self) -> str:
        """Stem of the context binary's name, before `_[ep].bin`."""
        return self.binary or self.models[0]

    @property
    def sharing(self) -> bool:
        """True if several sessions share the context, or may do so later."""
        return self.open_ended or len(self.models) > 1


class PartitionedModel(Struct, frozen=True, kw_only=True):
    """A model with its partitions, each taken by an EP; the default EP takes the other nodes.

    Attributes:
        partitions: in topological order; partitions of nodes that an EP left to another EP come
            last.
        declined: one entry for each node left to the default EP.
        nodes: count of nodes of the main graph.
        boundary_quantize: count of Quantize/DequantizeLinear nodes at the graph's border that the
            default EP takes; `coverage` does not count them.
        settings: settings of the partitioning; they also apply when the next EPs partition the
            nodes that an EP left.
        optional: the EPs may take no node, because the model is a remainder of other EPs or a piece
            of a model.
    """

    name: str
    model: ir.Model
    partitions: tuple[Partition, ...]
    declined: tuple[Decline, ...]
    nodes: int
    boundary_quantize: int = 0
    settings: PartitionSettings = field(default_factory=PartitionSettings)
    optional: bool = False

    @property
    def coverage(self) -> float:
        """Share of the nodes that EPs take, without boundary Quantize/DequantizeLinear; 1.0 without
        nodes.
        """
        counted = self.nodes - self.boundary_quantize
        return sum(len(p.nodes) for p in self.partitions) / counted if counted else 1.0


class Port(Struct, frozen=True, kw_only=True):
    """An input or output of an EPContext node. An omitted input has the name "".

    Attributes:
        name: its name in the compiled graph.
        type: type in onnxruntime's notation, as in `tensor(float)`; empty if the session does not
            tell.
        shape: sizes, None for each open dimension.
    """

    name: str
    type: str = ""
    shape: tuple[int | None, ...] = ()


class Boundary(Struct, frozen=True, kw_only=True):
    """Inputs and outputs of the EPContext node named `node`, in the node's order."""

    node: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


class Trace(Struct, frozen=True, kw_only=True):
    """An EP's own record of a compile.

    Attributes:
        content: the EP's JSON file.
        ops: the EP's operators by the name of the node that they come from.
    """

    content: Mapping[str, Any]
    ops: Mapping[str, tuple[str, ...]]


class Workspace(ABC):
    """Context shared by the sessions of one session group, in one process."""

    @abstractmethod
    def compile(
        self, model: PartitionedModel, partitions: Sequence[Partition]
    ) -> Sequence[Replacement]:
        """Compile one model's partitions for this EP, in one session. Called in the group's order.

        If the EP takes no node of a partition, the partition gets no replacement, and `left_out`
        lists its nodes.

        Raises:
            CompileError: the compile failed, and epctx publishes nothing.
        """

    @abstractmethod
    def finish(self) -> Sequence[ContextBinary]:
        """Stop sharing, and return the binaries; an empty list if embedded. Called once."""

    @abstractmethod
    def close(self) -> None:
        """Clear the workspace, also after an error. Idempotent."""

    # For an EP that leaves some nodes of a partition to the CPU by its own decision.

    def left_out(self, model: str) -> Mapping[ir.Node, str | Refusal]:
        """Return the nodes of a compiled model's partitions that stayed on the CPU, and why."""
        return {}

    def traces(self, model: str) -> Mapping[str, Trace]:
        """Return the traces of a compiled model, by file stem; empty without such an option."""
        return {}

    # Sessions that can run while the workspace is open, before epctx publishes anything. They run
    # the context in memory, not the written file: QNN was seen to write a file that differs from
    # the context it runs.

    def cannot_run(self) -> str | None:
        """Return why the sessions that compiled cannot run on this host; None if they can."""
        return "its workspace has no sessions to run"

    def run(
        self, partition: Partition, feeds: Mapping[str, ort.OrtValue]
    ) -> Mapping[str, ort.OrtValue]:
        """Run the session of a compiled partition; return its outputs by name.

        Called only if `cannot_run` returns None.

        Raises:
            CompileError: the session cannot run what it compiled.
        """
        raise NotImplementedError

    def boundaries(self, model: str) -> Sequence[Boundary] | None:
        """Return the EPContext nodes of a compiled model, as the EP wrote them and its sessions
        run; None if the workspace does not know them.
        """
        return None

    def variants(self) -> Sequence[str]:
        """Return the devices, in words, if one file is for several devices and no session can run
        that file.
        """
        return ()

    def choose(self, variant: str) -> str | None:
        """Compile all models again for one of `variants`; `run` and `boundaries` then use that
        compile.

        Returns:
            How the graphs in the files for that device differ; None if no difference is visible.

        Raises:
            CompileError: the models do not compile for that device.
        """
        raise NotImplementedError


class Kernel(Protocol):
    """A loaded EPContext node. Synchronous, stateless, called from many threads.

    A Protocol, because kernels are structs and dataclasses with bases of their own.
    """

    def compute(self, inputs: Sequence[ort.OrtValue]) -> Sequence[ort.OrtValue]:
        """Run the node on standard tensors, with inputs and outputs in the node's order."""
        ...


class SharedContexts:
    """The runtime's shared workspace (`ep.share_ep_contexts`): loaded graphs that no session has
    taken yet.

    Source: the EPContext design, "Implementation Guidelines for Inferencing from EPContext Models
    with Weight Sharing". A graph is either here or in the session that took it, never in both. Only
    one session of the process loads at a time, so a provider that does not find its graph may read
    the binary and leave the other graphs here. A key must identify both the graph and its context,
    since two binaries may have graphs of the same name. Keys of different EPs must differ.

    Graphs stay until a session takes them, even after the session that read them is closed: they
    hold a mapped file, not memory. `clear`, or a session with `ep.stop_share_ep_contexts`, releases
    them.

    Attributes:
        graphs: the graphs by their keys.
    """

    def __init__(self) -> None:
        self._loading = threading.RLock()
        self.graphs: dict[str, object] = {}

    @contextmanager
    def session(self, *, last: bool) -> Iterator[SharedContexts]:
        """Let one session load while others wait. The last session clears the workspace, also after
        an error.
        """
        with self._loading:
            try:
                yield self
            finally:
                if last:
                    self.clear()

    def take(self, key: str) -> object | None:
        """Remove and return a graph; None if it is not here."""
        with self._loading:
            return self.graphs.pop(key, None)

    def leave(self, key: str, graph: object) -> None:
        """Put a graph here for a later session; a graph already stored under this key stays."""
        with self._loading:
            self.graphs.setdefault(key, graph)

    def clear(self) -> None:
        """Drop all graphs and release their files."""
        with self._loading:
            self.graphs.clear()

    def __len__(self) -> int:
        return len(self.graphs)


class ExecutionProvider(ABC):
    """An execution provider, bound to its options.

    A provider sets `name`, `label` and `sources`, and implements `fingerprint`, `get_capability`,
    `open_workspace` and `load`. All other members have a default.

    Attributes:
        name: ONNX Runtime's name of the EP.
        label: the `[ep]` of `[model]_[ep].bin`.
        sources: values of an EPContext node's `source` that the EP accepts.
        isolated: each session group needs a fresh process.
        can_share: several models can go into one context.
        native: onnxruntime itself runs the EP's nodes; epctx calls `add_to` instead of `load`.
        static_shapes: the EP compiles models of static shapes only.
        wants_inputs: the EP compiles no partition without an input.
        foresees: `foresee` can tell, before the compile, what stays on the CPU.
        reads_one_binary: a session reads only one context binary; `merge_binaries` merges several
            into one.
        finds_graphs_by: how the EP finds the graph of an EPContext node. If by `partition_name`,
            the node's name may change when models are joined.
        binds_by_name: nodes find inputs and outputs of their graphs by the names of the values. If
            false, their order counts, and values may be renamed.
        prefixed: names that get the `node_name_prefix`.
        extra_attributes: attributes of the EP's nodes beyond the op schema.
        judging_devices: types of devices (CPU, GPU, NPU) for which the EP's library can tell
            whether a model fits; empty for any type.
        faults: nodes that the EP is known to compute wrongly.
        unstable: in words, which models get different bytes in each build, and how to rewrite them;
            empty if none are known.
    """

    name: str
    label: str
    sources: frozenset[str]
    isolated: bool = False
    can_share: bool = False
    native: bool = False
    static_shapes: ClassVar[bool] = False
    wants_inputs: bool = False
    foresees: bool = False
    reads_one_binary: bool = False
    finds_graphs_by: Literal["name", "partition_name"] = "name"
    binds_by_name: bool = False
    prefixed: frozenset[PrefixPlace] = frozenset({"name", "partition_name", "graph"})
    extra_attributes: frozenset[str] = frozenset()
    judging_devices: frozenset[str] = frozenset()
    faults: tuple[KnownFault, ...] = ()
    unstable: str = ""

    @abstractmethod
    def fingerprint(self) -> Fingerprint:
        """Return everything that can change the bytes, except the inputs and options."""

    @abstractmethod
    def get_capability(self, model: ir.Model) -> Capability:
        """Return which nodes of the main graph the EP can take."""

    @abstractmethod
    def open_workspace(self, session_group: SessionGroupSpec) -> Workspace:
        """Open an empty workspace. Raises ProviderUnavailable when this host cannot compile."""

    @abstractmethod
    def load(
        self, nodes: Sequence[EPContextNode], folder: Path | None, shared: SharedContexts | None
    ) -> Sequence[Kernel]:
        """Return a kernel for each node, in order. All nodes are of one model and have a `source`
        of this EP.

        Args:
            folder: folder against which `ep_cache_context` is resolved; None for a model from bytes
                without a path.
            shared: workspace from which graphs are taken, and in which graphs are left for other
                sessions; None if not shared.

        Raises:
            InvalidGraph: the context cannot be loaded, for any reason.
        """

    # The host.

    def unavailable(self) -> ProviderUnavailable | None:
        """Return why this host can neither compile nor run for the EP; None if nothing speaks
        against it.

        Must not load the EP's library.
        """
        return None

    def drivers(self) -> Mapping[str, str]:
        """Return the host's drivers or firmware that run the EP's models, with versions, since they
        can change numbers. Must not load the EP's library, because every build calls this.
        """
        return {}

    def cannot_load(
        self, nodes: Sequence[EPContextNode], folder: Path, *, sharing: bool
    ) -> str | None:
        """Return why this host cannot load a model, as one clause; None if nothing speaks against
        it.

        Args:
            nodes: the model's EPContext nodes of this EP, without embedded payloads.
            folder: the model's folder.
            sharing: the model shares a context with other models, or its binary holds graphs of
                other models.
        """
        return None

    # EPs of onnxruntime (`native`).

    def add_to(self, options: ort.SessionOptions) -> None:  # noqa: B027 - for native EPs only
        """Register the EP with onnxruntime, and add it with its options to a session's options.

        Raises:
            ProviderUnavailable: the EP's library, or a device for the EP, is missing on this host.
        """

    def ep_devices(self) -> Sequence[ort.OrtEpDevice]:
        """Return the devices of this host that the EP can use. May register the EP's library.

        Raises:
            ProviderUnavailable: the EP's library is missing or cannot be loaded.
        """
        return ()

    def runs_apart(self, beside: Collection[str]) -> str | None:
        """Return why the EP's nodes need a session of their own on this host, as one clause; None
        if they do not.

        Args:
            beside: `source` of each EPContext node in the model that belongs to another EP.
        """
        return None

    def nothing_compiled_remedy(self) -> str:
        """Return the remedy for the case that the EP took no node."""
        return "check the provider's options, and which operators and types it supports"

    # Before a compile.

    def foresee(self, model: ir.Model, partition: Partition) -> Mapping[ir.Node, str | Refusal]:
        """Return the nodes of a partition that the EP would leave to the CPU, and why.

        Called only if `foresees`.

        Args:
            model: the partition's model; must not be changed.

        Raises:
            CompileError: the EP failed on the partition.
            ProviderUnavailable: this host cannot ask the EP.
        """
        return {}

    def cost(self, *, numbers: bool) -> str | None:
        """Return the work of a build beyond one compile of each model, in words; None if there is
        none.

        Args:
            numbers: the build also runs the compiled models.
        """
        return None

    def why_unstable(self, nodes: Sequence[ir.Node]) -> str | None:
        """Name the nodes of a partition that get different bytes in each build; None if none are
        known.
        """
        return None

    # Checks of what was built.

    def check_compatibility(
        self, info: str | None, nodes: Sequence[EPContextNode]
    ) -> Sequence[Verdict]:
        """Judge whether a model matches this provider's options; empty if the provider cannot tell.

        Args:
            info: the model's `ep_compatibility_info.<name>`; None if the model has none.
            nodes: the model's EPContext nodes of this EP, without embedded payloads.
        """
        return ()

    def tolerance(self, precision: Precision, dtype: str) -> Tolerance | None:
        """Return the default tolerance for an output of type `dtype` of a model of this precision;
        None if the provider does not know its accuracy.
        """
        return None

    def recognizes(self, head: bytes) -> bool | None:
        """Tell whether a file that begins with `head` (HEAD_SIZE bytes, or all of it) is a context
        binary of this EP; None if the provider does not know the format.
        """
        return None

    def inspect_binary(self, path: Path) -> BinaryInfo | None:
        """Describe a context binary; None if the provider does not know the format.

        Run a parser that may crash in a process of its own.

        Raises:
            InvalidGraph: the binary is broken.
            ProviderUnavailable: this host cannot read it.
        """
        return None

    def wrap_binary(self, path: Path, *, quantized: bool) -> Mapping[str, ir.Model]:
        """Return an EPContext model for each graph of a context binary, by the graph's name; empty
        if the EP's binaries do not describe their graphs. The models refer to the binary by its
        bare name.

        Args:
            quantized: keep quantized inputs and outputs as integers; else they become float32.

        Raises:
            InvalidGraph: the binary is broken, is for another chip than the options say, or has
                values that ONNX does not have.
            ProviderUnavailable: this host cannot read it.
        """
        return {}

    def misfits(self, path: Path, nodes: Sequence[ir.Node]) -> Iterator[str]:
        """Yield each mismatch between a context binary and a model's EPContext nodes that refer to
        it.

        The binary may also hold graphs of other models. The default reads the binary but compares
        nothing.

        Raises:
            InvalidGraph: the binary is broken.
            ProviderUnavailable: this host cannot read it.
        """
        self.inspect_binary(path)
        yield from ()

    def merge_binaries(self, binaries: Sequence[Path]) -> Iterator[Buffer]:
        """Merge context binaries into one with all their graphs, and yield it in pieces.
        Deterministic.

        Called only if `reads_one_binary`.

        Raises:
            InvalidGraph: a binary is broken, or two have a graph of the same name.
        """
        raise NotImplementedError

    # Release and deployment.

    def chips(self) -> str:
        """Return the chips that the EP compiles for, with part and architecture, and the SDK; empty
        if the options name no chip.
        """
        return ""

    def device_kind(self) -> DeviceKind | None:
        """Return the kind of device that runs the EP's models; None if it is not known."""
        return None

    def inference_options(self) -> Mapping[str, str]:
        """Return the provider options that a session needs, in ONNX Runtime's form; no paths."""
        return {}

    def on_device(self, nodes: Sequence[EPContextNode], *, sharing: bool) -> OnDevice | None:
        """Return how to make a session for a model with ONNX Runtime but without epctx; None if
        ONNX Runtime alone cannot run the EP's models.

        Args:
            nodes: the model's EPContext nodes of this EP.
            sharing: the model shares a context with others.
        """
        return None


ProviderFactory = Callable[[Mapping[str, OptionValue]], ExecutionProvider]
"""Object that an entry point of `epctx.execution_providers` loads. The entry point has ONNX
Runtime's name of the EP. The object binds the EP to options that were validated against its
schema."""
