"""Types that the stages hand to each other: graphs in memory, their weights still on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from epctx.files.digest import Digest

if TYPE_CHECKING:
    import onnx_ir as ir


class SourceFile(Struct, frozen=True, kw_only=True):
    """A file that a model was read from.

    Attributes:
        path: absolute path, links followed; no output contains it.
        location: the model's name for it, with `/`; the file's own name for the model itself.
    """

    path: Path
    location: str
    size: int
    digest: Digest


class LoadedModel(Struct, frozen=True, kw_only=True):
    """A checked source model with its dimensions fixed.

    Attributes:
        name: the manifest's key.
        model: the graph; large tensors are `tensors.MappedTensor`, and their data is not read.
        sources: the model file first, then each external data file, by location.
        notes: lines about features of the source that ONNX forbids and ONNX Runtime accepts.
        declared: declared shapes of outputs, fixed sizes included.
    """

    name: str
    model: ir.Model
    sources: tuple[SourceFile, ...]
    notes: tuple[str, ...] = ()
    declared: Mapping[str, ir.Shape] = field(default_factory=dict)

    def corrected(self, graph: ir.Graph) -> tuple[str, ...]:
        """Return a line for each output whose shape in `graph` differs from the declared one."""

        def is_other(own: ir.Shape, shape: ir.Shape) -> bool:
            pairs = zip(own, shape, strict=False)
            return len(own) != len(shape) or any(isinstance(a, int) and a != b for a, b in pairs)

        return tuple(
            f"output {value.name!r} is declared as {own}, but its shape is {value.shape}; epctx "
            "writes that"
            for value in graph.outputs
            if (own := self.declared.get(value.name or "")) is not None
            and len(own)
            and value.shape is not None
            and is_other(own, value.shape)
        )


class PassRecord(Struct, frozen=True, kw_only=True):
    """Changes that one pass made: counts by kind, empty if there are none."""

    name: str
    changed: Mapping[str, int] = field(default_factory=dict)


class OptimizedModel(Struct, frozen=True, kw_only=True):
    """A model after the provider-independent passes.

    Attributes:
        name: the manifest's key.
        model: the graph; weights that no pass touched are still references to the source.
        passes: each pass that ran, in order.
        digest: digest of the canonical graph and of the weights' content, without paths.
    """

    name: str
    model: ir.Model
    passes: tuple[PassRecord, ...]
    digest: Digest


class Partition(Struct, frozen=True, kw_only=True, eq=False):
    """A convex subgraph that one EP takes.

    Attributes:
        provider: index into the group's `execution_providers`.
        nodes: its nodes, in topological order.
        inputs: values made outside and used inside, without initializers, each once; graph
            inputs first, in the graph's order, then by producer.
        outputs: values made inside that are used outside or are graph outputs, by producer; at
            least one.
        initializers: initializers of the main graph that its nodes or their subgraphs use.
    """

    provider: int
    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    initializers: tuple[ir.Value, ...]


class Refusal(Struct, frozen=True, kw_only=True):
    """Reason why an EP leaves a node.

    Attributes:
        why: the reason in the EP's own words.
        op: the EP's name for the operator that the node would become; empty if the EP refused the
            node before it chose one.
        operands: types and sizes that the EP refused, in its own words.
        remedy: a change after which the EP takes the node; empty if none is known.
    """

    why: str
    op: str = ""
    operands: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.why}; {self.remedy}" if self.remedy else self.why


class Decline(Struct, frozen=True, kw_only=True):
    """Reasons why a node was left to the default EP, one for each EP, in priority order.

    Attributes:
        refusals: refusals of EPs that say more than a reason.
        location: the node's place in the source model, counted from 0, and the module and line of
            code that it comes from, as far as the exporter wrote them; empty if the place was not
            searched or not found.
    """

    node: str
    op_type: str
    domain: str
    reasons: tuple[tuple[str, str], ...]
    refusals: tuple[tuple[str, Refusal], ...] = ()
    location: str = ""

    @property
    def kind(self) -> str:
        """Op type, with its domain unless that is ONNX's own."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type

    def by_provider(self) -> tuple[tuple[str, Refusal], ...]:
        """Return each EP's label and refusal; one with an empty label if no EP was asked."""
        more = dict(self.refusals)
        reasons = self.reasons or (("", "no EP was asked"),)
        return tuple((label, more.get(label, Refusal(why=why))) for label, why in reasons)


class Outline(Struct, frozen=True, kw_only=True):
    """Nodes of a model's main graph, their dependencies and owners, without values and weights.

    Each field but `op_types` has one entry for each node, in topological order; a control-flow node
    is one node.

    Attributes:
        names: names of the nodes; a node without a name is named by its outputs.
        op_types: distinct op types, with the domain before `::` unless that is ONNX's own.
        ops: indices into `op_types`.
        owners: indices of partitions; -1 for the default EP.
        predecessors: nodes whose values the node uses, ascending.
    """

    names: tuple[str, ...]
    op_types: tuple[str, ...]
    ops: tuple[int, ...]
    owners: tuple[int, ...]
    predecessors: tuple[tuple[int, ...], ...]


class Placement(Struct, frozen=True, kw_only=True):
    """Counts of a published model's main graph.

    Attributes:
        context_nodes: EPContext nodes.
        default_nodes: other nodes, which the default EP runs.
        crossings: values that one EP makes and another uses, the default EP included. Each is
            copied or synchronized when the model runs. Inputs and outputs are not counted.
    """

    context_nodes: int
    default_nodes: int
    crossings: int

    @classmethod
    def of_parts(cls, parts: Iterable[Placement | None]) -> Placement:
        """Return the sums over several models."""
        placements = [part for part in parts if part is not None]
        return cls(
            context_nodes=sum(part.context_nodes for part in placements),
            default_nodes=sum(part.default_nodes for part in placements),
            crossings=sum(part.crossings for part in placements),
        )


class CutPoint(Struct, frozen=True, kw_only=True):
    """A cut: one piece of a model ends here, and the next begins.

    Attributes:
        after: a value that the last node before the cut makes; `partition.pieces.at` names it.
        values: names of the values that cross: made before the cut, and used after it.
        bytes: size of these values; open sizes count as 1.
        recomputed: names of values that are cheap and computed again after the cut.
        why: the reason for the cut at this place.
    """

    after: str
    values: tuple[str, ...]
    bytes: int
    recomputed: tuple[str, ...] = ()
    why: str = ""


class CutPlan(Struct, frozen=True, kw_only=True):
    """The cuts of a model.

    Attributes:
        cuts: in the order of the pieces, one fewer than pieces.
        memory: bytes that the compile of each piece should take at most.
    """

    cuts: tuple[CutPoint, ...]
    memory: tuple[int, ...]


class Replacement(Struct, frozen=True, kw_only=True, eq=False):
    """Fragment that takes the place of one partition.

    Attributes:
        partition: the partition replaced.
        fragment: a model with the partition's inputs and outputs, by name and in order: one
            EPContext node, or (ONNX Runtime as a composite EP) several and some CPU nodes. Every
            output of an EPContext node has its type and shape.
    """

    partition: Partition
    fragment: ir.Model
