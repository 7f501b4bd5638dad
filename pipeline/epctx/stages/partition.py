"""Stage 3, partition: who takes which part of a model; the default EP takes the rest."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

import onnx_ir as ir
from msgspec.structs import replace

from epctx.error_codes import Code
from epctx.errors import CompileError, about
from epctx.graph import epcontext
from epctx.graph.dataflow import Dataflow
from epctx.graph.model import Decline, OptimizedModel, Partition, Refusal, Replacement
from epctx.graph.partition import borders, contexts
from epctx.graph.partition.assign import assign
from epctx.manifest import PartitionSettings
from epctx.providers import default
from epctx.providers.base import ExecutionProvider, PartitionedModel
from epctx.stages.exclusion import Exclusion, Unmatched
from epctx.stages.report import ModelReport

Reasons = tuple[tuple[str, str | Refusal], ...]
"""EPs' labels, each with why it left a node."""
_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear"})


def run(
    optimized: OptimizedModel,
    providers: Sequence[ExecutionProvider],
    settings: PartitionSettings,
) -> PartitionedModel:
    """Ask the EPs in priority order, each for the maximal subgraphs that it can take.

    No cycle comes about, a partition's boundary carries only what an EPContext node accepts, and
    each has an output that is used. The default EP takes the rest, so the result is complete.
    The model's main graph is sorted if it is not; nothing else of it is changed.
    Source: design section 7, "partition".

    No limit of the manifest is held; see `require_coverage` and `require`.

    Raises:
        ModelError: the default EP has no kernel for a node that is left to it.
        CompileError: an EP failed to say what it can take.
    """
    with _no_collection():
        return _partition(optimized.name, optimized.model, providers, settings)


def foresee(
    optimized: OptimizedModel,
    providers: Sequence[ExecutionProvider],
    settings: PartitionSettings,
) -> tuple[PartitionedModel, frozenset[int]]:
    """As `run`, with what EPs that decide inside a partition would leave of it.

    Returns:
        The partitions, and the places of EPs that do not say what they would leave.

    Raises:
        ModelError: the default EP has no kernel for a node that is left to it.
        CompileError: an EP failed to say what it can take.
    """
    left: dict[int, dict[ir.Node, str | Refusal]] = {}
    silent: set[int] = set()
    with _no_collection():
        for index, provider in enumerate(providers):
            if provider.foresees:
                alone = _partition(optimized.name, optimized.model, [provider], settings)
                left[index] = {}
                for each in alone.partitions:
                    left[index].update(provider.foresee(optimized.model, each))
            elif provider.native:
                silent.add(index)
        found = _partition(optimized.name, optimized.model, providers, settings, foreseen=left)
    return found, frozenset(silent)


def again(
    before: PartitionedModel,
    providers: Sequence[ExecutionProvider],
    first: int,
    reasons: Mapping[str, Reasons],
) -> PartitionedModel:
    """Partition what the EPs before `providers[first]` left, among the EPs from there on.

    What EPs compiled already is nobody's candidate; no cycle comes about through it.

    Args:
        before: the model as the EPs before compiled it, already spliced. Their partitions stay.
        reasons: by a node's name, why the EPs before left it.

    Raises:
        ModelError: the default EP has no kernel for a node that is left to it.
        CompileError: an EP failed to say what it can take.
    """
    kept = tuple(p for p in before.partitions if p.provider < first)
    with _no_collection():
        result = _partition(
            before.name, before.model, providers, before.settings, first=first, reasons=reasons
        )
    return replace(
        result,
        partitions=(*kept, *result.partitions),
        nodes=before.nodes,
        optional=True,
    )


def partition_rest(
    model: PartitionedModel,
    left_out: Mapping[int, Mapping[ir.Node, str | Refusal]],
    labels: Sequence[str],
    replacements: Sequence[Replacement],
    reasons: Mapping[str, Reasons] | None = None,
) -> PartitionedModel:
    """The model as it was compiled: a partition for each EPContext node, without what EPs left.

    Args:
        left_out: for an EP's place in the priority order, the nodes of its partitions that it left
            to the CPU, and why.
        labels: of the EPs, in priority order.
        replacements: what takes partitions' places; not yet spliced.
        reasons: by a node's name, why EPs before left it, where there were such.
    """
    before = reasons or {}
    why = {
        node: (owner, reason) for owner, nodes in left_out.items() for node, reason in nodes.items()
    }
    made = {each.partition: each for each in replacements}
    if not why and all(contexts.is_one(each) for each in replacements):
        return model
    flow = Dataflow(model.model)
    return replace(
        model,
        partitions=tuple(
            piece
            for each in model.partitions
            for piece in (contexts.divide(flow, made[each], why) if each in made else (each,))
            if not why.keys() >= set(piece.nodes)
        ),
        declined=(
            *model.declined,
            *(
                _decline(node, (*before.get(name_of(node), ()), (labels[owner], reason)))
                for node, (owner, reason) in why.items()
            ),
        ),
        boundary_quantize=model.boundary_quantize
        + sum(_is_boundary_quantizer(flow, node) for node in why),
    )


def require(model: ModelReport, settings: PartitionSettings) -> None:
    """Hold what came out of the compile to the manifest's limits.

    Raises:
        CompileError: `require_coverage` is missed, or there are more than `max_partitions`.
    """
    require_coverage(model, settings)
    contexts = 0 if model.placement is None else model.placement.context_nodes
    if settings.max_partitions is not None and contexts > settings.max_partitions:
        raise CompileError(
            f"compiled into {contexts} partitions where max_partitions allows "
            f"{settings.max_partitions}",
            model=model.name,
            why=explain(model) or None,
            remedy="exclude the nodes between them, or raise partition.max_partitions",
        )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Hold Python's collector back: it would walk all of the model again and again, for nothing.

    What is made here has no cycles. Of a model of 100,000 nodes a walk takes a second.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _partition(
    name: str,
    model: ir.Model,
    providers: Sequence[ExecutionProvider],
    settings: PartitionSettings,
    *,
    first: int = 0,
    reasons: Mapping[str, Reasons] | None = None,
    foreseen: Mapping[int, Mapping[ir.Node, str | Refusal]] = MappingProxyType({}),
) -> PartitionedModel:
    flow = Dataflow(model)
    # An EPContext node that no EP of this build has made is a source's, and an error.
    done = {node for node in flow.nodes if first and epcontext.is_epcontext(node)}
    asked = providers[first:]
    declined = [_ask(provider, flow, name, model) for provider in asked]
    for index, left_by in foreseen.items():
        declined[index].update(left_by)
    exclusion = Exclusion(settings)
    for node in flow.nodes:
        reason = "it is compiled already" if node in done else exclusion.reason(node)
        if reason is not None:
            for own in declined:
                own[node] = reason
    border = borders.border_of(flow)
    quotient, dropped = assign(
        flow.predecessors,
        [[node not in own for node in flow.nodes] for own in declined],
        border,
        min_nodes=settings.min_nodes,
        max_partitions=settings.max_partitions,
        before=len(done),
    )
    for own, unused in zip(declined, dropped, strict=True):
        own.update((flow.nodes[index], reason) for index, reason in unused.items())
    partitions = tuple(
        part
        for owner, nodes in quotient.partitions()
        if _is_taken(part := flow.cut(first + owner, nodes), asked[owner], declined[owner])
    )
    taken = done.union(*(partition.nodes for partition in partitions))
    left = [node for node in flow.nodes if node not in taken]
    default.CpuKernels(model).require(left, where=f"model {name}")
    before, labels = reasons or {}, [provider.label for provider in asked]
    return PartitionedModel(
        name=name,
        model=model,
        partitions=partitions,
        declined=tuple(
            _decline(
                node,
                (
                    *before.get(name_of(node), ()),
                    *((label, own[node]) for label, own in zip(labels, declined, strict=True)),
                ),
            )
            for node in left
        ),
        nodes=len(flow.nodes) - len(done),
        boundary_quantize=sum(_is_boundary_quantizer(flow, node) for node in left),
        settings=settings,
    )


def _decline(node: ir.Node, reasons: Reasons) -> Decline:
    return Decline(
        node=name_of(node),
        op_type=node.op_type,
        domain=node.domain,
        reasons=tuple((label, str(why)) for label, why in reasons),
        refusals=tuple((label, why) for label, why in reasons if isinstance(why, Refusal)),
    )


def told(declined: Decline, labels: Collection[str]) -> Reasons:
    """What EPs with these labels said of a node."""
    more = dict(declined.refusals)
    return tuple(
        (label, more.get(label, why)) for label, why in declined.reasons if label in labels
    )


def _is_taken(
    part: Partition, provider: ExecutionProvider, declined: dict[ir.Node, str | Refusal]
) -> bool:
    """Whether an EP takes a partition as a whole; if not, `declined` says so of its nodes."""
    if not provider.wants_inputs or part.inputs:
        return True
    reason = f"it would be in a partition without an input, which {provider.name} does not compile"
    declined.update(dict.fromkeys(part.nodes, reason))
    return False


def unmatched(optimized: OptimizedModel, settings: PartitionSettings) -> tuple[Unmatched, ...]:
    """The entries of `exclude` that look misspelt for this model alone.

    Whoever knows all models of the group gives the answers to `exclusion.refuse_unmatched`.
    """
    return Exclusion(settings).unmatched(optimized.model.graph, default.registered)


def _ask(
    provider: ExecutionProvider, flow: Dataflow, name: str, model: ir.Model
) -> dict[ir.Node, str | Refusal]:
    """The nodes that an EP does not take, and why."""
    with about(model=name):
        capability = provider.get_capability(model)
    taken = set(capability.nodes)
    strangers = taken.difference(flow.nodes)
    if strangers:
        names = sorted(name_of(node) for node in strangers)
        raise CompileError(
            f"{provider.name} takes nodes that are not in the model's main graph",
            where=f"model {name}, {provider.label}",
            why=", ".join(names[:3]),
            remedy="report it to those who make this execution provider, or leave it out",
        )
    return {
        node: capability.declined.get(node, "not supported")
        for node in flow.nodes
        if node not in taken
    }


def name_of(node: ir.Node) -> str:
    """The node's name; one without is named by what it makes."""
    return node.name or f"-> {', '.join(value.name for value in node.outputs if value.name)}"


def _is_boundary_quantizer(flow: Dataflow, node: ir.Node) -> bool:
    """Whether it only turns the model's input or output into the type that the EP computes in.

    QNN leaves these to the CPU, so they do not count as missed (real-eps.md section 10).
    """
    return node.op_type in _QUANTIZERS and (
        (node.inputs[0] is not None and flow.is_input(node.inputs[0]))
        or flow.is_output(node.outputs[0])
    )


def require_coverage(model: ModelReport, settings: PartitionSettings) -> None:
    """Hold a model to the manifest's `require_coverage`. Raises CompileError if it is missed."""
    wanted = settings.require_coverage
    if wanted is None or model.coverage >= wanted:
        return
    taken = sum(partition.nodes for partition in model.partitions)
    counted = round(taken / model.coverage) if taken else model.nodes
    raise CompileError(
        f"the execution providers take {taken} of {counted} nodes, "
        f"{model.coverage:.1%} where require_coverage asks for {wanted:.1%}",
        model=model.name,
        why=explain(model),
        remedy="see `epctx plan --partition` for every node; let an execution provider take more, "
        "or lower partition.require_coverage",
        code=Code.COVERAGE_MISSED,
    )


def explain(model: PartitionedModel | ModelReport, most: int = 5) -> str:
    """Why nodes were left to the default EP: the most frequent op types with their reasons."""
    kinds: Counter[tuple[str, str]] = Counter()
    for left in model.declined:
        op_type = f"{left.domain}::{left.op_type}" if left.domain else left.op_type
        said = "; ".join(f"{label}: {reason}" for label, reason in left.reasons)
        kinds[op_type, said or "no execution provider was asked"] += 1
    listed = [f"{count} {op} ({said})" for (op, said), count in kinds.most_common(most)]
    rest = sum(kinds.values()) - sum(count for _, count in kinds.most_common(most))
    return ", ".join([*listed, *([f"and {rest} more"] if rest else [])])
