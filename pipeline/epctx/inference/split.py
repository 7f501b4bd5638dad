"""Cut an EPContext model into steps: kernels, and as few models of plain nodes as possible."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import onnx
from msgspec import Struct
from msgspec.structs import replace

from epctx.graph.partition.assign import PLAIN, segments
from epctx.graph.serde import protos


class KernelStep(Struct, frozen=True, kw_only=True):
    """Run the kernel of one node. `node`: its index in the main graph."""

    node: int


class SegmentStep(Struct, frozen=True, kw_only=True):
    """Run a session of some of the main graph's nodes.

    Attributes:
        nodes: their indices, in topological order.
        inputs: values that the nodes use but do not compute, without initializers that are not
            graph inputs.
        outputs: values that the nodes compute, and that other steps or the model's caller need.
        initializers: names of the initializers that the nodes use.
    """

    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: tuple[str, ...]


Step = KernelStep | SegmentStep


def cut(graph: onnx.GraphProto, kernels: Collection[int]) -> tuple[Step, ...]:
    """Cut a graph into steps, in the order in which they can run.

    Args:
        graph: its nodes are in topological order.
        kernels: indices of the nodes that are run as kernels.
    """
    reads = [reads_of(node) for node in graph.node]
    maker = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    needs = [sorted({maker[name] for name in read if name in maker}) for read in reads]
    plain = [i not in kernels for i in range(len(graph.node))]
    quotient = segments(needs, plain)
    wanted = _wanted(graph, reads, quotient.members)
    steps: list[Step] = []
    for group, (owner, members) in enumerate(zip(quotient.owner, quotient.members, strict=True)):
        if owner == PLAIN:
            steps.append(KernelStep(node=members[0]))
            continue
        step = segment(graph, members)
        outputs = tuple(name for name in step.outputs if wanted.get(name, set()) - {group})
        steps.append(replace(step, outputs=outputs))
    return tuple(steps)


def segment(graph: onnx.GraphProto, places: Sequence[int]) -> SegmentStep:
    """Make a step of the nodes at these indices, which are in topological order. All values
    computed are outputs.
    """
    inputs = {value.name for value in graph.input}
    weights = {tensor.name for tensor in graph.initializer}
    weights |= {sparse.values.name for sparse in graph.sparse_initializer}
    computed = dict.fromkeys(name for i in places for name in graph.node[i].output if name)
    read = dict.fromkeys(name for i in places for name in reads_of(graph.node[i]))
    outside = [name for name in read if name not in computed]
    return SegmentStep(
        nodes=tuple(places),
        inputs=tuple(name for name in outside if name not in weights or name in inputs),
        outputs=tuple(computed),
        initializers=tuple(name for name in outside if name in weights),
    )


def _wanted(
    graph: onnx.GraphProto,
    reads: Sequence[Mapping[str, None]],
    groups: Iterable[Sequence[int]],
) -> dict[str, set[int]]:
    """Return the groups that read each value; -1 stands for the model's caller."""
    wanted: dict[str, set[int]] = {value.name: {-1} for value in graph.output}
    for group, members in enumerate(groups):
        for i in members:
            for name in reads[i]:
                wanted.setdefault(name, set()).add(group)
    return wanted


def reads_of(node: onnx.NodeProto) -> dict[str, None]:
    """Return the values that a node and its subgraphs use, each once, in order."""
    return dict.fromkeys((*filter(None, node.input), *_captured(node)))


def _captured(node: onnx.NodeProto) -> Iterator[str]:
    for graph in protos.subgraphs(node):
        own = {value.name for value in graph.input} | {t.name for t in graph.initializer}
        own |= {s.values.name for s in graph.sparse_initializer}
        own |= {name for inner in graph.node for name in inner.output}
        read = [name for inner in graph.node for name in reads_of(inner)]
        yield from (name for name in (*read, *(v.name for v in graph.output)) if name not in own)


class SegmentBuilder:
    """Makes a model of a segment's nodes.

    Args:
        model: the whole model.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = model.graph
        self._frame = onnx.ModelProto(
            ir_version=model.ir_version,
            opset_import=model.opset_import,
            functions=model.functions,
        )
        self._initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self._sparse = {s.values.name: s for s in model.graph.sparse_initializer}
        graph = model.graph
        self._types = {v.name: v for v in (*graph.value_info, *graph.output, *graph.input)}

    def learn(self, values: Iterable[onnx.ValueInfoProto]) -> None:
        """Store types that another segment's session inferred, for values without a type in the
        model.
        """
        for value in values:
            if not self._types.get(value.name, onnx.ValueInfoProto()).HasField("type"):
                self._types[value.name] = value

    def build(self, step: SegmentStep) -> onnx.ModelProto:
        """Build the segment's model. An output of unknown type has only a name, and ONNX Runtime
        infers the type.
        """
        model = onnx.ModelProto()
        model.CopyFrom(self._frame)
        graph = model.graph
        graph.name = self._graph.name or "segment"
        graph.node.extend(self._graph.node[i] for i in step.nodes)
        graph.input.extend(map(self._typed, step.inputs))
        graph.output.extend(map(self._typed, step.outputs))
        edges = {*step.inputs, *step.outputs}
        for node in graph.node:
            for name in node.output:
                if name in self._types and name not in edges:
                    graph.value_info.append(self._types[name])
        for name in step.initializers:
            if name in self._initializers:
                graph.initializer.append(self._initializers[name])
            else:
                graph.sparse_initializer.append(self._sparse[name])
        return model

    def _typed(self, name: str) -> onnx.ValueInfoProto:
        return self._types.get(name) or onnx.ValueInfoProto(name=name)
