"""What an execution provider may tell `epctx verify` and `epctx inspect`: optional Protocols.

A provider that has none of them still builds and runs; what only it can know is then reported as
"not checkable" or left out. Each is one method or attribute, found with isinstance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, runtime_checkable

from msgspec import Struct, field

from epctx.errors import ProviderUnavailable
from epctx.files.digest import Buffer
from epctx.graph.epcontext import EPContextNode
from epctx.manifest import Tolerance

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime as ort


Precision = Literal["float64", "float32", "bfloat16", "float16", "quantized"]
"""Of a source model: quantized if it has Quantize- or DequantizeLinear nodes, else its least exact
floating-point type."""


Outcome = Literal["pass", "fail", "not checkable"]
"""Of a check, an EP's or any other."""
FLOAT16_MAX: Final = 65504.0
HEAD_SIZE: Final = 4096
"""Bytes by which a provider recognizes its binaries."""
PrefixPlace = Literal["name", "partition_name", "graph"]
"""Of an EPContext node; `graph`: the name of its graph in the context binary."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What a provider says of something: a finding without its subject."""

    outcome: Outcome
    message: str
    remedy: str = ""


class BinaryTensor(Struct, frozen=True, kw_only=True):
    """An input or output of a graph in a context binary."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class BinaryGraph(Struct, frozen=True, kw_only=True):
    """A graph in a context binary.

    Attributes:
        name: what the EP finds it by.
        weights: bytes of stored weights that it uses; None: the format does not tell.
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
        graphs: in the file's order.
        tensors: how many weight tensors are stored; None: the format does not tell.
        stored: bytes of stored weights, each content once; None: the format does not tell.
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


@runtime_checkable
class ReadsBinaries(Protocol):
    """It can tell what is in its context binaries."""

    def recognizes(self, head: bytes) -> bool:
        """Whether a file that begins with `head` (HEAD_SIZE bytes, or all of it) is its own."""
        ...

    def inspect_binary(self, path: Path) -> BinaryInfo:
        """What is in a context binary. A parser that may crash runs in a process of its own.

        Raises:
            InvalidGraph: it is broken.
            ProviderUnavailable: this host cannot read it.
        """
        ...


@runtime_checkable
class TellsUnstable(Protocol):
    """It knows what makes it write other bytes each time.

    Attributes:
        unstable: in words, which models, and how to write them otherwise.
    """

    unstable: str

    def why_unstable(self, nodes: Sequence[ir.Node]) -> str | None:
        """Return which of a partition's nodes it knows for that; None if none."""
        ...


@runtime_checkable
class MatchesBinaries(Protocol):
    """It can tell, besides, whether a context binary is the one of nodes."""

    def misfits(self, path: Path, nodes: Sequence[ir.Node]) -> Iterator[str]:
        """What of a context binary does not fit a model's EPContext nodes that refer to it.

        The binary may hold graphs of other models too.

        Raises:
            InvalidGraph: it is broken.
            ProviderUnavailable: this host cannot read it.
        """
        ...


@runtime_checkable
class ChecksCompatibility(Protocol):
    """It knows what its `ep_compatibility_info` and its nodes promise."""

    def check_compatibility(
        self, info: str | None, nodes: Sequence[EPContextNode]
    ) -> Sequence[Verdict]:
        """Whether a model is what this provider's options ask for.

        Args:
            info: the model's `ep_compatibility_info.<name>`; None: it has none.
            nodes: the model's EPContext nodes of this EP, without embedded payloads.
        """
        ...


@runtime_checkable
class HasDevices(Protocol):
    """It is an EP of onnxruntime with devices, which may have to be registered first."""

    def ep_devices(self) -> Sequence[ort.OrtEpDevice]:
        """The devices of this host that it can use, none if there are none.

        Raises:
            ProviderUnavailable: its library is missing or cannot be loaded.
        """
        ...


@runtime_checkable
class JudgesOnDevices(Protocol):
    """It says whether a model fits a device for devices of some types only.

    Attributes:
        judging_devices: these types: CPU, GPU, NPU.
    """

    judging_devices: frozenset[str]


@runtime_checkable
class KnowsHost(Protocol):
    """It knows which of its models this host cannot load."""

    def cannot_load(
        self,
        nodes: Sequence[EPContextNode],
        folder: Path,
        *,
        sharing: bool,
    ) -> str | None:
        """Why this host cannot load a model, one clause; None: it may try.

        Args:
            nodes: the model's EPContext nodes of this EP, without embedded payloads.
            folder: the model's.
            sharing: the model shares a context with others, or its binary holds their graphs.
        """
        ...


@runtime_checkable
class NamesChips(Protocol):
    """It compiles for one chip or more."""

    def chips(self) -> str:
        """Return the chips in words, with part and architecture, and the SDK for them."""
        ...


@runtime_checkable
class KnowsAbsence(Protocol):
    """It knows, without loading its library, whether this host lacks what it needs."""

    def unavailable(self) -> ProviderUnavailable | None:
        """Why this host can neither compile nor run for it; None: it may try."""
        ...


@runtime_checkable
class RunsApart(Protocol):
    """A `native` EP whose nodes cannot always run in one session with those of other EPs."""

    def runs_apart(self, beside: Collection[str]) -> str | None:
        """Why its nodes need a session of their own on this host, one clause; None: they do not.

        Args:
            beside: the `source` of each EPContext node of the model that is another EP's.
        """
        ...


@runtime_checkable
class TellsCost(Protocol):
    """It knows what a build takes beyond one compile of each model."""

    def cost(self, *, numbers: bool) -> str | None:
        """In words; None: nothing.

        Args:
            numbers: what is compiled is run, too.
        """
        ...


@runtime_checkable
class SetsTolerance(Protocol):
    """It knows how exact its numbers are."""

    def tolerance(self, precision: Precision, dtype: str) -> Tolerance:
        """The default tolerance for an output of type `dtype` of a model of this precision."""
        ...


class KnownFault(Struct, frozen=True, kw_only=True, eq=False):
    """Wrong numbers that an EP gives for some nodes, as it was measured.

    Attributes:
        op_type: of these nodes, in ONNX's own domain.
        concerns: whether a node of that type is one of them.
        what: it does, and which version.
        remedy: what mends it.
    """

    op_type: str
    concerns: Callable[[ir.Node], bool]
    what: str
    remedy: str


@runtime_checkable
class KnowsFaults(Protocol):
    """It is known to compute some nodes wrongly."""

    faults: tuple[KnownFault, ...]


@runtime_checkable
class ExtendsSchema(Protocol):
    """Its nodes carry attributes that the op schema does not have."""

    extra_attributes: frozenset[str]


@runtime_checkable
class PlacesPrefix(Protocol):
    """It says where `node_name_prefix` goes; without this, into all of these names."""

    prefixed: frozenset[PrefixPlace]


@runtime_checkable
class FindsGraphs(Protocol):
    """It says which name of a node it finds the node's graph by; without this, perhaps by both.

    The other one may be changed when models are joined (`epctx.stages.compose`).
    """

    finds_graphs_by: Literal["name", "partition_name"]


@runtime_checkable
class BindsByName(Protocol):
    """Its nodes find the inputs and outputs of their graphs by the names of the values.

    Without this the order of the node's inputs and outputs counts, and values may be renamed.
    """

    binds_by_name: bool


@runtime_checkable
class MergesBinaries(Protocol):
    """One session reads one context binary of it; it can make one of several."""

    def merge_binaries(self, binaries: Sequence[Path]) -> Iterator[Buffer]:
        """One context binary with all graphs of several, in pieces; the same for the same ones.

        Raises:
            InvalidGraph: one of them is broken; two have a graph of the same name.
        """
        ...


@runtime_checkable
class HasDrivers(Protocol):
    """Its models run by drivers or firmware of the host, which can change their numbers."""

    def drivers(self) -> Mapping[str, str]:
        """Name to version, found without loading the EP's library: a build asks each time."""
        ...


@runtime_checkable
class WantsInputs(Protocol):
    """It may refuse a partition that has no input, being made of constants alone."""

    @property
    def wants_inputs(self) -> bool:
        """Whether it does."""
        ...


DeviceKind = Literal["cpu", "gpu", "npu"]
"""The kinds of hardware that ONNX Runtime tells apart."""


@runtime_checkable
class DescribesSessions(Protocol):
    """It knows what a session that runs its models must be told: a model package says it."""

    def device_kind(self) -> DeviceKind:
        """The kind of device that its models run on."""
        ...

    def inference_options(self) -> Mapping[str, str]:
        """The provider options that a session needs, as ONNX Runtime takes them; no paths."""
        ...


class OnDevice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a process without epctx gets an EP from ONNX Runtime: what `check_device.py` is told.

    Attributes:
        ep: ONNX Runtime's name of it.
        registration: the name that its library is registered under; None: it is built in.
        package: what pip installs; empty: not known.
        module: the Python module that knows where the library is; None: whoever runs it must say.
        library: the module's function that gives the library's path.
        kinds: the types of devices that load it, the best first; none: the first of any type.
        metadata: what the device says of itself, besides.
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


@runtime_checkable
class RunsOnDevices(Protocol):
    """Its models run where there is ONNX Runtime and no epctx."""

    def on_device(self, nodes: Sequence[EPContextNode], *, sharing: bool) -> OnDevice:
        """What a session for a model must be told.

        Args:
            nodes: the model's EPContext nodes of this EP.
            sharing: the model shares a context with others.
        """
        ...
