"""Load EPContext nodes: find each node's own graph (`providers.contexts`), and make its kernel.

Kernels of the reference EP are ONNX Runtime CPU sessions over a context's graphs.

Weights are not copied. A session gets each weight as an OrtValue over the mapped context binary, by
`SessionOptions.add_initializer`, which uses the buffer itself; `add_external_initializers` would
copy the buffer. Measured on onnxruntime 1.31.1:

- The initializer in the graph must be external, and name a file that exists. ONNX Runtime's
  optimizers read *that file*, not the OrtValue (a wrong file gives wrong numbers, no error), so the
  initializer names the context binary itself, with an offset. After the session is made, epctx
  checks that the file was not replaced.
- Prepacking copies every MatMul weight into anonymous memory, so prepacking is off, unless numbers
  depend on it (`graph.prepacking`).
- Optimizations are off, except for blockwise weights (`_options`). Without ONNX Runtime's layouts a
  Conv differs from a plain session by up to 6e-5 of the output's largest magnitude (ResNet-50).
- Spinning is off, since spinning threads of one kernel take the cores from the next.

`misfits` tells whether a context binary belongs to a model's nodes, without running the model.

Loading detects missing and wrong graphs. Only `misfits` compares the sizes of a model's inputs and
outputs with the graph before the first run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from msgspec import Struct
from numpy.lib.stride_tricks import as_strided

from epctx import codec
from epctx.errors import InvalidGraph, ModelError
from epctx.files.digest import Digest
from epctx.graph import numerics
from epctx.graph.epcontext import EPContextNode
from epctx.graph.serde import protos
from epctx.graph.weights.external_data import byte_size
from epctx.manifest import DEFAULT_EP
from epctx.providers import contexts
from epctx.providers.base import SharedContexts
from epctx.providers.reference import options, reader
from epctx.providers.reference.layout import REFERENCE_PREFIX, Notes, TensorEntry
from epctx.providers.reference.options import NAME, Toolchain
from epctx.providers.reference.reader import Context, LoadedGraph

_REFERENCE: Final = re.compile(REFERENCE_PREFIX + "([0-9a-f]{64})")
_SESSION_CONFIG: Final = {
    "session.intra_op.allow_spinning": "0",
    "session.inter_op.allow_spinning": "0",
}
_BUILD_AGAIN: Final = "build it again with this version of epctx"


class ReferenceKernel(Struct, frozen=True, kw_only=True, eq=False):
    """A graph of a context, ready to run; a `Kernel` of providers.base.

    The kernel keeps alive what its session reads: the context's map, and the OrtValues over the
    map.
    """

    context: Context
    session: ort.InferenceSession
    weights: tuple[ort.OrtValue, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def compute(self, inputs: Sequence[ort.OrtValue]) -> Sequence[ort.OrtValue]:
        """Run the graph. Thread-safe and stateless."""
        feeds = dict(zip(self.inputs, inputs, strict=True))
        outputs: Sequence[ort.OrtValue] = self.session.run_with_ort_values(self.outputs, feeds)
        return outputs


def create_kernel(context: Context, graph: LoadedGraph, node: EPContextNode) -> ReferenceKernel:
    """Create the kernel for `node` from the node's graph.

    Raises:
        InvalidGraph: this EP does not write such a graph, the graph does not match the node, or
            ONNX Runtime refuses the graph.
    """
    where = f"graph {graph.entry.name!r} of {context.where}"
    model = parse_graph(graph, where)
    inputs = tuple(value.name for value in model.graph.input)
    outputs = tuple(value.name for value in model.graph.output)
    if len(inputs) != len(node.inputs) or len(outputs) != len(node.outputs):
        own = f"has {len(inputs)} inputs and {len(outputs)} outputs"
        raise _unusable(
            f"{own}, but its node has {len(node.inputs)} and {len(node.outputs)}", where
        )
    bound = [
        (tensor, _entry(context, tensor, where))
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    ]
    if sum({e.offset: e.length for _, e in bound}.values()) != graph.entry.weights:
        raise _unusable("does not use as many bytes of weights as its table entry says", where)
    _refuse_other_files(model, len(bound), where)
    options = _options(model)
    weights = _bind(context, bound, options)
    return ReferenceKernel(
        context=context,
        session=_session(context, model, options, where),
        weights=weights,
        inputs=inputs,
        outputs=outputs,
    )


def parse_graph(graph: LoadedGraph, where: str) -> onnx.ModelProto:
    """Parse the graph as a model, whose weights are elsewhere in the context; `where` names the
    context.

    Raises:
        InvalidGraph: the graph is not an ONNX model.
    """
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(graph.proto)
    except DecodeError as error:
        raise _unusable("is not an ONNX model", where, error) from error
    return model


def _entry(context: Context, tensor: onnx.TensorProto, where: str) -> TensorEntry:
    """Return the entry of the tensor table with an external initializer's bytes."""
    keys = {entry.key: entry.value for entry in tensor.external_data}
    match = _REFERENCE.fullmatch(keys.get("location", ""))
    entry = context.tensors.get(Digest("blake3", match[1])) if match else None
    try:
        size = byte_size(tensor, where=f"{where}: tensor {tensor.name!r}")
    except ModelError as error:
        raise InvalidGraph.of(error.failure, remedy=_BUILD_AGAIN) from error
    if entry is None or len(keys) != 1 or entry.length != size:
        what = f"tensor {tensor.name!r} is not in the table of tensors, or has another size"
        raise _unusable(what, where)
    return entry


def _options(model: onnx.ModelProto) -> ort.SessionOptions:
    options = ort.SessionOptions()
    # Optimizations are off, so that the numbers are those of the kernels. The optimizers of ONNX
    # Runtime 1.31.1 transpose an initializer and keep its name, but a bound value is not
    # transposed. Fusions also round differently. Only blockwise weights need a fusion.
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = (
        level.ORT_ENABLE_ALL if numerics.dequantizes_in_blocks(model) else level.ORT_DISABLE_ALL
    )
    options.log_severity_level = 3  # errors only: warnings are about the model's style
    for key, value in _SESSION_CONFIG.items():
        options.add_session_config_entry(key, value)
    if not numerics.depends_on_prepacking(model):
        options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def _bind(
    context: Context,
    bound: Sequence[tuple[onnx.TensorProto, TensorEntry]],
    options: ort.SessionOptions,
) -> tuple[ort.OrtValue, ...]:
    """Give the session its weights, and let the protos say where ONNX Runtime finds the weights
    itself.
    """
    names = [tensor.name for tensor, _ in bound]
    values = tuple(_ort_value(context.view, tensor, entry) for tensor, entry in bound)
    if context.file is None:  # a payload has no file to refer to, so its weights are copied
        if names:
            options.add_external_initializers(names, list(values))
        return values
    path = context.file.path
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(path.parent)
    )
    for (tensor, entry), value in zip(bound, values, strict=True):
        _refer(tensor, location=path.name, offset=entry.offset, length=entry.length)
        options.add_initializer(tensor.name, value)
    return values


def _refer(tensor: onnx.TensorProto, **keys: str | int) -> None:
    del tensor.external_data[:]
    for key, value in keys.items():
        tensor.external_data.add(key=key, value=str(value))


def _ort_value(view: memoryview, tensor: onnx.TensorProto, entry: TensorEntry) -> ort.OrtValue:
    """Make an OrtValue whose buffer is the tensor's bytes in the map.

    If several elements share a byte, the numpy array has the shape of the elements, over fewer
    bytes. numpy never reads the elements, and ONNX Runtime knows their number.
    """
    width = ir.DataType(tensor.data_type).bitwidth
    shape = tuple(tensor.dims)
    storage = np.dtype(f"<u{max(width // 8, 1)}")
    data = np.frombuffer(view[entry.offset : entry.end], storage)
    if width < 8:
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        data = as_strided(data, shape, strides, writeable=False)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(data.reshape(shape), tensor.data_type)


def _refuse_other_files(model: onnx.ModelProto, bound: int, where: str) -> None:
    """Refuse a graph that makes ONNX Runtime open a file of the graph's choice."""
    sparse = (part for t in protos.sparse_tensors(model) for part in (t.values, t.indices))
    tensors = (*protos.tensors(model), *sparse)
    if sum(t.data_location == onnx.TensorProto.EXTERNAL for t in tensors) != bound:
        raise _unusable("a tensor that is not an initializer refers to a file", where)


def _session(
    context: Context, model: onnx.ModelProto, options: ort.SessionOptions, where: str
) -> ort.InferenceSession:
    try:
        session = ort.InferenceSession(
            model.SerializeToString(),
            options,
            providers=[DEFAULT_EP],
        )
    except Exception as error:  # onnxruntime's errors have no common base class
        raise _unusable("is refused by ONNX Runtime", where, error) from error
    if context.file is not None and context.file.changed():
        raise InvalidGraph(
            "was replaced or changed while it was loaded",
            where=context.where,
            remedy="load it when no process writes to it",
        )
    return session


def _unusable(what: str, where: str, error: Exception | None = None) -> InvalidGraph:
    return InvalidGraph(what, where=where, why=str(error) if error else None, remedy=_BUILD_AGAIN)


def misfits(path: Path, nodes: Sequence[ir.Node]) -> Iterator[str]:
    """Yield each mismatch between a context binary and the nodes that refer to it."""
    context = reader.open_file(path.parent, path.name, where=path.name)
    contexts = [EPContextNode.from_ir(node) for node in nodes]
    try:
        load(contexts, context.meta, path.parent, None)
    except InvalidGraph as error:
        yield f"{error.where}: {error.reason}"
        return
    for node, context_node in zip(nodes, contexts, strict=True):
        graph = parse_graph(context.graphs[context_node.partition_name or ""], path.name).graph
        for kind, values, own in (
            ("input", node.inputs, graph.input),
            ("output", node.outputs, graph.output),
        ):
            if len(values) != len(own):
                yield f"{context_node.words} has {len(values)} {kind}s, its graph {len(own)}"
            for value, info in zip(values, own, strict=False):
                model_sizes = _sizes(value)
                graph_sizes = _sizes(ir.serde.deserialize_value_info_proto(info, None))
                if model_sizes is not None and not _same_sizes(model_sizes, graph_sizes):
                    yield (
                        f"{kind} {info.name!r} has the shape {graph_sizes}, "
                        f"but {model_sizes} in the model"
                    )


def _sizes(value: ir.Value | None) -> list[int | None] | None:
    if value is None or value.shape is None:
        return None
    return [dim if isinstance(dim, int) else None for dim in value.shape]


def _same_sizes(one: list[int | None], other: list[int | None] | None) -> bool:
    """Tell whether all sizes known on both sides are equal."""
    if other is None:
        return True
    return len(one) == len(other) and all(
        a == b for a, b in zip(one, other, strict=True) if a is not None and b is not None
    )


class _Located(Struct, frozen=True, kw_only=True, eq=False):
    """A graph in the shared workspace, with the context that has its weights."""

    context: Context
    graph: LoadedGraph


def load(
    nodes: Sequence[EPContextNode],
    host: Toolchain,
    folder: Path | None,
    shared: SharedContexts | None,
) -> list[ReferenceKernel]:
    """Return a kernel for each node.

    Args:
        host: toolchain of this host.
        folder: folder of the context binaries; None for a model from bytes without a path.
        shared: the shared workspace; None if not shared.

    Raises:
        InvalidGraph: a node cannot be loaded, for any reason. Graphs that were taken are put back.
    """

    def read(primary: EPContextNode) -> dict[str, _Located]:
        file = contexts.binary_of(primary, folder)
        if file is None:
            where = f"the payload of {primary.words}"
            context = reader.open_payload(primary.ep_cache_context or b"", where=where)
        else:
            context = reader.read_file(file)
        return {
            _key(context.meta.source, graph.entry.name, str(graph.digest)): _Located(
                context=context, graph=graph
            )
            for graph in context.graphs.values()
        }

    def make(node: EPContextNode, place: _Located) -> ReferenceKernel:
        options.check_versions(place.context.meta, host, where=place.context.where)
        _agree(node, place)
        return create_kernel(place.context, place.graph, node)

    return contexts.load(
        nodes, shared, key=_key_of, read=read, kind=_Located, make=make, absent=_absent
    )


def _key(source: str | None, name: str | None, graph: str) -> str:
    return f"{NAME}/{source}/{name}/{graph}"


def _key_of(node: EPContextNode) -> str:
    return _key(node.source, node.partition_name, _notes(node).graph)


def _notes(node: EPContextNode) -> Notes:
    try:
        return codec.decode(node.notes or "", Notes)
    except msgspec.DecodeError as error:
        raise InvalidGraph(
            "its notes do not say which graph it was built with",
            node=node.name,
            why=str(error),
            remedy=contexts.BUILD_AGAIN,
        ) from error


def _absent(node: EPContextNode, seen: Sequence[Mapping[str, _Located]]) -> InvalidGraph:
    """Make the error for a node whose graph is in none of the contexts."""
    places = [place for context in seen for place in context.values()]
    for place in places:
        if place.graph.entry.name == node.partition_name:
            if str(place.graph.digest) == _notes(node).graph:
                _agree(node, place)  # raises if the context is of another source
            return InvalidGraph(
                f"has another graph {node.partition_name!r} than the node was built with",
                where=place.context.where,
                remedy=contexts.BUILD_AGAIN,
            )
    where = " and ".join(sorted({place.context.where for place in places}))
    return InvalidGraph(
        f"its graph {node.partition_name!r} is not in "
        f"{where or 'another node of the model (main_context = 1)'}",
        node=node.name,
        why=None if node.main_context else "it has no context of its own (main_context = 0)",
        remedy=contexts.BUILD_AGAIN,
    )


def _agree(node: EPContextNode, place: _Located) -> None:
    """Check that the node's attributes match its graph and context. An absent attribute matches."""
    meta, entry = place.context.meta, place.graph.entry
    attributes = {
        "source": (node.source, meta.source),
        "ep_sdk_version": (node.ep_sdk_version, meta.sdk_version),
        "hardware_architecture": (node.hardware_architecture, meta.hardware_architecture),
        "onnx_model_filename": (node.onnx_model_filename, entry.model),
    }
    for name, (own, other) in attributes.items():
        if own is not None and own != other:
            raise _disagree(node, place, f"{name} is {own!r}, its context binary says {other!r}")
    if 0 < node.max_size < entry.weights:
        raise _disagree(
            node,
            place,
            f"max_size is {node.max_size} bytes, its graph has {entry.weights} bytes of weights",
        )


def _disagree(node: EPContextNode, place: _Located, why: str) -> InvalidGraph:
    return InvalidGraph(
        f"does not belong to {place.context.where}",
        node=node.name,
        why=why,
        remedy=contexts.BUILD_AGAIN,
    )
