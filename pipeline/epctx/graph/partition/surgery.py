"""Cutting a partition out of a model, and replacing it by the fragment that its EP made.

Tensors are never copied: initializers on both sides are the same tensor objects. One model has one
version of each operator set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import onnx
import onnx_ir as ir
from onnx_ir.traversal import RecursiveGraphIterator

from epctx.errors import CompileError, ModelError
from epctx.graph import uses
from epctx.graph.dataflow import captured, subgraphs
from epctx.graph.epcontext import COMPATIBILITY, is_epcontext
from epctx.graph.model import Partition, Replacement
from epctx.graph.partition.borders import Names, type_name
from epctx.graph.weights.tensors import content_digest


def merge_opsets(model: ir.Model, fragment: ir.Model) -> None:
    """Import in `model` the operator sets that the nodes of `fragment` use.

    Raises:
        CompileError: the model imports another version, in which an operator differs or is unknown.
    """
    used: dict[str, set[str]] = defaultdict(set)
    for node in RecursiveGraphIterator(fragment.graph):
        used[node.domain].add(node.op_type)
    for domain, op_types in sorted(used.items()):
        version = fragment.opset_imports.get(domain, 1)
        own = model.opset_imports.setdefault(domain, version)
        for op_type in sorted(op_types):
            current = since(op_type, own, domain)
            is_other = current is None or current != since(op_type, version, domain)
            if own != version and is_other:
                raise CompileError(
                    f"a fragment has {op_type} of opset {version}, the model of opset {own}",
                    where=f"graph {model.graph.name}, domain {domain or 'ai.onnx'}",
                    remedy="report it to those who make this execution provider",
                )


def since(op_type: str, version: int, domain: str) -> int | None:
    """Return the opset version of an operator's last change; None if onnx does not know it."""
    try:
        return int(onnx.defs.get_schema(op_type, version, domain).since_version)
    except onnx.defs.SchemaError:
        return None


_IDENTITY_OPSET = 21
"""Opset of the default domain for a model that has no operator of it."""

_REPORT = "report it to those who make this execution provider"


def extract(model: ir.Model, partition: Partition) -> ir.Model:
    """Return a standalone model of a partition; the source model stays as it is.

    Its inputs, outputs and initializers are the partition's, by name, with type and shape. Its
    nodes, those in subgraphs included, keep their names and order. Initializers refer to the same
    tensors as the model's, which are not read.

    Args:
        partition: a partition whose nodes need only its inputs and initializers.
    """
    graph = ir.GraphView(
        partition.inputs,
        partition.outputs,
        nodes=partition.nodes,
        initializers=partition.initializers,
        opset_imports=dict(model.opset_imports),
        name=model.graph.name,
    ).clone()
    for value in graph.inputs:
        value.const_value = None  # no defaults in the extracted model
    return ir.Model(graph, ir_version=model.ir_version, functions=tuple(model.functions.values()))


def splice(model: ir.Model, replacements: Sequence[Replacement]) -> None:
    """Replace each partition of `model` by its fragment, in place.

    Graph inputs and outputs keep names and order. Outputs of a fragment keep their names, and have
    the type and shape that the fragment or the model knows. Other names of a fragment get a number
    if they are in use; names of EPContext nodes never change, since EPs find their graphs by them.
    A fragment's initializer that is the model's own stays one initializer; unused initializers are
    removed. The result is sorted. Fragments stay as they are.

    Args:
        model: a model whose main graph holds the partitions' nodes.
        replacements: replacements of distinct partitions.

    Raises:
        CompileError: a fragment does not fit: other inputs or outputs than the partition's, another
            type or shape, another opset version, a taken name of an EPContext node, an output of an
            EPContext node without type or shape.
        ModelError: the model declares an output with another rank than it has.
    """
    if not replacements:
        return
    gone = {node for replacement in replacements for node in replacement.partition.nodes}
    for replacement in replacements:
        _check_interface(replacement)
    _drop_initializers(model.graph, lambda node: node not in gone)
    names = Names(model.graph, [replacement.fragment.graph for replacement in replacements], gone)
    instead: dict[ir.Value, ir.Value] = {}
    for replacement in replacements:
        _merge_model(model, replacement.fragment)
        instead.update(_insert(model.graph, replacement, names))
    outputs = model.graph.outputs
    outputs[:] = [instead.get(value, value) for value in outputs]
    for old, new in instead.items():
        uses.replace_all(old, new)
    for node in gone:
        for user in (node, *(inner for graph in subgraphs(node) for inner in graph)):
            uses.detach(user)
    model.graph.remove(gone)
    _drop_initializers(model.graph, lambda node: True)
    try:
        model.graph.sort()
    except ValueError as error:
        raise CompileError(
            "the compiled partitions make a cycle",
            where=f"graph {model.graph.name}",
            remedy="report it as a bug of epctx, with the model",
        ) from error


def _check_interface(replacement: Replacement) -> None:
    partition, graph = replacement.partition, replacement.fragment.graph
    inputs = {value.name for value in partition.inputs}
    strange = [value.name for value in graph.inputs if value.name not in inputs]
    if strange:
        raise _misfit(partition, f"it takes {strange[0]}, which is not an input of the partition")
    wanted = sorted(value.name or "" for value in partition.outputs)
    given = sorted(value.name or "" for value in graph.outputs)
    if wanted != given:
        outputs = ", ".join(given) or "nothing"
        raise _misfit(partition, f"it gives {outputs}, not {', '.join(wanted)}")
    for node in graph:
        for value in node.outputs if is_epcontext(node) else ():
            if value.name and (value.type is None or value.shape is None):
                raise _misfit(partition, f'EPContext output "{value.name}" has no type or shape')


def _merge_model(model: ir.Model, fragment: ir.Model) -> None:
    """Copy opsets, IR version and compatibility info from a fragment's model."""
    merge_opsets(model, fragment)
    model.ir_version = max(model.ir_version, fragment.ir_version)
    for key, info in fragment.metadata_props.items():
        if key.startswith(COMPATIBILITY) and model.metadata_props.setdefault(key, info) != info:
            raise CompileError(
                f"two partitions of one model have different {key}",
                where=f"graph {model.graph.name}",
                why=f"{model.metadata_props[key]} and {info}",
                remedy=_REPORT,
            )
    for identifier, function in fragment.functions.items():
        if model.functions.setdefault(identifier, function) is not function:
            raise CompileError(
                f"a fragment brings another function {'::'.join(filter(None, identifier))}",
                where=f"graph {model.graph.name}",
                remedy=_REPORT,
            )


def _insert(graph: ir.Graph, replacement: Replacement, names: Names) -> dict[ir.Value, ir.Value]:
    """Put a copy of one fragment behind the last node of its partition.

    Returns the values that replace the partition's outputs.
    """
    partition = replacement.partition
    fragment = replacement.fragment.graph.clone()
    outside = {value.name: value for value in partition.inputs}
    nodes = list(fragment)
    outputs = {value.name: value for value in fragment.outputs}
    names.assign(fragment, kept=frozenset(outputs.values()))

    source: dict[ir.Value, ir.Value] = {}
    for value in list(fragment.inputs):
        source[value] = outside[value.name]
    weights = list(fragment.initializers.values())
    fragment.remove(nodes)
    fragment.outputs.clear()
    fragment.inputs.clear()
    fragment.initializers.clear()
    for value in weights:
        if value not in source:
            source[value] = _initializer(graph, value, names)
    for value, replaced_by in source.items():
        uses.replace_all(value, replaced_by)

    instead: dict[ir.Value, ir.Value] = {}
    for old in partition.outputs:
        new = value = outputs[old.name]
        if value in source:  # a constant: an initializer has no place in the main graph's order
            graph.opset_imports.setdefault("", _IDENTITY_OPSET)
            node = ir.node("Identity", [source[value]], name=names.node(f"{old.name}_identity"))
            nodes.append(node)
            new = node.outputs[0]
        _describe(partition, new, value, old)
        instead[old] = new
    graph.insert_after(partition.nodes[-1], nodes)
    return instead


def _describe(partition: Partition, new: ir.Value, given: ir.Value, old: ir.Value) -> None:
    """Give a fragment's output the name of the replaced value, and the type and shape of both."""
    new.name = old.name
    if given.type is not None and old.type is not None:
        types = type_name(given.type), type_name(old.type)
        if types[0] != types[1]:
            raise _misfit(partition, f'"{old.name}" is of type {types[0]}, not {types[1]}')
    shape = given.shape
    new.type = given.type if old.type is None else old.type
    new.shape = None if old.shape is None else old.shape.copy()
    try:
        new.merge_shapes(shape)
    except ValueError as error:
        if old.is_graph_output() and shape and old.shape and len(shape) != len(old.shape):
            raise ModelError(
                f"declares its output '{old.name}' as {old.shape}, but its shape is {shape}",
                remedy="export the model with the shape that the output has: `epctx run` shows it",
            ) from error
        raise _misfit(partition, f'"{old.name}" has shape {shape}, not {old.shape}') from error


def _initializer(graph: ir.Graph, value: ir.Value, names: Names) -> ir.Value:
    """Return the model's initializer for a fragment's: an equal one of its name, or a new one."""
    name = value.name or ""
    own = graph.initializers.get(name)
    if own is not None and _same_tensor(own.const_value, value.const_value):
        return own
    new = ir.Value(
        name=names.value(name),
        type=value.type,
        shape=value.shape,
        const_value=value.const_value,
    )
    graph.initializers.add(new)
    return new


def _same_tensor(one: ir.TensorProtocol | None, two: ir.TensorProtocol | None) -> bool:
    """Tell whether two tensors are equal bit by bit."""
    if one is two or one is None or two is None:
        return one is two
    if one.dtype != two.dtype or tuple(one.shape) != tuple(two.shape):
        return False
    return content_digest(one) == content_digest(two)


def _drop_initializers(graph: ir.Graph, counts: Callable[[ir.Node], bool]) -> None:
    """Remove initializers that neither the graph itself nor a node that `counts` uses."""
    used: set[ir.Value] = set(graph.outputs) | set(graph.inputs)
    for node in filter(counts, graph):
        used.update(value for value in node.inputs if value is not None)
        used.update(captured(node))
    for name, value in list(graph.initializers.items()):
        if value not in used:
            del graph.initializers[name]


def _misfit(partition: Partition, why: str) -> CompileError:
    first = partition.nodes[0]
    return CompileError(
        "the execution provider made a fragment that does not fit its partition",
        where=f'partition of {len(partition.nodes)} nodes from "{first.name}" on',
        why=why,
        remedy=_REPORT,
    )
