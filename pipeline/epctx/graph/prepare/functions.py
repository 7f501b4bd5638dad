"""Local functions of a model, inlined at load, so that later stages see none.

onnx's own inliner does it: it gives every value and node a name of its own, follows overloads and
attribute references, and is linear (onnx_ir 1.1's pass is not: 20,000 calls take minutes).
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx.inliner

from epctx import limits
from epctx.error_codes import Code
from epctx.errors import ModelError
from epctx.graph.serde import protos

_Key = tuple[str, str, str]


def inlined(model: onnx.ModelProto, *, where: str) -> onnx.ModelProto:
    """Return a model without local functions; a copy if it has some. Raises as `inline` does."""
    if not model.functions:
        return model
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    return inline(whole, where=where)


def inline(model: onnx.ModelProto, *, where: str) -> onnx.ModelProto:
    """Return the model without local functions; their nodes move into the calling graphs.

    Raises:
        ModelError: functions call each other in a circle, or would become too many nodes.
    """
    if not model.functions:
        return model
    functions = {_key(f.domain, f.name, f.overload): f for f in model.functions}
    if len(functions) < len(model.functions):
        raise ModelError.broken("defines a local function twice", where=where)
    _bound(model, functions, where=where)
    for function in model.functions:
        _adopt_opsets(model, function)
        _forget_symbols(function)
    _write_defaults(model, functions)
    try:
        inlined = onnx.inliner.inline_local_functions(model)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        why = str(error).partition("failed: ")[2] or str(error)
        raise ModelError.broken(
            "has local functions that cannot be inlined", where=where, why=why
        ) from error
    del inlined.functions[:]
    for node in protos.nodes(inlined):
        if _called(node) in functions:
            raise ModelError(
                f"{protos.describe(node)} calls a local function that cannot be inlined",
                where=where,
                remedy="inline the functions when the model is exported",
            )
    return inlined


def _bound(
    model: onnx.ModelProto, functions: dict[_Key, onnx.FunctionProto], *, where: str
) -> None:
    """Refuse recursion, and more nodes after inlining than limits.MODEL_NODES: the number of nodes
    can double at every level of calls.
    """
    sizes: dict[_Key, int] = {}
    active: list[_Key] = []

    def size(key: _Key) -> int:
        if key in active:
            circle = " -> ".join(_words(each) for each in [*active[active.index(key) :], key])
            raise ModelError.broken(
                "local functions call each other in a circle, which ONNX forbids",
                where=where,
                why=circle,
            )
        if key not in sizes:
            if len(active) == limits.FUNCTION_DEPTH.value:
                raise ModelError(
                    f"nests local functions more than {limits.FUNCTION_DEPTH.value} deep",
                    where=where,
                    remedy="export the model with fewer nested functions",
                    code=Code.MODEL_TOO_LARGE,
                )
            active.append(key)
            sizes[key] = total(_function_nodes(functions[key]))
            active.pop()
        return sizes[key]

    def total(nodes: Iterable[onnx.NodeProto]) -> int:
        return sum(size(key) if (key := _called(node)) in functions else 1 for node in nodes)

    for key in functions:
        size(key)
    count = total(node for graph in protos.nested(model.graph) for node in graph.node)
    if count > limits.MODEL_NODES.value:
        raise ModelError(
            f"has {count:,} nodes when its local functions are inlined, more than "
            f"{limits.MODEL_NODES.value:,}",
            where=where,
            remedy=f"export the model with fewer nested functions; {limits.MODEL_NODES.remedy}",
            code=Code.MODEL_TOO_LARGE,
        )


def _write_defaults(model: onnx.ModelProto, functions: dict[_Key, onnx.FunctionProto]) -> None:
    """Give each call the function's default attributes: the inliner forgets them."""
    for node in protos.nodes(model):
        function = functions.get(_called(node))
        if function is not None:
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(a for a in function.attribute_proto if a.name not in given)


def _adopt_opsets(model: onnx.ModelProto, function: onnx.FunctionProto) -> None:
    """Let a function import the model's opsets, as ONNX Runtime reads its nodes."""
    imports = {_domain(each.domain): each.version for each in model.opset_import}
    for each in function.opset_import:
        domain = _domain(each.domain)
        if domain not in imports:
            model.opset_import.add(domain=domain, version=each.version)
        each.version = imports.get(domain, each.version)


def _forget_symbols(function: onnx.FunctionProto) -> None:
    """Remove a function's symbols: they are not the sizes of that name in the calling graph."""
    for value in function.value_info:
        for dim in protos.dimensions(value.type):
            dim.ClearField("dim_param")


def _function_nodes(function: onnx.FunctionProto) -> Iterable[onnx.NodeProto]:
    for node in function.node:
        yield node
        for inner in protos.subgraphs(node):
            for graph in protos.nested(inner):
                yield from graph.node


def _called(node: onnx.NodeProto) -> _Key:
    return _key(node.domain, node.op_type, node.overload)


def _key(domain: str, name: str, overload: str) -> _Key:
    return _domain(domain), name, overload


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _words(key: _Key) -> str:
    domain, name, overload = key
    return f"{domain}::{name}" + (f":{overload}" if overload else "")
