"""The reference EP: a complete execution provider without a vendor SDK.

It runs every op that ONNX Runtime's CPU EP runs, and is the executable specification of
providers.base. This module has no slow imports, since a plan asks for the EP's fingerprint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from epctx.error_codes import Code
from epctx.errors import InvalidGraph, ManifestError
from epctx.graph.epcontext import EPContextNode
from epctx.manifest import OptionValue, Tolerance
from epctx.providers.base import (
    BinaryGraph,
    BinaryInfo,
    Capability,
    ExecutionProvider,
    Fingerprint,
    Kernel,
    Precision,
    SessionGroupSpec,
    SharedContexts,
    Verdict,
    Workspace,
)
from epctx.providers.default import CpuKernels, registered
from epctx.providers.reference.layout import FORMAT_VERSION, MAGIC
from epctx.providers.reference.options import NAME, ReferenceOptions, Toolchain, check_versions
from epctx.text import nearest

if TYPE_CHECKING:
    import onnx_ir as ir


_DEFAULT_DOMAINS: Final = ("", "ai.onnx")
_TOLERANCES: Final[Mapping[Precision, tuple[float, float]]] = {
    "float64": (0.999999, 1e-9),
    "float32": (0.999999, 5e-5),
    "float16": (0.999, 2e-2),
    "bfloat16": (0.999, 5e-2),
    "quantized": (0.999, 5e-2),
}
"""Minimum cosine and maximum relative error, by precision."""


class ReferenceExecutionProvider(ExecutionProvider):
    """The reference EP, bound to its options.

    Args:
        options: as in schemas/providers/ReferenceExecutionProvider.options.json.

    Raises:
        ManifestError: an option is unknown, or a value has the wrong type.
    """

    name = NAME
    can_share = True
    finds_graphs_by: Literal["name", "partition_name"] = "partition_name"

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        self.options = ReferenceOptions.parse(options)
        self.label = self.options.source
        self.sources = frozenset({self.options.source})

    def fingerprint(self) -> Fingerprint:
        """Return the format version. The bytes also depend on epctx and onnxruntime, but never on
        the host.
        """
        return Fingerprint(toolchain={"format": str(FORMAT_VERSION)})

    def get_capability(self, model: ir.Model) -> Capability:
        """Return the nodes that ONNX Runtime's CPU EP runs, except those that the options exclude.

        Raises:
            ManifestError: `ops` or `exclude_ops` names an op that does not exist.
        """
        only, without = self._ops("ops", model), self._ops("exclude_ops", model)
        kernels = CpuKernels(model)
        return Capability.by(
            model,
            lambda node: _left_out(node, only, without) or kernels.refusal(node) or _custom(node),
        )

    def open_workspace(self, session_group: SessionGroupSpec) -> Workspace:
        """Open an empty workspace; this EP compiles on every host."""
        from epctx.providers.reference.workspace import ReferenceWorkspace

        return ReferenceWorkspace(self.options, session_group)

    def load(
        self, nodes: Sequence[EPContextNode], folder: Path | None, shared: SharedContexts | None
    ) -> Sequence[Kernel]:
        """Return a kernel for each node; `loading` says how each finds its graph."""
        from epctx.providers.reference import loading

        return loading.load(nodes, self.options.toolchain, folder, shared)

    def recognizes(self, head: bytes) -> bool:
        """Tell whether the file begins with the magic bytes, which all format versions share."""
        return head.startswith(MAGIC)

    def inspect_binary(self, path: Path) -> BinaryInfo:
        """Describe a context binary, also one for another host."""
        from epctx.providers.reference.reader import open_file

        context = open_file(path.parent, path.name, where=str(path))
        return BinaryInfo(
            kind=f"context binary of the reference EP, format {FORMAT_VERSION}",
            properties={
                "SDK version": context.meta.sdk_version,
                "required driver version": context.meta.driver_version,
                "hardware architecture": context.meta.hardware_architecture,
                "source": context.meta.source,
            },
            graphs=tuple(
                BinaryGraph(
                    name=graph.entry.name,
                    weights=graph.entry.weights,
                    properties={"model": graph.entry.model, "digest": str(graph.digest)},
                )
                for graph in context.graphs.values()
            ),
            tensors=len(context.tensors),
            stored=sum(tensor.length for tensor in context.tensors.values()),
        )

    def misfits(self, path: Path, nodes: Sequence[ir.Node]) -> Iterator[str]:
        """Yield each mismatch between a context binary and the nodes."""
        from epctx.providers.reference import loading

        yield from loading.misfits(path, nodes)

    def cannot_load(
        self,
        nodes: Sequence[EPContextNode],
        folder: Path,
        *,
        sharing: bool,
    ) -> str | None:
        """Compare SDK and architecture of a model with the host that the options describe."""
        for node in nodes:
            needed = Toolchain(
                sdk_version=node.ep_sdk_version or self.options.sdk_version,
                driver_version=self.options.driver_version,
                hardware_architecture=node.hardware_architecture
                or self.options.hardware_architecture,
            )
            try:
                check_versions(needed, self.options.toolchain, where=f"node {node.name!r}")
            except InvalidGraph as error:
                return f"its context {error.what}"
        return None

    def check_compatibility(
        self, info: str | None, nodes: Sequence[EPContextNode]
    ) -> Sequence[Verdict]:
        """Check that a model is for the host of the options. Uses the nodes' attributes, not
        `info`.
        """
        reason = self.cannot_load(nodes, Path(), sharing=False)
        if reason is not None:
            remedy = "build it with the `hardware_architecture` and `sdk_version` that it is for"
            return [Verdict(outcome="fail", message=reason, remedy=remedy)]
        toolchains = {
            f"SDK {node.ep_sdk_version} for {node.hardware_architecture}" for node in nodes
        }
        return [
            Verdict(
                outcome="pass",
                message=f"made by {', '.join(sorted(toolchains))}, as the options require",
            )
        ]

    def tolerance(self, precision: Precision, dtype: str) -> Tolerance:
        """Return limits for ONNX Runtime's own numbers, computed in parts. Fusions do not cross the
        borders of parts. This moved the output of a ResNet-50 in 50 parts by 1.3e-5 of its largest
        magnitude (onnxruntime 1.31.1).
        """
        if not dtype.startswith(("float", "bfloat")):
            return Tolerance()
        cosine_min, max_rel = _TOLERANCES[precision]
        return Tolerance(cosine_min=cosine_min, max_rel=max_rel)

    def _ops(self, option: str, model: ir.Model) -> frozenset[tuple[str, str]]:
        """Return an option's ops as (domain, op type), after checking that each exists."""
        names: tuple[str, ...] = getattr(self.options, option)
        functions = {(domain, name) for domain, name, _ in model.functions}
        ops = frozenset(_op(name) for name in names)
        for domain, op_type in sorted(ops - functions):
            if not registered(domain, op_type):
                raise ManifestError(
                    f"option {option!r} names {op_type!r}, which is not an operator of domain "
                    f"{domain or 'ai.onnx'!r}",
                    where=NAME,
                    remedy=_near(op_type, domain),
                    code=Code.WRONG_OPTION_VALUE,
                )
        return ops


def _op(name: str) -> tuple[str, str]:
    domain, _, op_type = name.rpartition("::")
    return ("" if domain in _DEFAULT_DOMAINS else domain), op_type


def _left_out(
    node: ir.Node, only: Collection[tuple[str, str]], without: Collection[tuple[str, str]]
) -> str | None:
    op = ("" if node.domain in _DEFAULT_DOMAINS else node.domain), node.op_type
    if op in without:
        return "option exclude_ops leaves it out"
    if only and op not in only:
        return "option ops does not name it"
    return None


def _custom(node: ir.Node) -> str | None:
    if registered(node.domain, node.op_type):
        return None
    return "custom operator: sessions that load a context do not register its library"


def _near(op_type: str, domain: str) -> str:
    import onnx

    op_types = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == domain}
    near = nearest(op_type, op_types)
    return f'did you mean "{near}"?' if near else "write it as `Op` or `domain::Op`"
