"""Stage 4, compile: each partition is replaced by what its EP made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import onnx_ir as ir

from epctx.errors import CompileError
from epctx.graph import surgery
from epctx.graph.model import PartitionedModel
from epctx.providers.base import (
    ContextBinary,
    ExecutionProvider,
    Replacement,
    ReportsPlacement,
    SessionGroupSpec,
    Workspace,
)
from epctx.stages import partition


@dataclass(frozen=True, kw_only=True, eq=False)
class CompiledGroup:
    """A compiled session group, valid while the workspaces of its EPs are open.

    Attributes:
        models: by the manifest's key, in the session group's order: the model with its partitions
            replaced.
        partitioned: who took which nodes in the end, in the same order.
        binaries: the context binaries, one for each EP that has something to share or to store.
        workspaces: one for each EP, in priority order.
    """

    models: dict[str, ir.Model]
    partitioned: tuple[PartitionedModel, ...]
    binaries: tuple[ContextBinary, ...]
    workspaces: tuple[Workspace, ...]


@contextmanager
def run(
    models: Sequence[PartitionedModel],
    providers: Sequence[ExecutionProvider],
    session_group: SessionGroupSpec,
) -> Iterator[CompiledGroup]:
    """Compile a session group's models, in its order, one session each, into one workspace an EP.

    The last session writes the binary. The workspaces are cleared on leaving, whatever happens.
    The models are changed in place. Source: spec/ep-context-design.md, "EPContext Model Generation
    with Weight Sharing Workflow".

    Raises:
        CompileError: an EP failed, or a model has no node on any EP.
    """
    for model in models:
        if providers and not model.partitions:
            raise _nothing_compiled(model)
    with ExitStack() as stack:
        workspaces: list[Workspace] = []
        for provider in providers:
            workspace = provider.open_workspace(session_group)
            stack.callback(workspace.close)
            workspaces.append(workspace)
        replaced = [_compile_model(model, workspaces) for model in models]
        binaries = tuple(binary for workspace in workspaces for binary in workspace.finish())
        labels = [provider.label for provider in providers]
        settled = tuple(
            partition.settle(model, _left_out(model, workspaces), labels) for model in models
        )
        for model, replacements in zip(models, replaced, strict=True):
            surgery.splice(model.model, replacements)
        yield CompiledGroup(
            models={model.name: model.model for model in models},
            partitioned=settled,
            binaries=binaries,
            workspaces=tuple(workspaces),
        )


def _compile_model(model: PartitionedModel, workspaces: Sequence[Workspace]) -> list[Replacement]:
    replacements: list[Replacement] = []
    for index, workspace in enumerate(workspaces):
        partitions = [p for p in model.partitions if p.provider == index]
        if partitions:
            replacements.extend(workspace.compile(model, partitions))
    return replacements


def _left_out(
    model: PartitionedModel, workspaces: Sequence[Workspace]
) -> dict[int, Mapping[ir.Node, str]]:
    return {
        index: workspace.left_out(model.name)
        for index, workspace in enumerate(workspaces)
        if isinstance(workspace, ReportsPlacement)
    }


def _nothing_compiled(model: PartitionedModel) -> CompileError:
    why = None
    if model.declined:
        first = model.declined[0]
        why = "; ".join(
            f"{ep} declined {first.node} ({first.op_type}): {r}" for ep, r in first.reasons
        )
    return CompileError(
        "nothing compiled: no execution provider takes any node",
        where=f"model {model.name}",
        why=why,
        remedy="run `epctx plan --partition`, then change `partition`, the options or the EPs; "
        "a plain ONNX output has `execution_providers: []`",
    )
