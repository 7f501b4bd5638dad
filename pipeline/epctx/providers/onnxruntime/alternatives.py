"""Other types and operators with which an EP says that it takes a node that it left."""

from __future__ import annotations

import tempfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final

import onnx
import onnx_ir as ir
from onnx import inliner, numpy_helper

from epctx.errors import CompileError
from epctx.providers.onnxruntime import probe, session
from epctx.providers.onnxruntime.ep import OrtEp

_FLOATS: Final = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_NUMBERS: Final = (ir.DataType.INT32, ir.DataType.FLOAT)
_bodies: Final = attrgetter("all_function_opset_versions")  # which onnx's stubs do not know


def remedies(model: ir.Model, nodes: Sequence[ir.Node], provider: OrtEp) -> Mapping[ir.Node, str]:
    """What would change it, for those nodes of which something is known.

    An EP is asked once for nodes that differ in no more than their weights and sizes.

    Args:
        model: is not changed; no weight of it is read.
    """
    known: dict[Hashable, str] = {}
    for node in nodes:
        kind = probe.kind(node)
        if kind not in known:
            known[kind] = _remedy(model, node, provider)
    return {node: known[probe.kind(node)] for node in nodes if known[probe.kind(node)]}


def _remedy(model: ir.Model, node: ir.Node, provider: OrtEp) -> str:
    """Return what the EP takes in place of the node alone; empty if nothing is known."""
    with provider.compiling(), tempfile.TemporaryDirectory(prefix="epctx-probe-") as folder:
        path = probe.write(model, probe.part_of(node), Path(folder))
        # One that is taken alone is left for what is around it, or ONNX Runtime wrote it otherwise.
        for old, new in () if _takes(path, provider) else _changes(node):
            if _retype(path, old, new) and _takes(path.with_stem("retyped"), provider):
                return (
                    f"another data type: {provider.name} says that it takes it with "
                    f"{new.name.lower()} in place of {old.name.lower()}"
                )
        if _inline(path, node) and _takes(path.with_stem("inlined"), provider):
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


def _takes(path: Path, provider: OrtEp) -> bool:
    try:
        return session.needs_compilation(str(path), provider)
    except CompileError:
        return False


def _retype(path: Path, old: ir.DataType, new: ir.DataType) -> bool:
    """Write the model anew with one type for another; not where weights lie in files."""
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
    """Write the model anew with the operators that ONNX defines the node by, if there are any."""
    known = node.version or onnx.defs.onnx_opset_version()
    if not onnx.defs.has(node.op_type, known, node.domain):
        return False
    if not _bodies(onnx.defs.get_schema(node.op_type, known, node.domain)):
        return False
    named = [(node.domain, node.op_type)]
    try:
        proto = inliner.inline_selected_functions(
            onnx.load(path, load_external_data=False), named, inline_schema_functions=True
        )
    except RuntimeError:  # it does not know the type of an initializer
        return False
    onnx.save(proto, path.with_stem("inlined"))
    return True
