"""Whether a context binary is the one of a model's nodes, found out without running it.

Loading finds graphs that are missing or others; what a model says of the sizes of its inputs and
outputs nothing would hold against the graph before the first run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx_ir as ir

from epctx.errors import InvalidGraph
from epctx.graph.epcontext import EPContextNode
from epctx.providers.reference import kernels, loading, reader


def misfits(path: Path, nodes: Sequence[ir.Node]) -> Iterator[str]:
    """What of a context binary does not fit nodes that refer to it.

    Raises:
        InvalidGraph: the binary is broken.
    """
    context = reader.open_file(path.parent, path.name, where=path.name)
    contexts = [EPContextNode.from_ir(node) for node in nodes]
    try:
        loading.load(contexts, context.meta, path.parent, None)
    except InvalidGraph as error:
        yield f"{error.where}: {error.reason}"
        return
    for node, found in zip(nodes, contexts, strict=True):
        graph = kernels.parse(context.graphs[found.partition_name or ""], path.name).graph
        for kind, values, own in (
            ("input", node.inputs, graph.input),
            ("output", node.outputs, graph.output),
        ):
            if len(values) != len(own):
                yield f"node {node.name!r} has {len(values)} {kind}s, its graph {len(own)}"
            for value, info in zip(values, own, strict=False):
                said = _sizes(value)
                is_ = _sizes(ir.serde.deserialize_value_info_proto(info, None))
                if said is not None and not _agree(said, is_):
                    yield f"{kind} {info.name!r} has {is_}, in the model it has {said}"


def _sizes(value: ir.Value | None) -> list[int | None] | None:
    if value is None or value.shape is None:
        return None
    return [dim if isinstance(dim, int) else None for dim in value.shape]


def _agree(one: list[int | None], other: list[int | None] | None) -> bool:
    """Sizes that are known of both are the same."""
    if other is None:
        return True
    return len(one) == len(other) and all(
        a == b for a, b in zip(one, other, strict=True) if a is not None and b is not None
    )
