"""Reading and changing onnx_ir graphs, for passes: constants, shapes, replaced values."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from epctx.graph import uses
from epctx.graph.serde.ordering import QUANTIZATION, OrderedGraph, bodies, order


def prepare(model: ir.Model) -> None:
    """Bring a model into a canonical form, so that results of passes depend on the graph alone.

    Nodes come in canonical order and initializers by name. So the source's order does not decide
    which of two equals is kept, or which number a name gets. Initializers that quantization
    annotations name are protected: no node uses them.
    """
    _sort(order(model.graph))
    for graph in model.graphs():
        values = (
            *graph.inputs,
            *graph.initializers.values(),
            *(v for n in graph for v in n.outputs),
        )
        for name in {name for v in values for name in v.meta.get(QUANTIZATION, {}).values()}:
            if name in graph.initializers:
                graph.initializers[name].meta[_PROTECTED] = True


def _sort(ordered: OrderedGraph) -> None:
    graph = ordered.graph
    graph.remove(ordered.nodes)
    graph.extend(ordered.nodes)
    for name in sorted(graph.initializers):
        graph.initializers.add(graph.initializers.pop(name))
    for inside in ordered.bodies.values():
        for body in inside:
            _sort(body)


def is_free(value: ir.Value) -> bool:
    """Tell whether only the graph's nodes refer to an initializer."""
    is_bound = value.is_graph_input() or value.is_graph_output() or value.meta.get(_PROTECTED)
    return not is_bound


_PROTECTED = "epctx.protected"
"""Key in the `meta` of an initializer that stays, used or not."""

NEWEST_OPSET = 28
"""Opset of onnx 1.23, for which kernels and rules were written; in later opsets operators may
differ.
"""


def opset(model: ir.Model) -> int:
    """Return the version of the default domain that the model imports; 0 if it does not."""
    return model.opset_imports.get("", 0)


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    """Tell whether a node is one of these ops of the default domain."""
    return node is not None and not node.domain and node.op_type in op_types


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer that nobody can feed; None for other values."""
    if value is None or not value.is_initializer() or value.is_graph_input():
        return None
    return value.const_value


def array(value: ir.Value | None) -> npt.NDArray[np.generic] | None:
    """Return a constant as an array; None for other values and for strings."""
    tensor = constant(value)
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return None
    return tensor.numpy()


def integers(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the elements of a constant integer tensor of rank 0 or 1; else None."""
    tensor = constant(value)
    if tensor is None or not tensor.dtype.is_integer() or len(tensor.shape) > 1:
        return None
    return tuple(int(item) for item in tensor.numpy().reshape(-1))


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape of a value; None if it is not known completely."""
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    return value.shape.numpy()


def rank(value: ir.Value | None) -> int | None:
    """Return the rank of a value; None if it is unknown."""
    return None if value is None or value.shape is None else len(value.shape)


def same_static_shape(left: ir.Value | None, right: ir.Value | None) -> bool:
    """Tell whether both shapes are known, and equal."""
    shape = static_shape(left)
    return shape is not None and shape == static_shape(right)


def remove(node: ir.Node) -> None:
    """Remove a node whose outputs nobody uses, with all uses of outer values by its subgraphs."""
    for inner in bodies(node.attributes.values()):
        inner.outputs.clear()
        for each in reversed(inner):
            remove(each)
    uses.remove(node)


def discard_unused(value: ir.Value) -> None:
    """Drop an unused initializer at once: it may hold memory."""
    if not value.is_initializer() or not is_free(value):
        return
    if value.graph is not None and not value.uses():
        value.graph.initializers.pop(str(value.name))


class Editor:
    """Edits one model; its meaning and the names of its inputs and outputs stay."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    @functools.cached_property
    def _taken(self) -> set[str]:
        """Names of values and nodes in the whole model."""
        taken: set[str] = set()
        for graph in self._model.graphs():
            taken.update(str(value.name) for value in graph.inputs)
            taken.update(graph.initializers)
            for node in graph:
                taken.update(value.name for value in node.outputs if value.name)
                taken.add(node.name or "")
        return taken

    def free_name(self, wanted: str) -> str:
        """Reserve `wanted`, or `wanted` with the first number that makes it unique in the model."""
        candidate, count = wanted, 0
        while candidate in self._taken:
            count += 1
            candidate = f"{wanted}_{count}"
        self._taken.add(candidate)
        return candidate

    def initializer(
        self, graph: ir.Graph, tensor: ir.TensorProtocol, name: str | None = None
    ) -> ir.Value:
        """Register `tensor` under `name`, which must be free, or under a name like its own."""
        tensor.name = name or self.free_name(tensor.name or "constant")
        value = ir.Value(
            name=tensor.name,
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        graph.register_initializer(value)
        return value

    def make_constant(self, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        """Replace a node's output by an initializer of the same name; the caller removes the node.

        A graph output becomes the output of an Identity: partitions, and some execution providers,
        do not support outputs that no node makes.
        """
        graph = graph_of(value)
        if value.is_graph_output():
            tensor.name = f"{value.name}/value"
            fresh = self.initializer(graph, tensor)
            self._through_identity(value, fresh)
        else:
            fresh = self.initializer(graph, tensor, value.name)
            fresh.meta.update(value.meta)
            uses.replace_all(value, fresh)
        return fresh

    def substitute(self, old: ir.Value, new: ir.Value) -> bool:
        """Replace `old`, which a node makes, by `new`; return False if that is not possible.

        A graph output keeps its name. `new` takes the name if a node of the same graph makes it,
        nothing else uses it, and it is not an output itself; else an Identity comes between. If an
        Identity makes `old` already, nothing changes. A value that is an output and is used by
        nodes, too, is not safe with ONNX Runtime: its fusion of Gemm and Transpose (1.31.1) removes
        the node that makes it, and the model cannot be loaded.
        """
        keep_type(old, new)
        if not old.is_graph_output():
            uses.replace_all(old, new)
            return True
        graph, producer = graph_of(old), new.producer()
        alone = all(node is old.producer() for node, _ in new.uses()) and not old.uses()
        if alone and producer is not None and producer.graph is graph and not new.is_graph_output():
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            new.name = old.name
            return True
        if is_op(old.producer(), "Identity"):
            return False
        self._through_identity(old, new)
        return True

    def _through_identity(self, old: ir.Value, new: ir.Value) -> None:
        """Let an Identity of `new` make a graph output."""
        graph, node = graph_of(old), old.producer()
        assert node is not None
        uses.replace_all(old, new)
        output = ir.Value(name=old.name, shape=old.shape, type=old.type)
        name = self.free_name(f"{old.name}/Identity")
        graph.insert_before(node, ir.Node("", "Identity", [new], outputs=[output], name=name))
        while old.is_graph_output():
            graph.outputs[graph.outputs.index(old)] = output


def graph_of(value: ir.Value) -> ir.Graph:
    """Return the graph whose node makes a value."""
    node = value.producer()
    assert node is not None
    assert isinstance(node.graph, ir.Graph)
    return node.graph


def keep_type(old: ir.Value, new: ir.Value) -> None:
    """Copy known type and shape of `old` to `new`, which is the same value."""
    if new.type is None:
        new.type = old.type
    if old.shape is None:
        return
    if new.shape is None:
        new.shape = old.shape.copy()
    elif len(new.shape) == len(old.shape) and not new.is_graph_input():
        new.shape = ir.Shape(
            theirs if not isinstance(mine, int) and isinstance(theirs, int) else mine
            for mine, theirs in zip(new.shape, old.shape, strict=True)
        )
