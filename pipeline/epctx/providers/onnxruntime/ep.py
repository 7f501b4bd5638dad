"""Base class of ONNX Runtime's EPs. Facts about a single EP are in the EP's module."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from epctx.errors import EpctxError, ProviderUnavailable
from epctx.graph.epcontext import COMPATIBILITY, EPContextNode
from epctx.graph.model import Refusal
from epctx.manifest import OptionValue, Tolerance
from epctx.providers.base import (
    BinaryGraph,
    ExecutionProvider,
    Fingerprint,
    Kernel,
    OnDevice,
    Precision,
    PrefixPlace,
    SharedContexts,
    Trace,
    Verdict,
)
from epctx.providers.onnxruntime import packages, plugins

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime as ort


class OrtEp(ExecutionProvider):
    """An EP that ONNX Runtime runs: a plugin library, or one built into the installed package.

    Attributes:
        parts_share: several partitions of one model may go into one context binary.
        shares_outside: when sharing, the EP refers to external weights in the source's files
            instead of copying them into the context binary. So epctx hands the weights over inside
            the model.
        embeds_parts: a model may have several embedded contexts of this EP.
        tried: host and versions on which epctx was tried with the EP; None if the EP was never
            tried.
    """

    isolated = True
    native = True
    parts_share: bool = False
    shares_outside: ClassVar[bool] = False
    embeds_parts: ClassVar[bool] = True
    tried: ClassVar[str | None] = None
    prefixed: frozenset[PrefixPlace] = frozenset({"name"})

    @abstractmethod
    def add_to(self, options: ort.SessionOptions) -> None:
        """Register the EP with onnxruntime, and add it with its options to a session's options."""

    @abstractmethod
    def ep_devices(self) -> Sequence[ort.OrtEpDevice]:
        """Return the devices of this host that the EP can use."""

    def unavailable(self) -> ProviderUnavailable | None:
        """Return why this host can neither compile nor run for the EP; None if only `add_to` can
        tell.
        """
        return plugins.hidden_error(self.name)

    @abstractmethod
    def own_fingerprint(self) -> Fingerprint:
        """Return the EP's own facts that can change the bytes; `fingerprint` adds onnxruntime's."""

    def fingerprint(self) -> Fingerprint:
        """Return versions and libraries of onnxruntime and of the EP, and facts of the host."""
        runtime = packages.onnxruntime()
        own = self.own_fingerprint()
        files = packages.labelled(runtime.distribution, packages.libraries(runtime))
        return Fingerprint(
            toolchain={runtime.distribution: runtime.version, **own.toolchain},
            host=own.host,
            files={**files, **own.files},
        )

    def load(
        self, nodes: Sequence[EPContextNode], folder: Path | None, shared: SharedContexts | None
    ) -> Sequence[Kernel]:
        """Raise an error, since onnxruntime runs the EP's nodes (`native`)."""
        raise EpctxError(
            f"{self.name} cannot make kernels, since onnxruntime runs its nodes",
            remedy="report it as a bug of epctx",
        )

    def check_compatibility(
        self, info: str | None, nodes: Sequence[EPContextNode]
    ) -> Sequence[Verdict]:
        """Report the compatibility string of a model."""
        if info is None:
            return (
                Verdict(
                    outcome="not checkable",
                    message=f"the model has no {COMPATIBILITY}{self.name}; not every "
                    "execution provider writes one",
                ),
            )
        return (Verdict(outcome="pass", message=f"it is for {info}"),)

    def on_device(self, nodes: Sequence[EPContextNode], *, sharing: bool) -> OnDevice:
        """Describe an EP that is built into ONNX Runtime."""
        return OnDevice(ep=self.name)

    def tolerance(self, precision: Precision, dtype: str) -> Tolerance:
        """Return limits that suit float16 arithmetic, since the EP's accuracy is not known."""
        if precision == "quantized":
            return Tolerance(cosine_min=0.98, max_rel=0.5)
        return Tolerance(cosine_min=0.99, max_rel=0.2)

    # The workspace calls the following methods.

    def compiling(self) -> AbstractContextManager[None]:
        """Set up the process for the time in which the EP's library is loaded and compiles."""
        return nullcontext()

    def abandon(self) -> None:
        """End a sharing group whose last session was never made. The current folder is scratch."""

    def refuse_prefix(self, *, several_graphs: bool) -> str | None:
        """Return why `node_name_prefix` cannot be applied; None if it can."""
        return None

    def place_prefix(self, node: ir.Node, prefix: str) -> None:
        """Put the prefix where this EP allows it, in one of its EPContext nodes."""
        node.name = f"{prefix}{node.name}"

    def canonicalize(self, binary: Path) -> bool:
        """Remove the build time from a context binary. Returns whether the binary may have
        had one.
        """
        return False

    def check_binary(self, binary: Path, nodes: Sequence[ir.Node]) -> None:
        """Read a context binary back and compare it with the EPContext nodes that refer to it.

        Raises:
            CompileError: the binary and the nodes do not match.
        """

    def graphs(self, binary: Path) -> Mapping[str, Sequence[BinaryGraph]]:
        """Return the graphs of a checked context binary, for each of `variants`."""
        return {}

    def variants(self) -> Mapping[str, OrtEp]:
        """Return the devices of a file for several devices, in words, each with the EP for that
        device alone.
        """
        return {}

    def cannot_run(self) -> str | None:
        """Return why the sessions that compiled cannot run on this host; None if they can."""
        return None

    def why_left(self, node: ir.Node) -> str | None:
        """Return why the EP left a node; None if that is not known without asking again."""
        return None

    def reasons(self, log: str) -> Mapping[str, Refusal]:
        """Return why the EP did not take nodes, by node name, from a verbose log."""
        return {}

    def take_trace(self, nodes: Iterable[ir.Node]) -> Trace | None:
        """Return the trace of a compile of these nodes, taken from the current folder; or None."""
        return None

    def failed_remedy(self, why: str) -> str | None:
        """Return the remedy for the error of a compile; None if none is known."""
        return None


def text(value: OptionValue | tuple[str, ...]) -> str:
    """Return an option's value as a string, as EPs of ONNX Runtime take it; booleans: 1 and 0."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)
