"""Around compile, for models in pieces: cut a model before it, assemble its pieces after it.

Source: spec/ep-context-design.md: models with several primary EPContext nodes, each with a context
of its own, because one context does not hold a large model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import onnx_ir as ir
from msgspec import Struct

from epctx import codec
from epctx.errors import ManifestError
from epctx.files.outputs import OwnFile, context_file
from epctx.graph import epcontext
from epctx.graph.epcontext import is_epcontext
from epctx.graph.model import CutPlan, OptimizedModel, Replacement
from epctx.graph.partition import contexts, pieces, surgery
from epctx.graph.serde import canonical
from epctx.graph.weights.data_file import DataFile
from epctx.graph.weights.tensors import kind_and_count
from epctx.manifest import CompileMemory, Pieces
from epctx.providers.base import ContextBinary
from epctx.stages.compile import CompiledGroup
from epctx.stages.report import PieceReport

_MOST_EMBEDDED = 2**31
"""Maximum bytes of an ONNX file, contexts included."""


class InPieces(Struct, frozen=True, kw_only=True, eq=False):
    """A model in pieces.

    Attributes:
        plan: its cuts.
        pieces: a model for each piece.
    """

    name: str
    plan: CutPlan
    pieces: tuple[OptimizedModel, ...]
    reports: tuple[PieceReport, ...]


def cut(
    models: Sequence[OptimizedModel],
    wanted: Pieces,
    memory: CompileMemory | None,
    *,
    embed: bool,
) -> list[InPieces]:
    """Cut the models of a session group alike; the models are changed in place.

    Args:
        models: models in the session group's order; the first determines the cuts.
        memory: memory of a compile; None if it was not measured: then sizes of weights count.
        embed: true if the contexts must fit into the models.

    Raises:
        ManifestError: the models cannot be cut as the manifest says, or do not fit.
        ModelError: the models differ in their large weights, and cannot be cut alike.
    """
    if embed:
        for model in models:
            _require_embeddable(model)

    def cost(value: ir.Value) -> int:
        if memory is None:
            return _size(value)
        kind, count = kind_and_count(value)
        return memory.of([{kind: count}] * len(models)) - memory.base

    plans = pieces.choose(
        {model.name: model.model for model in models},
        count=wanted.count,
        max_memory=wanted.max_memory,
        at=wanted.at,
        base=0 if memory is None else memory.base,
        cost=cost,
    )
    return [_cut(model, plans[model.name], memory) for model in models]


def _cut(model: OptimizedModel, plan: CutPlan, memory: CompileMemory | None) -> InPieces:
    cut_pieces, reports = [], []
    parts = pieces.divide(model.model, plan)
    for number, part in enumerate(parts):
        piece = surgery.extract(model.model, part)
        cut_pieces.append(
            OptimizedModel(
                name=f"{model.name}.{number + 1}",
                model=piece,
                passes=(),
                digest=canonical.digest(piece),
            )
        )
        reports.append(
            PieceReport(
                nodes=len(part.nodes),
                weights=sum(map(_size, part.initializers)),
                memory=None if memory is None else plan.memory[number],
                cut=plan.cuts[number] if number < len(plan.cuts) else None,
            )
        )
    return InPieces(name=model.name, plan=plan, pieces=tuple(cut_pieces), reports=tuple(reports))


def _size(value: ir.Value) -> int:
    return 0 if value.const_value is None else value.const_value.nbytes


def _require_embeddable(model: OptimizedModel) -> None:
    """Refuse contexts that do not fit into an ONNX file; an EP may keep floats in two bytes."""
    held = (value for value in model.model.graph.initializers.values())
    size = sum(min(_size(value), 2 * kind_and_count(value)[1]) for value in held)
    if size >= _MOST_EMBEDDED:
        raise ManifestError(
            f"the contexts of its pieces have {size:,} bytes of weights, more than an ONNX file "
            "can hold",
            model=model.name,
            where="embed_mode",
            remedy="write embed_mode: 0",
        )


_SIZE: Final = "max_size"


def assemble(
    optimized: Mapping[str, OptimizedModel],
    plans: Sequence[CutPlan],
    folders: Sequence[Path],
    binaries: Sequence[Sequence[str]],
) -> CompiledGroup:
    """Replace the pieces of models, which are changed in place, by their compiled forms.

    Args:
        optimized: models by name, in the session group's order.
        plans: cuts of each model.
        folders: outputs of the compile of each piece.
        binaries: context binaries of each piece.
    """
    for (name, model), plan in zip(optimized.items(), plans, strict=True):
        parts = pieces.divide(model.model, plan)
        files = (
            folder / context_file(f"{name}.{number}")
            for number, folder in enumerate(folders, start=1)
        )
        surgery.splice(
            model.model,
            [
                Replacement(partition=part, fragment=canonical.read_mapped(file))
                for part, file in zip(parts, files, strict=True)
            ],
        )
        contexts.bind_ends(model.model.graph)
        _write_largest(model.model.graph)
        crossing = [cut.values for cut in plan.cuts]
        model.model.metadata_props[epcontext.PIECES] = codec.encode(crossing).decode()
    return CompiledGroup(
        models={name: model.model for name, model in optimized.items()},
        partitioned=(),
        binaries=tuple(
            _binary(folder / name)
            for folder, names in zip(folders, binaries, strict=True)
            for name in names
        ),
        workspaces=(),
    )


def _write_largest(graph: ir.Graph) -> None:
    """Write the largest `max_size` of all contexts on the first node that has one: a runtime looks
    for it there. QNN writes none.
    """
    sized = [node for node in graph if is_epcontext(node) and _SIZE in node.attributes]
    if sized:
        largest = max(node.attributes[_SIZE].as_int() for node in sized)
        sized[0].attributes[_SIZE] = ir.AttrInt64(_SIZE, largest)


def _binary(path: Path) -> ContextBinary:
    def chunks() -> Iterator[memoryview]:
        return DataFile.open(path).chunks()

    return ContextBinary(name=path.name, chunks=chunks, file=OwnFile(path))
