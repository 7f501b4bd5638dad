"""In which order a model has its nodes, for whoever hears at which of them a run failed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

import onnx
from msgspec import Struct

from epctx.graph.serde import protos

_FAILED: Final = re.compile(r"while running (\S+) node\. Name:'([^']*)'")


class NodeOrder(Struct, frozen=True, kw_only=True):
    """The nodes of a model's main graph.

    Attributes:
        names: by name, how many nodes come before it.
        op_types: by op type, how many come before the first of that type.
        sizes: dimensions of its weights, the most frequent first.
    """

    names: Mapping[str, int]
    op_types: Mapping[str, int]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, model: onnx.ModelProto) -> NodeOrder:
        """The order of a model."""
        op_types: dict[str, int] = {}
        for place, node in enumerate(model.graph.node):
            op_types.setdefault(node.op_type, place)
        sizes = Counter(size for tensor in protos.tensors(model) for size in tensor.dims)
        return cls(
            names={node.name: place for place, node in enumerate(model.graph.node) if node.name},
            op_types=op_types,
            sizes=tuple(size for size, _ in sizes.most_common() if size > 1),
        )

    def reached(self, error: str) -> int:
        """How many nodes ran before the one at which a run failed; -1: it does not say."""
        found = _FAILED.search(error)
        if found is None:
            return -1
        op_type, name = found.groups()
        return self.names.get(name, self.op_types.get(op_type, -1))
