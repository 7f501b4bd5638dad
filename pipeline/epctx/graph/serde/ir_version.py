"""What a model needs of ONNX: the opsets it uses, the lowest IR version that has it all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import onnx
import onnx_ir as ir

from epctx.graph.serde.ordering import OrderedGraph, bug

BASE: Final = 8
"""IR version of 2021: what every ONNX Runtime since 1.10 reads."""

_DATA_TYPES: Final = {
    "FLOAT8E4M3FN": 9,
    "FLOAT8E4M3FNUZ": 9,
    "FLOAT8E5M2": 9,
    "FLOAT8E5M2FNUZ": 9,
    "UINT4": 10,
    "INT4": 10,
    "FLOAT4E2M1": 11,
    "FLOAT8E8M0": 12,
    "UINT2": 13,
    "INT2": 13,
    "FLOAT6E2M3": 14,
    "FLOAT6E3M2": 14,
}
"""IR version that brought a data type. Source: the comments on `Version` in onnx.proto."""


def opsets(model: ir.Model, ordered: OrderedGraph) -> dict[str, int]:
    """The opset imports that nodes use; ONNX's own where there is no node.

    Raises:
        EpctxError: a node's domain is not imported; loaded models import all of theirs.
    """
    imports = model.graph.opset_imports
    used = {node.domain for graph in _graphs(ordered) for node in graph.nodes}
    missing = used - imports.keys()
    if missing:
        what = f"nodes of domain {min(missing)!r} are in the model, which does not import it"
        raise bug(what, where=model.graph.name)
    return {domain: imports[domain] for domain in used} or {"": imports.get("", BASE)}


def lowest(model: ir.Model, ordered: OrderedGraph) -> int:
    """The lowest IR version, from `BASE` on, that has the opsets and data types in use."""
    imports = [onnx.helper.make_opsetid(*each) for each in opsets(model, ordered).items()]
    versions = [BASE, onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True)]
    names = {dtype.name for dtype in _data_types(ordered) if dtype is not None}
    return max(*versions, *(version for name, version in _DATA_TYPES.items() if name in names))


def _graphs(ordered: OrderedGraph) -> Iterator[OrderedGraph]:
    yield ordered
    for bodies in ordered.bodies.values():
        for body in bodies:
            yield from _graphs(body)


def _data_types(ordered: OrderedGraph) -> Iterable[ir.DataType | None]:
    found: set[ir.DataType | None] = set()
    for graph in _graphs(ordered):
        found.update(value.dtype for value in (*graph.graph.inputs, *graph.used))
        for node in graph.nodes:
            found.update(value.dtype for value in node.outputs)
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR:
                    found.add(attribute.as_tensor().dtype)
    return found
