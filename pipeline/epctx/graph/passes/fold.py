"""Folding of constants: nodes whose inputs are constants become initializers.

`fold-constants` folds nodes that are bit-exact on every machine, and `fold-float-arithmetic` folds
elementwise IEEE arithmetic (design section 7). Weights that nodes make must reach an execution
provider as initializers (real-eps.md section 14).

numpy evaluates the nodes. onnxruntime does not (`arithmetic` says why). Nor does onnx's reference
evaluator: it computes some ops in float64, and holds every result in memory. Bit-exact means equal
to the results of onnxruntime's CPU kernels at ORT_DISABLE_ALL (tests/fuzz/graphs checks it), with
one exception. The CPU EP leaves out roundings between float16 nodes, so a Cast of a weight to
float16 before such a node rounds when it is folded, and does not when it is run (measured on
1.31.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import onnx_ir as ir

from epctx.graph.passes import edit
from epctx.graph.passes.base import CountingPass
from epctx.graph.passes.kernels import arithmetic, movement
from epctx.graph.passes.kernels.operation import Declined, Kernel, Operation
from epctx.graph.passes.scratch import SMALL, Array, Scratch
from epctx.graph.passes.shapes import NodeInference
from epctx.graph.serde.ordering import bodies
from epctx.graph.weights.tensors import MappedTensor

Kernels = Mapping[str, tuple[int, Kernel]]


class _FoldPass(CountingPass):
    """Fold nodes of constants, in one sweep that also infers the shapes it makes known."""

    _kernels: ClassVar[Kernels]
    """Kernels of nodes that are folded if all inputs are constants."""

    _shape_kernels: ClassVar[Kernels] = {}
    """Kernels of nodes that are folded if the shape of the first input is known."""

    def __init__(self, scratch: Scratch) -> None:
        """Put large results into `scratch`."""
        self._scratch = scratch

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Return counts of folded nodes by op type, and of values whose shape became known."""
        sweep = _Sweep(self, model)
        sweep.graph(model.graph)
        return sweep.changed

    def evaluate(self, node: ir.Node, version: int) -> list[ir.TensorProtocol] | None:
        """Return the tensors that a node always makes; None if they are not constant."""
        if node.domain:
            return None
        since, kernel = self._shape_kernels.get(node.op_type, (0, None))
        needed = not kernel
        if kernel is None:
            since, kernel = self._kernels.get(node.op_type, (0, None))
        if kernel is None or not since <= version <= edit.NEWEST_OPSET or not _typed(node):
            return None
        if needed and any(v is not None and edit.constant(v) is None for v in node.inputs):
            return None
        operation = Operation(
            node=node,
            version=version,
            inputs=tuple(self._array(value) for value in node.inputs),
            scratch=self._scratch,
        )
        try:
            arrays = kernel(operation)
        except (Declined, ValueError, IndexError, TypeError, ArithmeticError):
            # Such a node is not valid ONNX: it stays, and fails when it is run.
            return None
        return self._tensors(node, arrays)

    def _array(self, value: ir.Value | None) -> Array | None:
        tensor = edit.constant(value)
        if isinstance(tensor, MappedTensor):
            self._scratch.know(tensor.file)
        return None if tensor is None else tensor.numpy()

    def _tensors(self, node: ir.Node, arrays: Sequence[Array]) -> list[ir.TensorProtocol] | None:
        if len(arrays) != len(node.outputs):
            return None
        if self._scratch.is_full and any(array.nbytes >= SMALL for array in arrays):
            return None
        results = []
        for value, array in zip(node.outputs, arrays, strict=True):
            dtype = ir.DataType.from_numpy(array.dtype)
            shape = edit.static_shape(value)
            if value.dtype not in (None, dtype) or shape not in (None, array.shape):
                return None
            if _expands(value) and array.min(initial=0) < 0:
                return None
            results.append(self._scratch.tensor(array, dtype, value.name or ""))
        return results


class FoldConstantsPass(_FoldPass):
    """Fold integers, booleans, movement, fills and casts."""

    _kernels: ClassVar[Kernels] = {
        **movement.KERNELS,
        **arithmetic.KERNELS,
    }
    _shape_kernels = movement.SHAPE_KERNELS


class FoldFloatArithmeticPass(_FoldPass):
    """Fold elementwise arithmetic of float32 and float64."""

    _kernels = arithmetic.FLOAT_KERNELS


class _Sweep:
    """One pass over a model in the order of its nodes."""

    def __init__(self, folding: _FoldPass, model: ir.Model) -> None:
        self._folding = folding
        self._editor = edit.Editor(model)
        self._inference = NodeInference(model)
        self._version = edit.opset(model)
        self._news: set[ir.Value] = set()
        """Values about which this sweep learned more; nodes that read them may now be inferred."""
        self.changed: Counter[str] = Counter()

    def graph(self, graph: ir.Graph) -> None:
        for node in graph:
            for inner in bodies(node.attributes.values()):
                self.graph(inner)
            if _final(node):
                continue
            constants = self._folding.evaluate(node, self._version)
            if constants is not None:
                self._replace(node, constants)
            elif any(value in self._news for value in node.inputs):
                better = self._inference.infer(node)
                self._news.update(better)
                self.changed["shapes"] += len(better)

    def _replace(self, node: ir.Node, constants: list[ir.TensorProtocol]) -> None:
        for value, tensor in zip(node.outputs, constants, strict=True):
            if value.uses() or value.is_graph_output():
                self._news.add(self._editor.make_constant(value, tensor))
        inputs = {value for value in node.inputs if value is not None}
        edit.remove(node)
        for value in inputs:
            edit.discard_unused(value)
        self.changed[node.op_type] += 1


def _final(node: ir.Node) -> bool:
    """Tell whether a node is the Identity that gives a graph output its constant."""
    return edit.is_op(node, "Identity") and node.outputs[0].is_graph_output()


def _expands(value: ir.Value) -> bool:
    """Tell whether a value is the shape of an Expand. ONNX Runtime 1.31.1 keeps the size for a
    computed -1, but infers the size -1 from a constant -1, and may refuse the model.
    """
    return any(edit.is_op(use.node, "Expand") and use.idx == 1 for use in value.uses())


def _typed(node: ir.Node) -> bool:
    """Tell whether no constant input has strings, or elements under a byte."""
    constants = (edit.constant(value) for value in node.inputs)
    return all(
        tensor is None or (tensor.dtype != ir.DataType.STRING and tensor.dtype.bitwidth >= 8)
        for tensor in constants
    )
