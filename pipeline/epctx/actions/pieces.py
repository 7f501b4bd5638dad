"""Cut models into pieces that are compiled separately, and assemble the compiled pieces.

Each piece of all models of a session group is compiled as a session group of its own (`Compile`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from epctx.actions.action import SESSIONS, Action, Code, StageStarted, WorkerContext
from epctx.actions.compile import Compile, CompiledModel, CompileResult, join_ops
from epctx.files.digest import Digest
from epctx.graph.model import CutPlan, Outline
from epctx.manifest import (
    CompileMemory,
    ExternalInitializers,
    ModelGroup,
    PartitionSettings,
    Pieces,
)
from epctx.stages.report import ModelReport, PieceReport

_BINARY: Final = ".bin"
"""Ending of a context binary's name; a piece has the model and its weights beside it."""


class CutModel(Struct, frozen=True, kw_only=True):
    """A model that was cut.

    Attributes:
        plan: its cuts.
        pieces: digests of the pieces, as of optimized models.
    """

    plan: CutPlan
    pieces: tuple[Digest, ...]
    reports: tuple[PieceReport, ...]


class CutResult(Struct, frozen=True, kw_only=True):
    """Models of a session group, in its order, each in as many pieces."""

    models: tuple[CutModel, ...]

    def is_of(self, models: int) -> bool:
        """Tell whether the result fits so many models: a stored result is not trusted."""
        shapes = {
            (len(each.plan.cuts) + 1, len(each.plan.memory), len(each.pieces), len(each.reports))
            for each in self.models
        }
        return len(self.models) == models and len(shapes) == 1 and len({*shapes.pop()}) == 1

    @property
    def count(self) -> int:
        """Number of pieces of each model."""
        return len(self.models[0].pieces)

    @property
    def at(self) -> tuple[str, ...]:
        """Cuts, as `partition.pieces.at` names them."""
        return tuple(cut.after for cut in self.models[0].plan.cuts)

    @property
    def crossing(self) -> tuple[tuple[tuple[str, ...], ...], ...]:
        """Names of the values that cross each cut, of each model."""
        return tuple(tuple(cut.values for cut in each.plan.cuts) for each in self.models)

    def compiles(self, group: ModelGroup, names: Iterable[str]) -> tuple[Compile, ...]:
        """Return the compiles of the pieces of these models, without folders."""
        each = dict(zip(names, self.models, strict=True))
        return tuple(
            Compile.of(group, {name: each[name].pieces[number] for name in each}, piece=number + 1)
            for number in range(self.count)
        )


class Cut(Action[CutResult], frozen=True, kw_only=True):
    """Cut the optimized models of a session group into pieces.

    Attributes:
        optimized: digests of the models, in the session group's order.
        pieces: the manifest's cuts or limits.
        memory: memory of a compile on their EPs; None if it was not measured.
        embed_mode: 1 if the contexts must fit into the models.
        folders: model name to the folder that Optimize wrote, in that order.
        folder: new folder; each piece is written to `<model>.<number>` in it, as by Optimize.
    """

    result = CutResult
    kind = "cut"
    code = Code(("stages/pieces.py", *Compile.code.sources), SESSIONS)
    beside = ("folders", "folder")
    writes = ("folder",)

    optimized: tuple[str, ...]
    pieces: Pieces
    memory: CompileMemory | None
    embed_mode: int
    folders: Mapping[str, Path] = {}
    folder: Path = Path()

    @classmethod
    def of(
        cls, group: ModelGroup, optimized: Mapping[str, Digest], memory: CompileMemory | None
    ) -> Cut:
        """Return the cut of a session group's models, without folders.

        Args:
            optimized: its models in order, with their optimized digests.
            memory: memory of a compile on its EPs; None if it was not measured.
        """
        assert group.pieces is not None
        return cls(
            optimized=tuple(map(str, optimized.values())),
            pieces=group.pieces,
            memory=memory,
            embed_mode=group.embed_mode,
        )

    def run(self, worker: WorkerContext) -> CutResult:
        """Raises the errors of `stages.pieces`."""
        from epctx.graph import store
        from epctx.stages import pieces

        worker.started(StageStarted(stage="partition", model=next(iter(self.folders))))
        models = [replace(store.read(each), name=name) for name, each in self.folders.items()]
        cut_models = []
        for each in pieces.cut(models, self.pieces, self.memory, embed=self.embed_mode == 1):
            for number, piece in enumerate(each.pieces, start=1):
                folder = self.folder / f"{each.name}.{number}"
                folder.mkdir(parents=True)
                store.write(piece, folder)
            digests = tuple(piece.digest for piece in each.pieces)
            cut_models.append(CutModel(plan=each.plan, pieces=digests, reports=each.reports))
        return CutResult(models=tuple(cut_models))


class Assemble(Action[CompileResult], frozen=True, kw_only=True):
    """Join the compiled pieces of a session group: a file for each model, a binary for each piece.

    Attributes:
        models: models in the session group's order.
        at: cuts of each model, as `partition.pieces.at` names them.
        outputs: digests of the files of each piece, by name.
        partition: settings, whose limits hold for whole models.
        external_initializers: file of initializers; None if they stay inside the models.
        cut, compiled: results of the pieces.
        optimized: model name to the folder that Optimize wrote.
        folders: folders of the files of each piece; binaries are moved out of them.
        folder: existing folder for the outputs, perhaps with those of other session groups.
    """

    result = CompileResult
    kind = "assemble"
    code = Code(("stages/pieces.py", *Compile.code.sources), SESSIONS)
    beside = ("cut", "compiled", "optimized", "folders", "folder")
    writes = ("folder",)

    models: tuple[CompiledModel, ...]
    at: tuple[tuple[str, ...], ...]
    outputs: tuple[Mapping[str, str], ...]
    partition: PartitionSettings
    external_initializers: ExternalInitializers | None
    cut: CutResult
    compiled: tuple[CompileResult, ...]
    optimized: Mapping[str, Path] = {}
    folders: tuple[Path, ...] = ()
    folder: Path = Path()

    @classmethod
    def of(
        cls,
        group: ModelGroup,
        optimized: Mapping[str, Digest],
        cut: CutResult,
        compiled: Sequence[CompileResult],
    ) -> Assemble:
        """Return the assembly of a session group's pieces, without folders.

        Args:
            optimized: its models in order, with their optimized digests.
            compiled: results of its pieces.
        """
        return cls(
            models=Compile.of(group, optimized).models,
            at=tuple(tuple(each.after for each in model.plan.cuts) for model in cut.models),
            outputs=tuple({f.name: str(f.blake3) for f in c.output.files} for c in compiled),
            partition=group.partition,
            external_initializers=group.external_initializers,
            cut=cut,
            compiled=tuple(compiled),
        )

    def run(self, worker: WorkerContext) -> CompileResult:
        """Raises the errors of `stages.compile`; CompileError also if a limit is missed."""
        from epctx.graph import store
        from epctx.graph.partition import contexts, outline
        from epctx.stages import compile, partition, pieces

        worker.started(StageStarted(stage="dump"))
        models = {
            name: replace(store.read(each), name=name) for name, each in self.optimized.items()
        }
        unmatched = tuple(partition.unmatched(m, self.partition) for m in models.values())
        before = [outline.Outlined(model.model, partition.name_of) for model in models.values()]
        binaries = [sorted(n for n in each if n.endswith(_BINARY)) for each in self.outputs]
        group = pieces.assemble(
            models, [each.plan for each in self.cut.models], self.folders, binaries
        )
        reports = []
        for number, (name, outlined) in enumerate(zip(models, before, strict=True)):
            parts = [each.models[number] for each in self.compiled]
            report = replace(
                _joined(name, parts, outlined.owned(())),
                placement=contexts.placement(group.models[name]),
                pieces=self.cut.models[number].reports,
            )
            if not report.partitions:
                raise compile.nothing_compiled(report, group.models[name].graph)
            partition.require(report, self.partition)
            reports.append(report)
        output = compile.dump(group, self.folder, external_initializers=self.external_initializers)
        traces = {stem: trace for each in self.compiled for stem, trace in each.traces.items()}
        return CompileResult(
            output=output, models=tuple(reports), unmatched=unmatched, traces=traces
        )


def _joined(name: str, parts: Sequence[ModelReport], whole: Outline) -> ModelReport:
    """Join the reports on a model's pieces; `whole` is its outline without owners."""
    owner: dict[str, int] = {}
    first, taken, counted = 0, 0, 0
    for part in parts:
        assert part.outline is not None
        for node, own in zip(part.outline.names, part.outline.owners, strict=True):
            if own >= 0:
                owner[node] = first + own
        first += len(part.partitions)
        on_eps = sum(each.nodes for each in part.partitions)
        taken += on_eps
        counted += round(on_eps / part.coverage) if part.coverage else part.nodes
    return ModelReport(
        name=name,
        passes=(),
        nodes=sum(part.nodes for part in parts),
        coverage=taken / counted if counted else 1.0,
        partitions=tuple(each for part in parts for each in part.partitions),
        declined=tuple(each for part in parts for each in part.declined),
        outline=replace(whole, owners=tuple(owner.get(node, -1) for node in whole.names)),
        ops=join_ops(part.ops for part in parts),
        unstable=tuple(dict.fromkeys(each for part in parts for each in part.unstable)),
    )
