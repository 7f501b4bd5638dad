"""The contract of an execution provider (EP): abstract classes to subclass, and their data types.

`ExecutionProvider`, `Workspace` and `Kernel` are what a provider implements. Only a few methods are
abstract. The default of every other method means "nothing is known": such a provider still builds
and runs, and what only it can know is reported as "not checkable" or left out.

`epctx.providers.guard` reports any exception but an EpctxError as the provider's own error.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Protocol

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
"""Outcome of a check, an EP's or any other."""
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
        toolchain: what the key and the lock hold: package versions, digests of shared libraries.
        host: facts of this host that the EP's bytes depend on (OpenVINO: CPU instruction set).
        files: files whose content belongs to `toolchain`, by their labels there. The caller
            digests them: it may have their digests already.
    """

    toolchain: Mapping[str, str]
    host: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


class Capability(Struct, frozen=True, kw_only=True):
    """An EP's answer to `get_capability`.

    Attributes:
        nodes: the main graph's nodes that the EP can take, each a candidate by itself.
        declined: reasons against other nodes; a node in neither is "not supported".
    """

    nodes: Sequence[ir.Node]
    declined: Mapping[ir.Node, str] = field(default_factory=dict)

    @classmethod
    def by(cls, model: ir.Model, refusal: Callable[[ir.Node], str | None]) -> Capability:
        """Take every node of the main graph but those that `refusal` gives a reason against."""
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
    """Wrong numbers that an EP gives for some nodes, as they were measured.

    Attributes:
        op_type: op type of these nodes, in ONNX's own domain.
        concerns: tells whether a node of that type is one of them.
        what: what the EP does wrong, and in which version.
        remedy: what mends it.
    """

    op_type: str
    concerns: Callable[[ir.Node], bool]
    what: str
    remedy: str


class OnDevice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Instructions for a process without epctx to get an EP from ONNX Runtime (`check_device.py`).

    Attributes:
        ep: ONNX Runtime's name of the EP.
        registration: the name that its library is registered under; None if it is built in.
        package: what pip installs; empty if not known.
        module: the Python module that knows where the library is; None if the user must say.
        library: the module's function that gives the library's path.
        kinds: the types of devices that load it, the best first; empty: the first of any type.
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


class BinaryTensor(Struct, frozen=True, kw_only=True):
    """An input or output of a graph in a context binary."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class BinaryGraph(Struct, frozen=True, kw_only=True):
    """A graph in a context binary.

    Attributes:
        name: what the EP finds it by.
        weights: bytes of stored weights that it uses; None if the format does not tell.
        properties: what else is known of it, for people.
    """

    name: str
    inputs: tuple[BinaryTensor, ...] = ()
    outputs: tuple[BinaryTensor, ...] = ()
    weights: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


class BinaryInfo(Struct, frozen=True, kw_only=True):
    """A context binary in words.

    Attributes:
        kind: what it is: `reference EP context binary, format 1`.
        properties: versions, hardware, whatever identifies it, for people.
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
        """Bytes that the graphs would need more if each had its own weights."""
        used = [graph.weights for graph in self.graphs]
        if self.stored is None or any(weights is None for weights in used):
            return None
        return sum(weights for weights in used if weights is not None) - self.stored


class ContextBinary(Struct, frozen=True, kw_only=True):
    """A context binary to be written beside the models, by bare `name`, streamed.

    Attributes:
        name: `[first model]_[ep].bin`.
        chunks: makes a fresh iterator over the content each time it is called.
        file: the content, if it lies in a file that may be taken away in place of a copy.
    """

    name: str
    chunks: Callable[[], Iterator[Buffer]]
    file: OwnFile | None = None


# Compiling.


class SessionGroupSpec(Struct, frozen=True, kw_only=True):
    """Sessions that share a workspace: one sharing group, or one model that shares with nobody.

    Attributes:
        models: the models' names, in the sharing group's order.
        embed_mode: 0 external binary, 1 embedded (then there is one model).
        node_name_prefix: put before every EPContext node name, partition name and graph name.
        session_options: ONNX Runtime session config entries of the manifest.
        folder: an empty folder that the EP may write to; it is removed after the group.
        open_ended: sessions of models that are not named yet may follow the first; `finish` says
            that there are no more. Only for EPs that need no isolation.
        binary: what names the binary; empty: the first model does.
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
        """More than one session shares the context, or may yet."""
        return self.open_ended or len(self.models) > 1


class PartitionedModel(Struct, frozen=True, kw_only=True):
    """A model and who takes which part of it; the default EP takes what is in no partition.

    Attributes:
        partitions: ordered topologically; those made of what an EP left come after.
        declined: one entry for each node left to the default EP.
        nodes: count of nodes of the main graph.
        boundary_quantize: count of Quantize/DequantizeLinear nodes at the graph's border that are
            left to the default EP; `coverage` does not count them.
        settings: settings of the partitioning; what an EP leaves goes by them to the EPs after.
        optional: the EPs may take nothing: others have left it, or it is a piece of a model.
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
        """EP nodes over all nodes, boundary Quantize/DequantizeLinear apart; 1.0 if none."""
        counted = self.nodes - self.boundary_quantize
        return sum(len(p.nodes) for p in self.partitions) / counted if counted else 1.0


class Port(Struct, frozen=True, kw_only=True):
    """An input or output of an EPContext node; "" is the name of an input that is left out.

    Attributes:
        name: its name in the compiled graph.
        type: as onnxruntime writes it, `tensor(float)`; empty if the session does not tell.
        shape: open dimensions are None.
    """

    name: str
    type: str = ""
    shape: tuple[int | None, ...] = ()


class Boundary(Struct, frozen=True, kw_only=True):
    """Inputs and outputs of the EPContext node named `node`, in the node's order."""

    node: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


class Workspace(ABC):
    """The context that the sessions of one session group share. Used in one process."""

    @abstractmethod
    def compile(
        self, model: PartitionedModel, partitions: Sequence[Partition]
    ) -> Sequence[Replacement]:
        """Compile one model's partitions for this EP: one session. Called in the group's order.

        A partition of which the EP takes nothing gets no replacement; `left_out` names its nodes.

        Raises:
            CompileError: nothing is to be published.
        """

    @abstractmethod
    def finish(self) -> Sequence[ContextBinary]:
        """Stop sharing, and return the binaries; none when embedded. Called once."""

    @abstractmethod
    def close(self) -> None:
        """Clear the workspace, whatever happened. Idempotent."""

    # An EP that itself decides, inside a partition, who takes which node.

    def left_out(self, model: str) -> Mapping[ir.Node, str | Refusal]:
        """Return the nodes of a compiled model's partitions that stayed on the CPU, and why."""
        return {}

    # Sessions that can be run as long as the workspace is open, before anything is published. They
    # compute what is in memory, not what was written: QNN was seen to write other files than it
    # runs.

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
        """Return the devices, in words, if one file is for several and no session runs it."""
        return ()

    def choose(self, variant: str) -> str | None:
        """Compile all again for one of `variants` alone: `run` and `boundaries` then mean that.

        Returns:
            How the graphs in the files for that device differ; None if no difference is visible.

        Raises:
            CompileError: it does not compile.
        """
        raise NotImplementedError


class Kernel(Protocol):
    """A loaded EPContext node. Synchronous, stateless, called from many threads.

    A Protocol, because kernels are structs and dataclasses with bases of their own.
    """

    def compute(self, inputs: Sequence[ort.OrtValue]) -> Sequence[ort.OrtValue]:
        """Run the node on standard tensors: inputs and outputs in the node's order."""
        ...


class SharedContexts:
    """The runtime's shared workspace (`ep.share_ep_contexts`): graphs loaded and not yet taken.

    Source: the EPContext design, "Implementation Guidelines for Inferencing from EPContext Models
    with Weight Sharing". A graph is in at most one place: here, or in the session that took it.
    Only one session of the process loads at a time, so a provider that does not find its graph may
    read the binary and leave the others. A key must say which graph of which context it is: two
    binaries may have graphs of one name. Keys of different EPs must differ.

    Graphs stay until a session takes them, also when the session that read them is gone: they hold
    a mapped file, not memory. `clear`, or a session with `ep.stop_share_ep_contexts`, lets go.

    Attributes:
        graphs: the graphs by their keys.
    """

    def __init__(self) -> None:
        self._loading = threading.RLock()
        self.graphs: dict[str, object] = {}

    @contextmanager
    def session(self, *, last: bool) -> Iterator[SharedContexts]:
        """Let one session load while others wait. The last one clears, whatever happens."""
        with self._loading:
            try:
                yield self
            finally:
                if last:
                    self.clear()

    def take(self, key: str) -> object | None:
        """Move a graph out; None if it never was here, or another session has it."""
        with self._loading:
            return self.graphs.pop(key, None)

    def leave(self, key: str, graph: object) -> None:
        """Put a graph here for a later session; one that is here already stays."""
        with self._loading:
            self.graphs.setdefault(key, graph)

    def clear(self) -> None:
        """Forget all graphs, and let their files go."""
        with self._loading:
            self.graphs.clear()

    def __len__(self) -> int:
        return len(self.graphs)


class ExecutionProvider(ABC):
    """An execution provider, bound to its options.

    A provider sets `name`, `label` and `sources`, and implements `fingerprint`, `get_capability`,
    `open_workspace` and `load`. All else has a default.

    Attributes:
        name: ONNX Runtime's name of the EP.
        label: the `[ep]` of `[model]_[ep].bin`.
        sources: values of an EPContext node's `source` that the EP accepts.
        isolated: each session group needs a fresh process.
        can_share: several models can go into one context.
        native: onnxruntime itself runs the EP's nodes: `load` is not called, `add_to` is.
        static_shapes: the EP compiles models of static shapes only.
        wants_inputs: the EP compiles no partition without an input.
        foresees: `foresee` can tell, before the compile, what stays on the CPU.
        reads_one_binary: a session reads one context binary; `merge_binaries` makes one of several.
        finds_graphs_by: how the EP finds the graph of an EPContext node. By `partition_name`: the
            node's name may be changed when models are joined.
        binds_by_name: nodes find inputs and outputs of their graphs by the names of the values.
            Else their order counts, and values may be renamed.
        prefixed: names that `node_name_prefix` is put before.
        extra_attributes: attributes of the EP's nodes that the op schema does not have.
        judging_devices: types of devices (CPU, GPU, NPU) for which the EP's library says whether a
            model fits; empty: for any.
        faults: nodes that the EP is known to compute wrongly.
        unstable: in words, which models get other bytes each time, and how to write them otherwise;
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
        """Return everything but the inputs and options that can change the bytes."""

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
        """Return a kernel for each node (all of one model, all of this EP's `sources`), in order.

        Args:
            folder: where `ep_cache_context` is resolved; None for bytes without a path.
            shared: where graphs are taken from and left for other sessions; None if not shared.

        Raises:
            InvalidGraph: whatever the reason.
        """

    # The host.

    def unavailable(self) -> ProviderUnavailable | None:
        """Return why this host can neither compile nor run for the EP; None if it may try.

        Must not load the EP's library.
        """
        return None

    def drivers(self) -> Mapping[str, str]:
        """Return the drivers or firmware of the host that run its models, with versions: they can
        change numbers. Must not load the EP's library: a build asks each time.
        """
        return {}

    def cannot_load(
        self, nodes: Sequence[EPContextNode], folder: Path, *, sharing: bool
    ) -> str | None:
        """Return why this host cannot load a model, one clause; None if it may try.

        Args:
            nodes: the model's EPContext nodes of this EP, without embedded payloads.
            folder: the model's folder.
            sharing: the model shares a context with others, or its binary holds their graphs.
        """
        return None

    # EPs of onnxruntime (`native`).

    def add_to(self, options: ort.SessionOptions) -> None:  # noqa: B027 - for native EPs only
        """Register the EP with onnxruntime, and add it with its options to a session's options.

        Raises:
            ProviderUnavailable: its library or a device for it is missing on this host.
        """

    def ep_devices(self) -> Sequence[ort.OrtEpDevice]:
        """Return the devices of this host that the EP can use; its library may be registered.

        Raises:
            ProviderUnavailable: its library is missing or cannot be loaded.
        """
        return ()

    def runs_apart(self, beside: Collection[str]) -> str | None:
        """Return why the EP's nodes need a session of their own on this host, one clause; None if
        they do not.

        Args:
            beside: the `source` of each EPContext node of the model that is another EP's.
        """
        return None

    def nothing_compiled_remedy(self) -> str:
        """Return what a user can do if the EP took no node."""
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
        """Return what a build takes beyond one compile of each model, in words; None if nothing.

        Args:
            numbers: what is compiled is run, too.
        """
        return None

    def why_unstable(self, nodes: Sequence[ir.Node]) -> str | None:
        """Return which of a partition's nodes get other bytes each time; None if none are known."""
        return None

    # Checks of what was built.

    def check_compatibility(
        self, info: str | None, nodes: Sequence[EPContextNode]
    ) -> Sequence[Verdict]:
        """Judge whether a model is what this provider's options ask for; empty if it cannot tell.

        Args:
            info: the model's `ep_compatibility_info.<name>`; None if it has none.
            nodes: the model's EPContext nodes of this EP, without embedded payloads.
        """
        return ()

    def tolerance(self, precision: Precision, dtype: str) -> Tolerance | None:
        """Return the default tolerance for an output of type `dtype` of a model of this precision;
        None if the provider does not know how exact its numbers are.
        """
        return None

    def recognizes(self, head: bytes) -> bool | None:
        """Tell whether a file that begins with `head` (HEAD_SIZE bytes, or all of it) is a context
        binary of this EP; None if the provider does not know the format.
        """
        return None

    def inspect_binary(self, path: Path) -> BinaryInfo | None:
        """Describe a context binary; None if the provider does not know the format.

        A parser that may crash runs in a process of its own.

        Raises:
            InvalidGraph: the binary is broken.
            ProviderUnavailable: this host cannot read it.
        """
        return None

    def misfits(self, path: Path, nodes: Sequence[ir.Node]) -> Iterator[str]:
        """Yield what of a context binary does not fit a model's EPContext nodes that refer to it.

        The binary may hold graphs of other models too. By default it is read, and its content not
        compared.

        Raises:
            InvalidGraph: the binary is broken.
            ProviderUnavailable: this host cannot read it.
        """
        self.inspect_binary(path)
        yield from ()

    def merge_binaries(self, binaries: Sequence[Path]) -> Iterator[Buffer]:
        """Yield one context binary with all graphs of several, in pieces; always the same bytes.

        Called only if `reads_one_binary`.

        Raises:
            InvalidGraph: one of them is broken; two have a graph of the same name.
        """
        raise NotImplementedError

    # Release and deployment.

    def chips(self) -> str:
        """Return the chips that it compiles for, with part and architecture, and the SDK for them;
        empty if it names none.
        """
        return ""

    def device_kind(self) -> DeviceKind | None:
        """Return the kind of device that its models run on; None if it is not known."""
        return None

    def inference_options(self) -> Mapping[str, str]:
        """Return the provider options that a session needs, in ONNX Runtime's form; no paths."""
        return {}

    def on_device(self, nodes: Sequence[EPContextNode], *, sharing: bool) -> OnDevice | None:
        """Return what a session for a model needs where there is ONNX Runtime and no epctx; None if
        its models do not run there.

        Args:
            nodes: the model's EPContext nodes of this EP.
            sharing: the model shares a context with others.
        """
        return None


ProviderFactory = Callable[[Mapping[str, OptionValue]], ExecutionProvider]
"""Object that an entry point of `epctx.execution_providers` loads, under ONNX Runtime's name of the
EP: it binds the EP to options that were validated against its schema."""
