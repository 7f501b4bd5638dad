"""What every EP of ONNX Runtime says of itself; each EP's own knowledge is in its module."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
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
    Verdict,
)
from epctx.providers.onnxruntime import packages, plugins

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime as ort


class OrtEp(ExecutionProvider):
    """An EP that ONNX Runtime runs: a plugin library, or one built into the installed package.

    Attributes:
        parts_share: what `partition.exclude` leaves of one model may go into one context binary.
        shares_outside: sharing, it leaves external weights where they are, so that the context
            binary would depend on the source; they are handed over inside the model then.
        embeds_parts: a model may have several embedded contexts of it.
        tried: the host and versions that epctx was tried on with it; None: on none.
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
        """Why this host can neither compile nor run for it, as far as is known without its library.

        None: it may try; `add_to` knows better.
        """
        return plugins.hidden_error(self.name)

    @abstractmethod
    def own_fingerprint(self) -> Fingerprint:
        """What of its own can change the bytes; onnxruntime is added to it."""

    def fingerprint(self) -> Fingerprint:
        """Versions and libraries of onnxruntime and of the EP, and facts of the host."""
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
        """Never: onnxruntime runs its nodes (`native`)."""
        raise EpctxError(
            f"{self.name} was asked for kernels, but onnxruntime runs its nodes",
            remedy="report it as a bug of epctx",
        )

    def check_compatibility(
        self, info: str | None, nodes: Sequence[EPContextNode]
    ) -> Sequence[Verdict]:
        """What a model says it is compatible with."""
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
        """Of an EP that is built into ONNX Runtime."""
        return OnDevice(ep=self.name)

    def tolerance(self, precision: Precision, dtype: str) -> Tolerance:
        """Of an EP of which nothing is known: what float16 arithmetic allows."""
        if precision == "quantized":
            return Tolerance(cosine_min=0.98, max_rel=0.5)
        return Tolerance(cosine_min=0.99, max_rel=0.2)

    # What follows is asked by the workspace.

    def compiling(self) -> AbstractContextManager[None]:
        """What the process needs while the EP's library is loaded and compiles."""
        return nullcontext()

    def abandon(self) -> None:
        """End a sharing group whose last session did not come; the current folder is scratch."""

    def refuse_prefix(self, *, several_graphs: bool) -> str | None:
        """Why `node_name_prefix` cannot be carried out; None: it can."""
        return None

    def place_prefix(self, node: ir.Node, prefix: str) -> None:
        """Put the prefix where this EP allows it, in one of its EPContext nodes."""
        node.name = f"{prefix}{node.name}"

    def canonicalize(self, binary: Path) -> bool:
        """Take out of a context binary what says when it was made. Returns whether it may have."""
        return False

    def check_binary(self, binary: Path, nodes: Sequence[ir.Node]) -> None:
        """Read a context binary back and hold it against the EPContext nodes that refer to it.

        Raises:
            CompileError: they do not fit each other.
        """

    def graphs(self, binary: Path) -> Mapping[str, Sequence[BinaryGraph]]:
        """What a context binary that was checked has for each of `variants`."""
        return {}

    def variants(self) -> Mapping[str, OrtEp]:
        """The devices that one file is for, in words, and the EP for each alone; none: for one."""
        return {}

    def cannot_run(self) -> str | None:
        """Why the sessions that compiled cannot run on this host; None: they can."""
        return None

    def why_left(self, node: ir.Node) -> str | None:
        """Why it left a node, if that is known without asking again; None: it is to be asked."""
        return None

    def reasons(self, log: str) -> Mapping[str, Refusal]:
        """Node name to why the EP did not take it, out of a verbose log."""
        return {}

    def failed_remedy(self, why: str) -> str | None:
        """What a user can do about what it said when a compile failed; None: nothing is known."""
        return None


def text(value: OptionValue | tuple[str, ...]) -> str:
    """An option's value as an EP of ONNX Runtime gets it: always a string, 1 and 0 for booleans."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)
