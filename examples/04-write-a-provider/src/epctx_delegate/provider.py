"""The execution provider: subclasses of the abstract classes of `epctx.providers.base`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from epctx.graph.epcontext import EPContextNode
from epctx.graph.model import Partition
from epctx.manifest import OptionValue, Tolerance
from epctx.providers import base, contexts
from epctx.providers.base import PartitionedModel
from epctx_delegate.program import OPERATORS, VERSION, Kernel, Program, Weights, decode, encode

LABEL = "delegate"


class DelegateExecutionProvider(base.ExecutionProvider):
    """Compiles supported nodes into programs, and runs the programs.

    Args:
        options: validated against schemas/DelegateExecutionProvider.options.json.
    """

    name = "DelegateExecutionProvider"
    label = LABEL
    sources = frozenset({LABEL})
    can_share = True

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        self._stored = np.float16 if options.get("precision") == "fp16" else np.float32

    def fingerprint(self) -> base.Fingerprint:
        """Return facts that change the bytes, except this code and the options."""
        return base.Fingerprint(toolchain={"format": VERSION, "numpy": np.__version__})

    def tolerance(self, precision: str, dtype: str) -> Tolerance:
        """Return the tolerance of its outputs. Optional, like every method with a default."""
        return Tolerance(cosine_min=0.9999, max_rel=1e-2 if self._stored is np.float16 else 1e-5)

    def get_capability(self, model: ir.Model) -> base.Capability:
        """Take every supported node; give a reason for each other node, for the build report."""
        return base.Capability.by(model, _refusal)

    def open_workspace(self, session_group: base.SessionGroupSpec) -> base.Workspace:
        """Open the workspace into which the models of one session group are compiled."""
        return DelegateWorkspace(session_group, self._stored)

    def load(
        self,
        nodes: Sequence[EPContextNode],
        folder: Path | None,
        shared: base.SharedContexts | None,
    ) -> Sequence[base.Kernel]:
        """Return a kernel for each node, from the shared workspace or from the node's binary."""

        def read(primary: EPContextNode) -> dict[str, Kernel]:
            data = contexts.content_of(primary, folder)
            kernels = decode(data, where=f"context of node {primary.name!r}")
            return {f"{LABEL}/{k.program.name}/{k.program.digest}": k for k in kernels}

        return contexts.load(nodes, shared, key=_key_of, read=read, kind=Kernel)


class DelegateWorkspace(base.Workspace):
    """The programs and weights of the sessions so far."""

    def __init__(self, spec: base.SessionGroupSpec, stored: type[np.floating]) -> None:
        self._spec, self._stored = spec, stored
        self.close()

    def compile(
        self, model: PartitionedModel, partitions: Sequence[Partition]
    ) -> Sequence[base.Replacement]:
        """Compile each partition into a program. The first node refers to the binary."""
        stem = f"{self._spec.node_name_prefix}{model.name}_{LABEL}"
        programs = [self._lower(part, f"{stem}_{number}") for number, part in enumerate(partitions)]
        self._programs += programs
        context = self._binary.encode()
        if self._spec.embed_mode:
            context = b"".join(encode(programs, self._weights))
        nodes = [
            self._node(program, context if program is programs[0] else None) for program in programs
        ]
        return [
            contexts.replace_by_node(model.model, partition, node)
            for partition, node in zip(partitions, nodes, strict=True)
        ]

    def finish(self) -> Sequence[base.ContextBinary]:
        """Return the binary; an empty list if it is embedded or nothing was compiled."""
        if self._spec.embed_mode or not self._programs:
            return ()
        programs, weights = self._programs, self._weights
        return [base.ContextBinary(name=self._binary, chunks=lambda: encode(programs, weights))]

    def close(self) -> None:
        """Drop all programs and weights."""
        self._programs: list[Program] = []
        self._weights = Weights()

    @property
    def _binary(self) -> str:
        return f"{self._spec.models[0]}_{LABEL}.bin"  # the group's first model names the binary

    def _lower(self, partition: Partition, name: str) -> Program:
        weights = {}
        for value in partition.initializers:
            assert value.const_value is not None
            array = np.asarray(value.const_value.numpy(), self._stored, order="C")
            weights[_name(value)] = self._weights.add(array)
        steps = (
            (node.op_type, tuple(map(_name, node.inputs)), _name(node.outputs[0]))
            for node in partition.nodes
        )
        inputs, outputs = map(_name, partition.inputs), map(_name, partition.outputs)
        return Program(name, tuple(inputs), tuple(outputs), tuple(steps), weights)

    def _node(self, program: Program, context: bytes | None) -> EPContextNode:
        return EPContextNode(
            name=program.name,
            inputs=program.inputs,
            outputs=program.outputs,
            main_context=0 if context is None else 1,  # 0: the program is in another node's context
            ep_cache_context=context,
            embed_mode=self._spec.embed_mode,
            ep_sdk_version=VERSION,
            partition_name=program.name,
            source=LABEL,
            notes=program.digest,
        )


def _refusal(node: ir.Node) -> str | None:
    if node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS:
        return "the delegate has no such operator"
    if node.attributes:
        return "the delegate supports no attributes"
    if any(v is None or v.dtype != ir.DataType.FLOAT for v in (*node.inputs, *node.outputs)):
        return "the delegate computes float32 only"
    return None


def _key_of(node: EPContextNode) -> str:
    return f"{LABEL}/{node.partition_name}/{node.notes}"


def _name(value: ir.Value | None) -> str:
    return (value.name if value is not None else None) or ""
