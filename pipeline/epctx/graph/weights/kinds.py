"""Kinds of weights: what a compile takes and makes depends on them more than on their bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import onnx_ir as ir


def kind_and_count(value: ir.Value) -> tuple[str, int]:
    """Return the kind of the weights that an initializer holds (float, integer or 4-bit), and how
    many they are. Their data is not read.
    """
    assert value.const_value is not None
    count, dtype = value.const_value.size, value.const_value.dtype
    users = [use.node for use in value.uses()]
    if any(node.op_type == "MatMulNBits" for node in users) and dtype == ir.DataType.UINT8:
        return "4-bit", 2 * count
    if dtype == ir.DataType.STRING:  # they have no width, and no EP that was measured takes them
        return "integer", count
    if dtype.bitwidth <= 4:
        return "4-bit", count
    return ("integer" if dtype.is_integer() else "float"), count


def counts(values: Iterable[ir.Value]) -> dict[str, int]:
    """Return how many weights initializers hold, by kind."""
    found: Counter[str] = Counter()
    for value in values:
        if value.const_value is not None:
            kind, count = kind_and_count(value)
            found[kind] += count
    return dict(sorted(found.items()))
