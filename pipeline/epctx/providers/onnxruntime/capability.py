"""Find the nodes that an EP of ONNX Runtime takes, before anything is compiled.

ONNX Runtime asks the EP inside the compile, node by node, and reports the taken nodes afterwards.
It offers no list before the compile (real-eps.md section 4). So epctx offers every node to the EP,
except nodes that the EP cannot take, and nodes that make ONNX Runtime fail when they stay on the
CPU.

With `session.disable_model_compile` ONNX Runtime stops after the EP's answer, and says only whether
anything would be compiled. For a model of one node, this is the answer for the node. The question
does not affect later compiles of the process (section 1). QNN's verbose log says for each node
whether QNN takes the node. OpenVINO logs nothing, so epctx asks node by node. Nodes that differ
only in weights and sizes share one question.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final

import onnx
import onnx_ir as ir
from msgspec.structs import replace
from onnx import inliner, numpy_helper

from epctx.error_codes import Code
from epctx.errors import CompileError, ModelError
from epctx.graph import epcontext, soundness
from epctx.graph.dataflow import captured, subgraphs
from epctx.graph.model import Partition, Refusal
from epctx.graph.partition import surgery
from epctx.graph.serde.types import MapType
from epctx.graph.weights import tensors
from epctx.providers.base import Capability
from epctx.providers.onnxruntime import exchange, session
from epctx.providers.onnxruntime.ep import OrtEp

SMALL_WEIGHT: Final = 127
"""Size in bytes. ONNX Runtime 1.31.1 fails to write the EPContext model, on every EP, if a
control-flow node that stays on the CPU has a larger constant in its body (real-eps.md section
15)."""
_DOMAINS: Final = frozenset(
    {
        "",
        "ai.onnx",
        "ai.onnx.ml",
        "ai.onnx.preview",
        "ai.onnx.preview.training",
        "ai.onnx.training",
        "com.microsoft",
        "com.microsoft.nchwc",
        "com.microsoft.experimental",
        "com.ms.internal.nhwc",
        "org.pytorch.aten",
    }
)
"""Domains for whose operators onnxruntime 1.31.1 has schemas."""


def capability(
    model: ir.Model, takes_whole: Callable[[ir.Node], bool], packaged: Collection[str] = ()
) -> Capability:
    """Return the nodes to offer to an EP of ONNX Runtime.

    Args:
        model: the model; it is not changed.
        takes_whole: tells whether the EP takes a control-flow node with everything in its bodies.
        packaged: types of custom operators that the EP gets from libraries of its own.
    """
    return Capability.by(model, lambda node: _refusal(node, takes_whole, packaged))


def _refusal(
    node: ir.Node, takes_whole: Callable[[ir.Node], bool], packaged: Collection[str]
) -> str | None:
    if epcontext.is_epcontext(node):
        return "it is compiled already"
    if node.domain not in _DOMAINS and node.op_type not in packaged:
        return f"onnxruntime has no operators of domain {node.domain}"
    for value in (*node.inputs, *node.outputs):
        if value is not None and (kind := _no_tensor_of_numbers(value)):
            return f'"{value.name}" is a {kind}, which no execution provider of onnxruntime takes'
    if _largest_weight(node) > SMALL_WEIGHT and not takes_whole(node):
        return (
            "the execution provider does not take it whole, and its body holds weights, which "
            "ONNX Runtime cannot write into an EPContext model"
        )
    return None


def _no_tensor_of_numbers(value: ir.Value) -> str | None:
    if isinstance(value.type, ir.SequenceType):
        return "sequence"
    if isinstance(value.type, ir.OptionalType):
        return "optional"
    if isinstance(value.type, ir.SparseTensorType):
        return "sparse tensor"
    if isinstance(value.type, MapType):
        return "map"
    if value.dtype == ir.DataType.STRING:
        return "tensor of strings"
    if value.dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        return "tensor of complex numbers"
    return None


def _largest_weight(node: ir.Node) -> int:
    """Return the bytes of the largest constant that the bodies of a control-flow node use."""
    return max(_weights(node), default=0)


def _weights(node: ir.Node) -> Iterator[int]:
    for graph in subgraphs(node):
        yield from (_size(value.const_value) for value in graph.initializers.values())
        for inner in graph:
            if inner.op_type == "Constant" and inner.domain == "":
                yield from (
                    _size(attribute.as_tensor())
                    for attribute in inner.attributes.values()
                    if attribute.type == ir.AttributeType.TENSOR
                )
    for value in captured(node):
        if value.is_initializer():
            yield _size(value.const_value)


def _size(tensor: ir.TensorProtocol | None) -> int:
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return 0
    return tensor.nbytes


def require_static_shapes(model: ir.Model, *, provider: str) -> None:
    """Refuse a model with inputs of unknown size, of which the EP would compile nothing.

    QNN compiles nothing without an error and without a line in its log (real-eps.md section 9).

    Raises:
        ModelError: dimensions of inputs have no fixed size. Names all of these dimensions.
    """
    what: list[str] = []
    dimensions: dict[str, str] = {}
    shapes: dict[str, str] = {}
    for value in model.graph.inputs:
        if value.is_initializer() or not isinstance(value.type, ir.TensorType | None):
            continue  # no shape to fix, and the EP takes no node that uses such an input
        dims = None if value.shape is None else list(value.shape)
        free = [dim for dim in dims or () if not isinstance(dim, int)]
        if dims is None:
            what.append(f"input {value.name!r} has no shape")
            shapes[str(value.name)] = "[1]"
        elif all(dim.value for dim in free):
            dimensions |= {str(dim.value): "1" for dim in free}
        else:
            shapes[str(value.name)] = str([dim if isinstance(dim, int) else 1 for dim in dims])
        if free:
            words = ", ".join(str(dim.value) if dim.value else "one without a name" for dim in free)
            what.append(f"input {value.name!r} has dimensions of unknown size: {words}")
    if what:
        keys = (("dimensions", dimensions), ("shapes", shapes))
        fixed = " and ".join(f"`{key}: {_mapping(sizes)}`" for key, sizes in keys if sizes)
        raise ModelError(
            "; ".join(what),
            why=f"{provider} compiles static shapes only",
            remedy=f"fix them in the manifest, under the model: {fixed} (with your sizes"
            + (", one for each dimension)" if "[1]" in shapes.values() else ")"),
            code=Code.OPEN_DIMENSIONS,
        )


def _mapping(entries: Mapping[str, str]) -> str:
    listed = (f"{json.dumps(name)}: {entry}" for name, entry in entries.items())
    return f"{{{', '.join(listed)}}}"


def left_by_log(
    model: ir.Model, partition: Partition, provider: OrtEp
) -> Mapping[ir.Node, Refusal]:
    """Return the nodes that the EP leaves according to its verbose log, each with reason and
    remedy.

    Raises:
        CompileError: onnxruntime or the EP failed on the partition.
    """
    with provider.compiling(), tempfile.TemporaryDirectory(prefix="epctx-probe-") as folder:
        path = write_probe(model, partition, Path(folder))
        log = session.ask_verbosely(str(path), provider)
    reasons = provider.reasons(log)
    named = {name_of(node): node for node in partition.nodes}
    refused = {named[name]: why for name, why in reasons.items() if name in named}
    helpless = [node for node, why in refused.items() if not why.remedy]
    remedy_of = remedies(model, helpless, provider)
    return {
        node: replace(why, remedy=remedy_of.get(node, why.remedy)) for node, why in refused.items()
    }


def left_one_by_one(
    model: ir.Model, partition: Partition, provider: OrtEp
) -> Mapping[ir.Node, str]:
    """Return the nodes that the EP does not take as a model of the one node."""
    takes: dict[Hashable, bool] = {}
    for node in partition.nodes:
        kind = kind_of(node)
        if kind not in takes:
            takes[kind] = _takes(model, node, provider)
    why = f"{provider.name} did not take it, and does not say why"
    return {node: why for node in partition.nodes if not takes[kind_of(node)]}


def _takes(model: ir.Model, node: ir.Node, provider: OrtEp) -> bool:
    try:
        return takes_whole(model, node, provider)
    except (CompileError, ModelError):
        return True  # alone it is not a valid model; the EP may take it inside the whole one


_FLOATS: Final = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_NUMBERS: Final = (ir.DataType.INT32, ir.DataType.FLOAT)
_bodies: Final = attrgetter("all_function_opset_versions")  # onnx's type stubs lack this attribute


def remedies(model: ir.Model, nodes: Sequence[ir.Node], provider: OrtEp) -> Mapping[ir.Node, str]:
    """Return remedies that make the EP take nodes it left, for the nodes with a known remedy.

    Nodes that differ only in weights and sizes share one question to the EP.

    Args:
        model: the model; it is not changed, and its weights are not read.
    """
    remedy_of: dict[Hashable, str] = {}
    for node in nodes:
        kind = kind_of(node)
        if kind not in remedy_of:
            remedy_of[kind] = _remedy(model, node, provider)
    return {node: remedy_of[kind_of(node)] for node in nodes if remedy_of[kind_of(node)]}


def _remedy(model: ir.Model, node: ir.Node, provider: OrtEp) -> str:
    """Return a replacement for the node that the EP takes; empty if none is known."""
    with provider.compiling(), tempfile.TemporaryDirectory(prefix="epctx-probe-") as folder:
        path = write_probe(model, part_of(node), Path(folder))
        # If the EP takes the node alone, it left the node because of its neighbours, or because
        # ONNX Runtime rewrote it.
        for old, new in () if _takes_file(path, provider) else _changes(node):
            if _retype(path, old, new) and _takes_file(path.with_stem("retyped"), provider):
                return (
                    f"another data type: {provider.name} says that it takes this node with "
                    f"{new.name.lower()} in place of {old.name.lower()}"
                )
        if _inline(path, node) and _takes_file(path.with_stem("inlined"), provider):
            return (
                "other operators, by which ONNX defines it: `onnx.inliner.inline_selected_functions"
                f'(model, [("{node.domain}", "{node.op_type}")], inline_schema_functions=True)`'
            )
    return ""


def _changes(node: ir.Node) -> Iterator[tuple[ir.DataType, ir.DataType]]:
    values = (value for value in (*node.inputs, *node.outputs) if value is not None)
    for old in dict.fromkeys(value.dtype for value in values):
        if old is None or old.is_string() or str(old).startswith("COMPLEX"):
            continue
        others = _FLOATS if old.is_floating_point() else _NUMBERS
        yield from ((old, new) for new in others if new != old)


def _takes_file(path: Path, provider: OrtEp) -> bool:
    try:
        return session.needs_compilation(str(path), provider)
    except CompileError:
        return False


def _retype(path: Path, old: ir.DataType, new: ir.DataType) -> bool:
    """Write a copy of the model with `new` in place of `old` types. False if such weights lie in
    files.
    """
    proto = onnx.load(path, load_external_data=False)
    graph = proto.graph
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == old:
            info.type.tensor_type.elem_type = int(new)
    for tensor in graph.initializer:
        if tensor.data_type == old:
            if tensor.data_location == onnx.TensorProto.EXTERNAL or old.bitwidth < 8:
                return False
            values = numpy_helper.to_array(tensor).astype(new.numpy())
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(proto, path.with_stem("retyped"))
    return True


def _inline(path: Path, node: ir.Node) -> bool:
    """Write a copy of the model with the node expanded to its ONNX function body. False if it has
    none.
    """
    version = node.version or onnx.defs.onnx_opset_version()
    if not onnx.defs.has(node.op_type, version, node.domain):
        return False
    if not _bodies(onnx.defs.get_schema(node.op_type, version, node.domain)):
        return False
    named = [(node.domain, node.op_type)]
    try:
        proto = inliner.inline_selected_functions(
            onnx.load(path, load_external_data=False), named, inline_schema_functions=True
        )
    except RuntimeError:  # the inliner does not know the type of an initializer
        return False
    onnx.save(proto, path.with_stem("inlined"))
    return True


_NOT_LOADED: Final = "Load model from"
"""Words in every error about a model that ONNX Runtime does not load with any EP."""
_STANDS: Final = 4096
"""Size in bytes. The content of weights of at least this size is left out, since an EP decides by
type and shape."""
_WEIGHTS: Final = "zeros.weights"


def takes_whole(model: ir.Model, node: ir.Node, provider: OrtEp) -> bool:
    """Tell whether the EP takes a node of the main graph, with everything in its bodies.

    Args:
        model: the model; it is not changed, and its weights are not read.

    Raises:
        CompileError: onnxruntime or the EP failed on the node.
        ModelError: ONNX Runtime does not load the node, since a body may be invalid at fixed sizes.
        ProviderUnavailable: as from `add_to`.
    """
    # The path's string does not matter here, since nothing of this session is kept.
    with provider.compiling(), tempfile.TemporaryDirectory(prefix="epctx-probe-") as folder:
        path = write_probe(model, part_of(node), Path(folder))
        try:
            return session.needs_compilation(str(path), provider)
        except CompileError as error:
            if _NOT_LOADED not in error.reason:
                raise
            raise ModelError(
                f"ONNX Runtime does not load its {node.op_type} with these sizes fixed",
                node=name_of(node),
                why=soundness.words(error.reason),
                remedy="give `dimensions` and `shapes` that all branches fit, or export the model "
                "with only the branch that these sizes are for",
            ) from error


def write_probe(model: ir.Model, partition: Partition, folder: Path) -> Path:
    """Write a partition as a model for questions. Large weights keep only type and shape.

    Args:
        model: the model; it is not changed, and its weights are not read.
        folder: an empty folder for the model.
    """
    alone = surgery.extract(model, partition)
    exchange.sink_captured_initializers(alone)
    for node in alone.graph:
        node.name = name_of(node)
    _leave_out_weights(alone, folder)
    path = folder / "probe.onnx"
    exchange.write_model(alone, path)
    return path


def name_of(node: ir.Node) -> str:
    """Return a node's name in a model for questions. A node without a name is named after its
    outputs.
    """
    return node.name or "unnamed_" + "_".join(v.name for v in node.outputs if v.name)


def kind_of(node: ir.Node) -> Hashable:
    """Return a key that is equal for nodes that share one answer."""
    if any(True for _ in subgraphs(node)):
        return id(node)
    attributes = tuple(
        (name, str(attribute.value) if attribute.type != ir.AttributeType.TENSOR else "")
        for name, attribute in sorted(node.attributes.items())
    )
    edges = tuple(map(_edge, (*node.inputs, None, *node.outputs)))
    return (node.domain, node.op_type, attributes, edges)


def _edge(value: ir.Value | None) -> Hashable:
    if value is None:
        return None
    rank = None if value.shape is None else len(value.shape)
    return (value.dtype, rank, value.is_initializer())


def part_of(node: ir.Node) -> Partition:
    """Return a node of the main graph as a partition, with everything in its bodies."""
    own = {value for graph in subgraphs(node) for value in _made_in(graph)}
    used = dict.fromkeys(
        value for value in (*node.inputs, *captured(node)) if value is not None and value not in own
    )
    return Partition(
        provider=0,
        nodes=(node,),
        inputs=tuple(value for value in used if not value.is_initializer()),
        outputs=tuple(value for value in node.outputs if value.name),
        initializers=tuple(value for value in used if value.is_initializer()),
    )


def _made_in(graph: ir.Graph) -> list[ir.Value]:
    values = [value for node in graph for value in node.outputs]
    return [*values, *graph.inputs, *graph.initializers.values()]


def _leave_out_weights(model: ir.Model, folder: Path) -> None:
    """Replace every large weight by zeros from one sparse file, as long as the largest weight."""
    longest = 0
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.nbytes < _STANDS:
                continue
            longest = max(longest, tensor.nbytes)
            value.const_value = tensors.external(tensor, _WEIGHTS, 0, tensor.nbytes, folder=folder)
    with (folder / _WEIGHTS).open("wb") as stream:
        stream.truncate(longest)
