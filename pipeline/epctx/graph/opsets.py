"""Operator sets where models meet: one model has one version of each."""

from __future__ import annotations

from collections import defaultdict

import onnx
import onnx_ir as ir
from onnx_ir.traversal import RecursiveGraphIterator

from epctx.errors import CompileError


def merge_opsets(model: ir.Model, fragment: ir.Model) -> None:
    """Import in `model` what the nodes of `fragment` use.

    Raises:
        CompileError: the model imports another version, in which one of these operators differs.
    """
    used: dict[str, set[str]] = defaultdict(set)
    for node in RecursiveGraphIterator(fragment.graph):
        used[node.domain].add(node.op_type)
    for domain, op_types in sorted(used.items()):
        version = fragment.opset_imports.get(domain, 1)
        own = model.opset_imports.setdefault(domain, version)
        for op_type in sorted(op_types):
            known = since(op_type, own, domain)
            if own != version and (known is None or known != since(op_type, version, domain)):
                raise CompileError(
                    f"a fragment has {op_type} of opset {version}, the model of opset {own}",
                    where=f"graph {model.graph.name}, domain {domain or 'ai.onnx'}",
                    remedy="report it to those who make this execution provider",
                )


def since(op_type: str, version: int, domain: str) -> int | None:
    """The opset version since which an operator is what it is; None: onnx does not know it."""
    try:
        return int(onnx.defs.get_schema(op_type, version, domain).since_version)
    except onnx.defs.SchemaError:
        return None
