"""Protocols of an execution provider. Third parties implement these Protocols.

`epctx.providers.guard` reports any exception but an EpctxError as the provider's own error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from msgspec import Struct, field

from epctx.files.digest import Buffer
from epctx.files.outputs import OwnFile
from epctx.graph.epcontext import EPContextNode
from epctx.graph.model import Decline, Partition, Refusal, Replacement
from epctx.manifest import OptionValue, PartitionSettings

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime as ort


class Fingerprint(Struct, frozen=True, kw_only=True):
    """All of the toolchain, and of the host, that can change the bytes an EP makes.

    Attributes:
        toolchain: what the key and the lock hold: package versions, digests of shared libraries.
        host: facts of this host that the EP's bytes depend on (OpenVINO: CPU instruction set).
        files: files whose content belongs to `toolchain`, by what they are called there. Who asks
            digests them: it knows which of them it has seen before.
    """

    toolchain: Mapping[str, str]
    host: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


class Capability(Struct, frozen=True, kw_only=True):
    """An EP's answer to `get_capability`.

    Attributes:
        nodes: the main graph's nodes that the EP can take, each a candidate by itself.
        declined: for other nodes, why not; a node in neither is "not supported".
    """

    nodes: Sequence[ir.Node]
    declined: Mapping[ir.Node, str] = field(default_factory=dict)

    @classmethod
    def by(cls, model: ir.Model, refusal: Callable[[ir.Node], str | None]) -> Capability:
        """Every node of the main graph but those that `refusal` has a reason against."""
        reasons = {node: refusal(node) for node in model.graph}
        return cls(
            nodes=[node for node, reason in reasons.items() if reason is None],
            declined={node: reason for node, reason in reasons.items() if reason is not None},
        )


class SessionGroupSpec(Struct, frozen=True, kw_only=True):
    """What a workspace is opened for: one sharing group, or one model that shares with nobody.

    Attributes:
        models: the models' names, in the sharing group's order.
        embed_mode: 0 external binary, 1 embedded (then there is one model).
        node_name_prefix: put before every EPContext node name, partition name and graph name.
        session_options: ONNX Runtime session config entries of the manifest.
        folder: an empty folder that the EP may write to; gone after the group.
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
        partitions: ordered topologically; those that were made of what an EP left come after.
        declined: one entry for each node left to the default EP.
        nodes: count of nodes of the main graph.
        boundary_quantize: of those, Quantize/DequantizeLinear nodes at the graph's border left to
            the default EP; `coverage` does not count them.
        settings: by which it was partitioned; what an EP leaves goes by them to the EPs after.
        optional: the EPs may take nothing of it: others have left it, or it is a piece of a model.
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


@runtime_checkable
class Workspace(Protocol):
    """The context that the sessions of one session group share. Used in one process."""

    def compile(
        self, model: PartitionedModel, partitions: Sequence[Partition]
    ) -> Sequence[Replacement]:
        """Compile one model's partitions for this EP: one session. Called in the group's order.

        A partition of which the EP takes nothing gets no replacement.

        Raises:
            CompileError: nothing is to be published.
        """
        ...

    def finish(self) -> Sequence[ContextBinary]:
        """The session that stops sharing: the binaries, none when embedded. Called once."""
        ...

    def close(self) -> None:
        """Clear the workspace, whatever happened. Idempotent."""
        ...


@runtime_checkable
class Generating(Protocol):
    """A workspace whose sessions can be run as long as it is open, before anything is published.

    It computes what is in memory, which is not yet what was written: QNN was seen
    to write other files than it runs.
    """

    def cannot_run(self) -> str | None:
        """Why its sessions cannot run on this host; None: they can."""
        ...

    def run(
        self, partition: Partition, feeds: Mapping[str, ort.OrtValue]
    ) -> Mapping[str, ort.OrtValue]:
        """What the session of a compiled partition computes: its outputs, by name.

        Raises:
            CompileError: the session cannot run what it compiled.
        """
        ...


class Port(Struct, frozen=True, kw_only=True):
    """An input or output of an EPContext node; "" is the name of an input that is left out.

    Attributes:
        name: in the compiled graph.
        type: as onnxruntime writes it, `tensor(float)`; "": its session does not tell.
        shape: of size None where it is open.
    """

    name: str
    type: str = ""
    shape: tuple[int | None, ...] = ()


class Boundary(Struct, frozen=True, kw_only=True):
    """What goes into an EPContext node and comes out of it, in its order. `node`: its name."""

    node: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


@runtime_checkable
class TellsBoundaries(Protocol):
    """A `Generating` workspace that knows which EPContext nodes its sessions stand for."""

    def boundaries(self, model: str) -> Sequence[Boundary]:
        """The EPContext nodes of a compiled model, as the EP wrote them and its sessions run."""
        ...


@runtime_checkable
class WritesVariants(Protocol):
    """A `Generating` workspace that may write files for several devices, which no session runs.

    What such a file computes on one of them is told by sessions that are made for it alone.
    """

    def variants(self) -> Sequence[str]:
        """The devices, in words; none: the sessions that compiled can be run."""
        ...

    def choose(self, variant: str) -> str | None:
        """Compile all again, for one device alone: `run` and `boundaries` mean that from now on.

        Returns:
            In what graphs that the files have for the device are others; None: in nothing that can
            be told.

        Raises:
            CompileError: that does not compile.
        """
        ...


class Assigned(Struct, frozen=True, kw_only=True):
    """A subgraph as an EP that decides for itself inside a partition gave it away.

    Attributes:
        provider: ONNX Runtime's name of who took it.
        nodes: by name, in its order; nodes in the bodies of control flow too.
    """

    provider: str
    nodes: tuple[str, ...]


@runtime_checkable
class ForeseesPlacement(Protocol):
    """An EP that decides inside a partition, and can be asked before it compiles."""

    def foresee(self, model: ir.Model, partition: Partition) -> Mapping[ir.Node, str | Refusal]:
        """The nodes of a partition that it would leave to the CPU, and why.

        Args:
            model: what the partition is of; is not changed.

        Raises:
            CompileError: it failed on the partition.
            ProviderUnavailable: this host cannot ask it.
        """
        ...


@runtime_checkable
class ReportsPlacement(Protocol):
    """A workspace of an EP that itself decides, inside a partition, who takes which node."""

    def assigned(self, model: str) -> Sequence[Assigned]:
        """Who took which nodes of a compiled model."""
        ...

    def left_out(self, model: str) -> Mapping[ir.Node, str | Refusal]:
        """The nodes of a compiled model's partitions that stayed on the CPU, and why."""
        ...


@runtime_checkable
class Kernel(Protocol):
    """One EPContext node, loaded. Synchronous, stateless, called from many threads."""

    def compute(self, inputs: Sequence[ort.OrtValue]) -> Sequence[ort.OrtValue]:
        """Run it on standard tensors, in the node's input order; outputs in the node's order."""
        ...


@runtime_checkable
class SharedContexts(Protocol):
    """The runtime's shared workspace (`ep.share_ep_contexts`): graphs loaded and not yet taken.

    Only one session of the process loads at a time, so a provider that does not find its graph may
    read the binary and leave the others. A key must say which graph of which context it is: two
    binaries may have graphs of one name. Keys of different EPs must differ.
    """

    def take(self, key: str) -> object | None:
        """Move a graph out; None: it never was here, or another session has it."""
        ...

    def leave(self, key: str, graph: object) -> None:
        """Put a graph here for a session to come; one that is here already stays."""
        ...


class ExecutionProvider(Protocol):
    """An execution provider, bound to its options.

    Attributes:
        name: ONNX Runtime's name of it.
        label: the `[ep]` of `[model]_[ep].bin`.
        sources: values of an EPContext node's `source` that it accepts.
        isolated: it needs a fresh process for each session group.
        can_share: it can put several models into one context.
        native: onnxruntime itself runs its EPContext nodes; `load` is not called.
    """

    name: str
    label: str
    sources: frozenset[str]
    isolated: bool
    can_share: bool
    native: bool

    def fingerprint(self) -> Fingerprint:
        """Everything but the inputs and options that can change the bytes."""
        ...

    def get_capability(self, model: ir.Model) -> Capability:
        """Which nodes of the main graph it can take."""
        ...

    def open_workspace(self, session_group: SessionGroupSpec) -> Workspace:
        """An empty workspace. Raises ProviderUnavailable when this host cannot compile."""
        ...

    def load(
        self, nodes: Sequence[EPContextNode], folder: Path | None, shared: SharedContexts | None
    ) -> Sequence[Kernel]:
        """A kernel for each node (all of one model, all of this EP's `sources`), in order.

        Args:
            folder: where `ep_cache_context` is resolved; None: from bytes, without a path.
            shared: where graphs are taken from and left for other sessions; None: not shared.

        Raises:
            InvalidGraph: whatever the reason.
        """
        ...


@runtime_checkable
class NativeSessions(Protocol):
    """What a `native` provider owes besides: its EPContext nodes are run by onnxruntime."""

    def add_to(self, options: ort.SessionOptions) -> None:
        """Register the EP with onnxruntime, and add it with its options to a session's options.

        Raises:
            ProviderUnavailable: its library or a device for it is missing on this host.
        """
        ...


ProviderFactory = Callable[[Mapping[str, OptionValue]], ExecutionProvider]
"""What an entry point of `epctx.execution_providers` loads, under ONNX Runtime's name of the EP: it
binds the EP to options that were validated against its schema."""
