"""Stage 3, partition: EPs take parts of a model; the default EP takes the rest."""

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
"""Labels of EPs, with their reasons for leaving a node."""
_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear"})


def run(
    optimized: OptimizedModel,
    providers: Sequence[ExecutionProvider],
    settings: PartitionSettings,
) -> PartitionedModel:
    """Ask the EPs in priority order, each for the maximal subgraphs that it can take.

    Partitions make no cycle. Only types that an EPContext node accepts cross their borders, and
    each partition has an output that is used. The default EP takes the rest, so the result is
    complete. The model's main graph is sorted; nothing else changes. Source: design section 7,
    "partition".

    `require_coverage` and `require` check the manifest's limits.

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
    """Partition as `run`, without nodes that EPs would leave inside their partitions.

    Returns:
        The partitions, and the indices of EPs that cannot foresee which nodes they leave.

    Raises:
        ModelError: the default EP has no kernel for a node that is left to it.
        CompileError: an EP failed to say what it can take.
    """
    left_out: dict[int, dict[ir.Node, str | Refusal]] = {}
    silent: set[int] = set()
    with _no_collection():
        for index, provider in enumerate(providers):
            if provider.foresees:
                alone = _partition(optimized.name, optimized.model, [provider], settings)
                left_out[index] = {}
                for each in alone.partitions:
                    left_out[index].update(provider.foresee(optimized.model, each))
            elif provider.native:
                silent.add(index)
        partitioned = _partition(
            optimized.name, optimized.model, providers, settings, foreseen=left_out
        )
    return partitioned, frozenset(silent)


def again(
    before: PartitionedModel,
    providers: Sequence[ExecutionProvider],
    first: int,
    reasons: Mapping[str, Reasons],
) -> PartitionedModel:
    """Partition the nodes that EPs before `providers[first]` left, among the later EPs.

    Compiled nodes are not offered again, and cause no cycle.

    Args:
        before: the model as the earlier EPs compiled it, spliced. Their partitions stay.
        reasons: reasons of the earlier EPs, by a node's name.

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
    reasons: Mapping[str, Reasons],
) -> PartitionedModel:
    """Return the model as compiled: a partition for each EPContext node, without nodes that EPs
    left.

    Args:
        left_out: nodes that an EP left to the CPU, with reasons, by its place in the priority
            order.
        labels: labels of the EPs, in priority order.
        replacements: replacements of partitions; not yet spliced.
        reasons: reasons of earlier EPs, by a node's name.
    """
    why = {
        node: (owner, reason) for owner, nodes in left_out.items() for node, reason in nodes.items()
    }
    by_partition = {each.partition: each for each in replacements}
    if not why and all(contexts.is_one(each) for each in replacements):
        return model
    flow = Dataflow(model.model)
    return replace(
        model,
        partitions=tuple(
            piece
            for each in model.partitions
            for piece in (
                contexts.divide(flow, by_partition[each], why) if each in by_partition else (each,)
            )
            if not why.keys() >= set(piece.nodes)
        ),
        declined=(
            *model.declined,
            *(
                _decline(node, (*reasons.get(name_of(node), ()), (labels[owner], reason)))
                for node, (owner, reason) in why.items()
            ),
        ),
        boundary_quantize=model.boundary_quantize
        + sum(_is_boundary_quantizer(flow, node) for node in why),
    )


def require(model: ModelReport, settings: PartitionSettings) -> None:
    """Check a compiled model against the manifest's limits.

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
    """Pause Python's garbage collector: it would walk the whole model again and again.

    The objects made here have no cycles. For a model of 100,000 nodes a walk takes a second.
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
    # In the first round an EPContext node comes from the source, and is an error.
    done = {node for node in flow.nodes if first and epcontext.is_epcontext(node)}
    own_providers = providers[first:]
    declined = [_ask(provider, flow, name, model) for provider in own_providers]
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
        if _is_taken(part := flow.cut(first + owner, nodes), own_providers[owner], declined[owner])
    )
    taken = done.union(*(partition.nodes for partition in partitions))
    remaining = [node for node in flow.nodes if node not in taken]
    default.CpuKernels(model).require(remaining, where=f"model {name}")
    before, labels = reasons or {}, [provider.label for provider in own_providers]
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
            for node in remaining
        ),
        nodes=len(flow.nodes) - len(done),
        boundary_quantize=sum(_is_boundary_quantizer(flow, node) for node in remaining),
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


def reasons_of(declined: Decline, labels: Collection[str]) -> Reasons:
    """Return the reasons of EPs with these labels for leaving a node."""
    more = dict(declined.refusals)
    return tuple(
        (label, more.get(label, why)) for label, why in declined.reasons if label in labels
    )


def _is_taken(
    part: Partition, provider: ExecutionProvider, declined: dict[ir.Node, str | Refusal]
) -> bool:
    """Tell whether an EP takes a partition; if not, add its nodes to `declined`."""
    if not provider.wants_inputs or part.inputs:
        return True
    reason = f"it would be in a partition without an input, which {provider.name} does not compile"
    declined.update(dict.fromkeys(part.nodes, reason))
    return False


def unmatched(optimized: OptimizedModel, settings: PartitionSettings) -> tuple[Unmatched, ...]:
    """Return entries of `exclude` that look misspelt for this model alone.

    `exclusion.refuse_unmatched` needs the results of all models of the group.
    """
    return Exclusion(settings).unmatched(optimized.model.graph, default.registered)


def _ask(
    provider: ExecutionProvider, flow: Dataflow, name: str, model: ir.Model
) -> dict[ir.Node, str | Refusal]:
    """Return the nodes that an EP does not take, with reasons."""
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
    """Return the node's name; a node without one is named by its outputs."""
    return node.name or f"-> {', '.join(value.name for value in node.outputs if value.name)}"


def _is_boundary_quantizer(flow: Dataflow, node: ir.Node) -> bool:
    """Tell whether a node only converts the model's input or output to the EP's type.

    QNN leaves such nodes to the CPU, so they do not count as missed (real-eps.md section 10).
    """
    return node.op_type in _QUANTIZERS and (
        (node.inputs[0] is not None and flow.is_input(node.inputs[0]))
        or flow.is_output(node.outputs[0])
    )


def require_coverage(model: ModelReport, settings: PartitionSettings) -> None:
    """Raise CompileError if a model misses the manifest's `require_coverage`."""
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
    """Describe why nodes were left to the default EP: the most frequent op types with reasons."""
    kinds: Counter[tuple[str, str]] = Counter()
    for decline in model.declined:
        op_type = f"{decline.domain}::{decline.op_type}" if decline.domain else decline.op_type
        said = "; ".join(f"{label}: {reason}" for label, reason in decline.reasons)
        kinds[op_type, said or "no execution provider was asked"] += 1
    listed = [f"{count} {op} ({said})" for (op, said), count in kinds.most_common(most)]
    rest = sum(kinds.values()) - sum(count for _, count in kinds.most_common(most))
    return ", ".join([*listed, *([f"and {rest} more"] if rest else [])])
