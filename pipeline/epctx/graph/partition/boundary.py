"""What may cross the border of a partition: what an EPContext node may take and give.

Source: the EPContext op's schema in onnxruntime 1.31.1 (`T`), and real-eps.md sections 14 and 15:
another type is INVALID_GRAPH at load, and so is an output whose type and shape are not given.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from epctx.graph.dataflow import Dataflow
from epctx.graph.partition.bonds import Bond
from epctx.graph.serde.types import MapType

TYPES = frozenset(
    {
        ir.DataType.BOOL,
        ir.DataType.INT8,
        ir.DataType.INT16,
        ir.DataType.INT32,
        ir.DataType.INT64,
        ir.DataType.UINT8,
        ir.DataType.UINT16,
        ir.DataType.UINT32,
        ir.DataType.UINT64,
        ir.DataType.FLOAT16,
        ir.DataType.FLOAT,
        ir.DataType.DOUBLE,
        ir.DataType.BFLOAT16,
    }
)
"""Element types of the tensors that an EPContext node accepts."""

UNKNOWN_RANK = "unknown rank of a value that would leave the partition"


def bonds(flow: Dataflow) -> list[Bond]:
    """The values of a model that may not cross, or not leave, a partition."""
    crossing = {v: uses for v, uses in flow.consumers.items() if not flow.is_constant(v)}
    for value in flow.producer:
        if flow.is_output(value):
            crossing.setdefault(value, [])
    return [bond for value in crossing if (bond := _bond(flow, value, crossing[value]))]


def _bond(flow: Dataflow, value: ir.Value, consumers: Iterable[int]) -> Bond | None:
    barred = refused(value)
    shapeless = value.shape is None and value in flow.producer
    if barred is None and not shapeless:
        return None
    return Bond(
        producer=flow.producer.get(value, -1),
        consumers=tuple(consumers),
        exposed=flow.is_output(value),
        one_way=barred is None,
        reason=barred or UNKNOWN_RANK,
    )


def refused(value: ir.Value) -> str | None:
    """Why a value of this type may not cross a partition's border; None if it may."""
    if value.type is None:
        return "unknown type at the partition boundary"
    if isinstance(value.type, ir.TensorType):
        if value.type.dtype in TYPES:
            return None
        if value.type.dtype == ir.DataType.UNDEFINED:
            return "unknown type at the partition boundary"
    return f"type {type_name(value.type)} at the partition boundary"


def type_name(of: ir.TypeProtocol) -> str:
    """The type as a user reads it: `float8e4m3fn`, `sequence(string)`, `map(int64, float)`."""
    if isinstance(of, ir.SequenceType | ir.OptionalType):
        kind = "sequence" if isinstance(of, ir.SequenceType) else "optional"
        return f"{kind}({type_name(of.elem_type)})"
    if isinstance(of, MapType):
        return f"map({of.key_type.name.lower()}, {type_name(of.value_type)})"
    name = of.dtype.name.lower()
    return f"sparse({name})" if isinstance(of, ir.SparseTensorType) else name
