"""Between optimize and compile, cut: a model becomes pieces.

Source: spec/ep-context-design.md: models with several primary EPContext nodes, each with a context
of its own, because one context does not hold a large model.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from msgspec import Struct

from epctx.errors import ManifestError
from epctx.graph.model import CutPlan, OptimizedModel
from epctx.graph.partition import pieces, surgery
from epctx.graph.serde import canonical
from epctx.graph.weights.tensors import kind_and_count
from epctx.manifest import CompileMemory, Pieces
from epctx.stages.report import PieceReport

_MOST_EMBEDDED = 2**31
"""Bytes of an ONNX file, contexts included."""


class InPieces(Struct, frozen=True, kw_only=True, eq=False):
    """A model in pieces.

    Attributes:
        plan: where it was cut.
        pieces: a model of each.
    """

    name: str
    plan: CutPlan
    pieces: tuple[OptimizedModel, ...]
    reports: tuple[PieceReport, ...]


def run(
    models: Sequence[OptimizedModel],
    wanted: Pieces,
    memory: CompileMemory | None,
    *,
    embed: bool,
) -> list[InPieces]:
    """Cut the models of a session group alike; the models are changed in place.

    Args:
        models: in the session group's order; the cuts are chosen on the first.
        memory: what a compile takes; None if that was not measured: then weights count.
        embed: the contexts must fit into the models.

    Raises:
        ManifestError: they cannot be cut as the manifest says, or do not fit.
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
    made, reports = [], []
    parts = pieces.divide(model.model, plan)
    for number, part in enumerate(parts):
        piece = surgery.extract(model.model, part)
        made.append(
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
    return InPieces(name=model.name, plan=plan, pieces=tuple(made), reports=tuple(reports))


def _size(value: ir.Value) -> int:
    return 0 if value.const_value is None else value.const_value.nbytes


def _require_embeddable(model: OptimizedModel) -> None:
    """Refuse contexts that cannot be in the model; an EP may keep floats in two bytes."""
    held = (value for value in model.model.graph.initializers.values())
    size = sum(min(_size(value), 2 * kind_and_count(value)[1]) for value in held)
    if size >= _MOST_EMBEDDED:
        raise ManifestError(
            f"the contexts of its pieces have {size:,} bytes of weights, more than an ONNX file",
            model=model.name,
            where="embed_mode",
            remedy="write embed_mode: 0",
        )
