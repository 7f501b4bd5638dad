"""Duplicates merged: nodes that compute the same, initializers with the same content.

onnx_ir's passes of this kind were tried and not used (onnx-ir 1.1.0). Its pass for common
subexpressions treats Bernoulli and training Dropout as functions of their inputs, and an attribute
of -0.0 as 0.0. Its deduplication hashes every weight anew, and copies equal weights into memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping

import numpy as np
import onnx_ir as ir

from epctx.files.digest import Digest, of_chunks
from epctx.graph import uses
from epctx.graph.passes import edit, scratch
from epctx.graph.passes.base import CountingPass
from epctx.graph.weights.tensors import content_digest

DOMAINS = ("", "ai.onnx.ml")
"""Domains of known ops; ops of other domains may have a state."""

RANDOM = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
"""Ops whose output differs each time; a seed only fixes the order of their outputs."""

SMALL_ATTRIBUTE = 4096
"""Maximum bytes of tensors in attributes that are compared."""


class MergeSubexpressionsPass(CountingPass):
    """Merge nodes of the same op, inputs and attributes, in each graph separately."""

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Return the count of nodes merged into earlier ones."""
        count = 0
        for graph in model.graphs():
            seen: dict[Hashable, ir.Node] = {}
            for node in graph:
                key = _key(node)
                if key is None:
                    continue
                first = seen.setdefault(key, node)
                if first is not node and _merge(node, first):
                    count += 1
        return {"nodes": count}


def _merge(node: ir.Node, first: ir.Node) -> bool:
    if any(value.is_graph_output() for value in node.outputs):
        return False
    if any(value.is_graph_output() and not value.uses() for value in first.outputs):
        return False  # an output that nodes use, too, is not safe (`edit.Editor.substitute`)
    for old, new in zip(node.outputs, first.outputs, strict=True):
        edit.keep_type(old, new)
        uses.replace_all(old, new)
    edit.remove(node)
    return True


def _key(node: ir.Node) -> Hashable | None:
    """Return a key that only nodes that compute the same share; None if a node has no such key."""
    if node.domain not in DOMAINS or node.op_type in RANDOM or _trains(node):
        return None
    attributes = []
    for name in sorted(node.attributes):
        value = _attribute(node.attributes[name])
        if value is None:
            return None
        attributes.append((name, value))
    inputs = tuple(None if value is None else id(value) for value in node.inputs)
    outputs = tuple(bool(value.name) for value in node.outputs)
    return (node.domain, node.op_type, inputs, outputs, tuple(attributes))


def _trains(node: ir.Node) -> bool:
    """Tell whether a node is a Dropout that may drop something."""
    if node.op_type != "Dropout" or len(node.inputs) < 3 or node.inputs[2] is None:
        return False
    training = edit.array(node.inputs[2])
    return training is None or bool(training.any())


def _attribute(attribute: ir.Attr) -> Hashable | None:
    """Return a key that only equal attributes share, with floats by their bits; None if an
    attribute has no such key.
    """
    if attribute.is_ref():
        return None
    kind, value = attribute.type, attribute.value
    match kind:
        case ir.AttributeType.INT | ir.AttributeType.STRING:
            return (kind.value, value)
        case ir.AttributeType.FLOAT:
            return (kind.value, np.float64(attribute.as_float()).tobytes())
        case ir.AttributeType.INTS:
            return (kind.value, tuple(attribute.as_ints()))
        case ir.AttributeType.STRINGS:
            return (kind.value, tuple(attribute.as_strings()))
        case ir.AttributeType.FLOATS:
            return (kind.value, np.array(attribute.as_floats(), np.float64).tobytes())
        case ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
            if tensor.nbytes > SMALL_ATTRIBUTE or tensor.dtype == ir.DataType.STRING:
                return None
            return (kind.value, tensor.dtype, tensor.shape.numpy(), tensor.tobytes())
    return None


class MergeInitializersPass(CountingPass):
    """Merge initializers of the same type, shape and content, in each graph separately."""

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Return the count of initializers merged into earlier ones, and their bytes."""
        count = size = 0
        for graph in model.graphs():
            for group in _candidates(graph):
                first: dict[Digest, ir.Value] = {}
                for value in group:
                    assert value.const_value is not None
                    kept = first.setdefault(_digest(value.const_value), value)
                    if kept is value:
                        continue
                    size += value.const_value.nbytes
                    count += 1
                    uses.replace_all(value, kept)
                    graph.initializers.pop(str(value.name))
        return {"initializers": count, "bytes": size}


def _candidates(graph: ir.Graph) -> list[list[ir.Value]]:
    """Return groups of initializers that may be equal and that the caller neither feeds nor reads.

    Dequantized ones are left out: QNN 2.7.0 can compute wrong numbers from quantized constants that
    nodes share (`quantization.qnn`).
    """
    groups: defaultdict[Hashable, list[ir.Value]] = defaultdict(list)
    for value in graph.initializers.values():
        tensor = edit.constant(value)
        if tensor is not None and edit.is_free(value) and not _is_dequantized(value):
            groups[tensor.dtype, tensor.shape.numpy()].append(value)
    return [group for group in groups.values() if len(group) > 1]


def _is_dequantized(value: ir.Value) -> bool:
    return any(node.op_type == "DequantizeLinear" for node in value.consumers())


def _digest(tensor: ir.TensorProtocol) -> Digest:
    """Return BLAKE3 of a tensor's bytes; a view is never copied as a whole."""
    if isinstance(tensor, ir.Tensor) and tensor.dtype.bitwidth >= 8:
        return of_chunks(scratch.content_chunks(tensor.numpy()))
    return content_digest(tensor)
