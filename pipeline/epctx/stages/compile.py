"""Stages 4 and 5, compile and dump: EPs replace their partitions, and the files are written.

Files are canonical, and each is hashed in the pass that writes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import onnx_ir as ir
from msgspec import Struct, field

from epctx.error_codes import Code
from epctx.errors import CompileError, ModelError
from epctx.files import outputs
from epctx.files.outputs import GroupOutput, OutputFile
from epctx.graph import epcontext
from epctx.graph.model import Partition, Replacement
from epctx.graph.partition import borders, contexts, surgery
from epctx.graph.serde import canonical, data_files
from epctx.manifest import ExternalInitializers
from epctx.providers.base import (
    ContextBinary,
    ExecutionProvider,
    PartitionedModel,
    SessionGroupSpec,
    Trace,
    Workspace,
)
from epctx.stages import partition
from epctx.stages.report import ModelReport


class CompiledGroup(Struct, frozen=True, kw_only=True, eq=False):
    """A compiled session group, valid while the workspaces of its EPs are open.

    Attributes:
        models: models with replaced partitions, by the manifest's key, in the session group's
            order.
        partitioned: final partitions of the models, in the same order.
        joint: models in which an EP compiled nodes that another had left inside its partitions.
        binaries: context binaries, one for each EP that shares or stores one.
        workspaces: one for each EP, in priority order.
    """

    models: dict[str, ir.Model]
    partitioned: tuple[PartitionedModel, ...]
    joint: frozenset[str] = frozenset()
    binaries: tuple[ContextBinary, ...]
    workspaces: tuple[Workspace, ...]

    def traces(self, model: str) -> dict[str, Trace]:
        """Return the traces of a model, by file stem."""
        return {k: v for each in self.workspaces for k, v in each.traces(model).items()}


SessionStarted = Callable[[str, ExecutionProvider], None]
"""Receives a model's name and an EP before the EP gets the model: native code may crash."""


def _unheard(model: str, provider: ExecutionProvider) -> None:
    """Ignore the event."""


@contextmanager
def run(
    models: Sequence[PartitionedModel],
    providers: Sequence[ExecutionProvider],
    session_group: SessionGroupSpec,
    started: SessionStarted = _unheard,
) -> Iterator[CompiledGroup]:
    """Compile a session group's models, in its order, with one session for each model and one
    workspace for each EP.

    Nodes that an EP leaves are partitioned again among the later EPs. The last session writes the
    binary. The workspaces are closed at the end in any case. The models are changed in place.
    Source: spec/ep-context-design.md, "EPContext Model Generation with Weight Sharing Workflow".

    Raises:
        CompileError: an EP failed, or a model has no node on any EP.
        ModelError: a model has no node, or a node that neither an EP nor the default EP takes.
    """
    for model in models:
        if providers and not (model.partitions or model.optional):
            raise nothing_compiled(model, model.model.graph)
    with ExitStack() as stack:
        workspaces: list[Workspace] = []
        for provider in providers:
            workspace = provider.open_workspace(session_group)
            stack.callback(workspace.close)
            workspaces.append(workspace)
        works = [Chain(model=model, providers=providers) for model in models]
        for work in works:
            work.compile(workspaces, started)
        binaries = tuple(binary for workspace in workspaces for binary in workspace.finish())
        partitioned = tuple(work.finish(workspaces) for work in works)
        yield CompiledGroup(
            models={work.model.name: work.model.model for work in works},
            partitioned=partitioned,
            joint=frozenset(work.model.name for work in works if work.joint),
            binaries=binaries,
            workspaces=tuple(workspaces),
        )


class Chain(Struct, kw_only=True, eq=False):
    """A model on its way through the EPs: `compile`, then `finish`.

    Attributes:
        model: the model with its current partitions.
        first: place of the first EP whose replacements are not spliced in yet.
        reasons: reasons of earlier EPs, by a node's name.
        replacements: replacements of the EPs from there on, not yet spliced.
        joint: true if an EP compiled nodes that another had left inside its partitions.
    """

    model: PartitionedModel
    providers: Sequence[ExecutionProvider]
    first: int = 0
    reasons: dict[str, partition.Reasons] = field(default_factory=dict)
    replacements: list[Replacement] = field(default_factory=list)
    joint: bool = False

    def compile(self, workspaces: Sequence[Workspace], started: SessionStarted = _unheard) -> None:
        """Let each EP compile its partitions; nodes that it leaves go to later EPs.

        Raises:
            CompileError: an EP failed.
            ModelError: neither an EP nor the default EP takes a node that an EP left.
        """
        for index, workspace in enumerate(workspaces):
            partitions = [p for p in self.model.partitions if p.provider == index]
            if not partitions:
                continue
            started(self.model.name, self.providers[index])
            replacements = workspace.compile(self.model, partitions)
            self.replacements.extend(replacements)
            self.joint = self.joint or bool(replacements and self.first)
            if index + 1 < len(workspaces) and _leaves(partitions, replacements):
                self._hand_on(index + 1, workspaces)

    def finish(self, workspaces: Sequence[Workspace]) -> PartitionedModel:
        """Put the replacements into the model; return the final partitions.

        Raises:
            CompileError: no EP took a node.
        """
        partitioned = self._placed(workspaces)
        if self.providers and not (partitioned.partitions or partitioned.optional):
            raise nothing_compiled(partitioned, partitioned.model.graph)
        contexts.bind_ends(partitioned.model.graph)
        return partitioned

    def _placed(self, workspaces: Sequence[Workspace]) -> PartitionedModel:
        partitioned = self._left_out(workspaces)
        surgery.splice(partitioned.model, self.replacements)
        self.replacements = []
        return partitioned

    def _left_out(self, workspaces: Sequence[Workspace]) -> PartitionedModel:
        left_out = {
            index: workspace.left_out(self.model.name)
            for index, workspace in enumerate(workspaces)
            if index >= self.first
        }
        labels = [provider.label for provider in self.providers]
        return partition.partition_rest(
            self.model, left_out, labels, self.replacements, self.reasons
        )

    def _hand_on(self, first: int, workspaces: Sequence[Workspace]) -> None:
        partitioned = self._placed(workspaces[:first])
        labels = {provider.label for provider in self.providers[:first]}
        for declined in partitioned.declined:
            self.reasons[declined.node] = partition.reasons_of(declined, labels)
        # Partitions of later EPs are planned anew; the current ones are not compiled.
        self.joint = self.joint or any(p.provider >= first for p in partitioned.partitions)
        self.model = partition.again(partitioned, self.providers, first, self.reasons)
        self.first = first


def _leaves(partitions: Sequence[Partition], replacements: Sequence[Replacement]) -> bool:
    """Tell whether an EP left nodes of its partitions to others."""
    nodes = (node for replacement in replacements for node in replacement.fragment.graph)
    return len(replacements) < len(partitions) or not all(map(epcontext.is_epcontext, nodes))


def nothing_compiled(
    model: PartitionedModel | ModelReport, graph: ir.Graph
) -> CompileError | ModelError:
    """Return the error of a model from which no EP takes a node."""
    if not model.nodes:
        return ModelError(
            "has no node to compile",
            model=model.name,
            why="its outputs are inputs or constants; optimization leaves no node without effect",
            remedy="leave it out, or write it as plain ONNX with `execution_providers: []`",
        )
    why = None
    if model.declined:
        first = model.declined[0]
        why = "; ".join(
            f"{ep} declined {first.node} ({first.op_type}): {r}" for ep, r in first.reasons
        )
    remedy = (
        "run `epctx plan --partition`, then change `partition`, the options or the EPs; "
        "a plain ONNX output has `execution_providers: []`"
    )
    shapeless = [v.name for v in graph.inputs if v.shape is None and not v.is_initializer()]
    if shapeless and why is not None and borders.UNKNOWN_RANK in why:
        listed = ", ".join(f"{json.dumps(name)}: [1]" for name in shapeless)
        remedy = (
            "give the shapes of inputs that have none, under the model: "
            f"`shapes: {{{listed}}}` (with your sizes, one for each dimension)"
        )
    return CompileError(
        "nothing compiled: no execution provider takes any node",
        model=model.name,
        why=why,
        remedy=remedy,
        code=Code.NOTHING_COMPILED,
    )


def dump(
    compiled: CompiledGroup,
    folder: Path,
    *,
    external_initializers: ExternalInitializers | None = None,
) -> GroupOutput:
    """Write `[model]_ctx.onnx` of each model, the context binaries and external initializers.

    The new files refer to no file of the source (design section 6). A file is written before the
    models that refer to it. External initializers are written here, never by an EP: ONNX Runtime
    lets two models overwrite each other's (real-eps.md section 15). Tensors that shape inference
    reads stay in the model, whatever the threshold. Large initializers that several models of the
    session group share go into one file if `external_initializers` is None.

    Raises:
        StorageError: a file cannot be written, or a file of that name exists.
        CompileError: a model exceeds protobuf's 2 GB.
    """
    files = [_binary(folder, binary) for binary in compiled.binaries]
    names: dict[str, str] = {}
    shared = None
    if external_initializers is None:
        first = next(iter(compiled.models))
        shared = data_files.place_shared(list(compiled.models.values()), outputs.data_file(first))
    if shared is not None:
        files.append(outputs.write(folder / shared.location, shared.chunks()))
    for name, model in compiled.models.items():
        if external_initializers is not None:
            file = data_files.place(
                model,
                external_initializers.file.replace("{model}", name),
                size_threshold=external_initializers.size_threshold,
                keep=data_files.inference_may_read,
            )
            if file is not None:
                files.append(outputs.write(folder / file.location, file.chunks()))
        path = folder / outputs.context_file(name)
        files.append(outputs.write(path, canonical.chunks(model)))
        names[name] = path.name
    return GroupOutput(models=names, files=tuple(files))


def _binary(folder: Path, binary: ContextBinary) -> OutputFile:
    path = folder / binary.name
    taken = None if binary.file is None else binary.file.take(path)
    return taken or outputs.write(path, binary.chunks())
