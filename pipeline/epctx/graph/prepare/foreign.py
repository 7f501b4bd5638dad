"""Types and shapes of operators that onnx cannot infer, as ONNX Runtime infers or computes them.

These are ONNX Runtime's own operators (com.microsoft) and some of classical machine learning. ONNX
Runtime infers most of them when it loads a model. If it infers no shape, or another one than the
model declares, the node is run alone, on zeros and on ones.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import numpy as np
import onnx

from epctx.graph import native, soundness
from epctx.graph.serde import protos

Types = Mapping[str, onnx.TypeProto]
Ask = Callable[[onnx.ModelProto], Types | None]
"""Returns the types of a model's outputs as ONNX Runtime infers them; None if it refuses the model.
"""

_ROUNDS: Final = 8
"""Maximum number of inferences; each knows the shapes of the nodes that were run before."""
_LARGE: Final = 1 << 26
"""Least bytes of inputs of a node that is not run."""
_RUNS: Final = ((2, 0), (2, 1), (3, 0), (3, 1))
"""Runs of a node: the size of open dimensions, and the value of all elements."""


def types(model: onnx.ModelProto, names: frozenset[str], ask: Ask) -> Types:
    """Return the types of these values of the main graph, as far as they are known.

    Other declarations in `model` are trusted. A declared value has no result if ONNX Runtime
    does not infer its shape and no run shows it.
    """
    values = (*model.graph.value_info, *model.graph.output)
    declared = {value.name: value.type for value in values if value.type.WhichOneof("value")}
    nodes = [node for node in model.graph.node if not names.isdisjoint(node.output)]
    inner = {name for node in model.graph.node for name in node.output}
    wanted = inner & {name for node in nodes for name in (*node.input, *node.output) if name}
    ranked = {name: kind for name, kind in declared.items() if kind.tensor_type.HasField("shape")}
    right = {name: kind for name, kind in ranked.items() if name not in names}
    runs = _Runs(model)
    run_types: dict[str, onnx.TypeProto] = {}
    inferred: Types = {}
    for _ in range(_ROUNDS):
        answer = ask(_probe(model, names, wanted, run_types))
        if answer is None:
            break
        inferred, before = answer, len(run_types)
        all_types = ChainMap(run_types, right, {**inferred})
        for node in nodes:
            own = (name for name in node.output if name in names and name not in run_types)
            if any(_is_doubtful(inferred, declared, name) for name in own):
                run_types.update(runs.types(node, all_types))
        if len(run_types) == before:
            break
    unsure = {n for n in names if n in declared and _is_doubtful(inferred, declared, n)}
    result = {n: kind for n, kind in inferred.items() if n in names - unsure} | run_types
    for node in nodes:  # ONNX Runtime 1.32 computes it in place, wrongly, if it knows the shape
        if node.op_type == "Normalizer" and any(each.s == b"L2" for each in node.attribute):
            result.pop(node.output[0], None)
    return result


def _probe(
    model: onnx.ModelProto, names: frozenset[str], wanted: Iterable[str], run_types: Types
) -> onnx.ModelProto:
    """Return the model with the wanted values as outputs; of `names`, `run_types` are declared."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    graph = probe.graph
    kept = [value for value in graph.value_info if value.name not in names]
    del graph.value_info[:]
    graph.value_info.extend(kept)
    for name in sorted({*wanted} - {value.name for value in graph.output}):
        graph.output.add(name=name)
    for value in graph.output:
        if value.name in run_types:
            value.type.CopyFrom(run_types[value.name])
        elif value.name in names and value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return probe


def _is_doubtful(inferred: Types, declared: Types, name: str) -> bool:
    """Tell whether a tensor's inferred shape is unknown, or contradicts the declared one."""
    if name not in inferred:
        return False
    shape = inferred[name].tensor_type.shape
    other = declared[name].tensor_type if name in declared else onnx.TypeProto.Tensor()
    return not inferred[name].tensor_type.HasField("shape") or (
        other.HasField("shape") and protos.contradict(shape, other.shape)
    )


class _Runs:
    """Nodes of the main graph of `model`, each run alone."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        graph = model.graph
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._inputs = {value.name: value.type for value in graph.input}
        self._tried: set[str] = set()

    def types(self, node: onnx.NodeProto, inferred: Types) -> Types:
        """Return the types of a node's outputs; nothing if it cannot be run."""
        is_body = any(True for _ in protos.subgraphs(node))
        if not node.domain or is_body or node.output[0] in self._tried:
            return {}
        graph = onnx.GraphProto(name="node", node=[node])
        for name in dict.fromkeys(filter(None, node.input)):
            tensor = self._constants.get(name)
            if tensor is not None and tensor.data_location != onnx.TensorProto.EXTERNAL:
                graph.initializer.append(tensor)
                continue
            kind = self._inputs.get(name) or inferred.get(name)
            if tensor is not None:
                kind = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            if kind is None or not kind.tensor_type.HasField("shape"):
                return {}
            graph.input.add(name=name).type.CopyFrom(kind)
        self._tried.add(node.output[0])
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
        single = onnx.ModelProto(
            ir_version=self._model.ir_version, graph=graph, opset_import=self._model.opset_import
        )
        return dict(_run(single))


def _run(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.TypeProto]]:
    """Yield the types of the outputs, with the sizes that all runs give."""
    inputs = {value.name: value.type.tensor_type for value in model.graph.input}
    types = {
        name: np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        for name, tensor in inputs.items()
    }

    def shape(name: str, size: int) -> list[int]:
        """Return the shape of an input; a size that is open is `size`."""
        dims = inputs[name].shape.dim
        return [dim.dim_value if dim.HasField("dim_value") else size for dim in dims]

    largest = max(size for size, _ in _RUNS)
    total = sum(math.prod(shape(name, largest)) * kind.itemsize for name, kind in types.items())
    session = soundness.session(model.SerializeToString(), {}) if total < _LARGE else ""
    if isinstance(session, str):
        return
    try:
        with native.allowed("ONNX Runtime", total):
            runs = [
                session.run(None, {n: np.full(shape(n, size), fill, k) for n, k in types.items()})
                for size, fill in _RUNS
            ]
    except Exception:  # onnxruntime's own exceptions have no narrower base
        return
    open_sizes = {dim.dim_param for tensor in inputs.values() for dim in tensor.shape.dim} - {""}
    symbol = open_sizes.pop() if len(open_sizes) == 1 else None
    following = tuple(size for size, _ in _RUNS)
    for output, *arrays in zip(session.get_outputs(), *runs, strict=True):
        if isinstance(arrays[0], np.ndarray) and len({array.ndim for array in arrays}) == 1:
            sizes = zip(*(array.shape for array in arrays), strict=True)
            dims = [
                each[0] if len({*each}) == 1 else symbol if each == following else None
                for each in sizes
            ]
            element = onnx.helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
            yield output.name, onnx.helper.make_tensor_type_proto(element, dims)
