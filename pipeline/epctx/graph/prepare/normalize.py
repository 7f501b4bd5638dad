"""Models that ONNX Runtime accepts though ONNX forbids them, rewritten as valid ONNX.

ONNX Runtime decides whether a model is valid; onnx's own tools read such a model differently, or
not at all. onnxruntime 1.31.1 reads it as follows:

- ONNX's own domain has two names, "" and "ai.onnx". The last of several opsets of one domain
  counts. A domain that nodes use and the model does not import has the newest opset that ONNX
  Runtime supports.
- Several constants may have one name. The last one counts if they are small; initializers come
  first, then Constant nodes, then sparse initializers. Constant nodes may have the name of another
  node.
- An initializer of one branch is not read if another branch of the node uses an outer value of its
  name. Both branches then read the outer value.
- A local function is not called if ONNX Runtime has an operator of its name: the operator runs.
- A Constant node with the name of a graph input is that input's default.
- A node of the main graph with neither inputs nor outputs does nothing, whatever it is.
- A tensor may have values in several fields: raw_data counts, else the field of its type.
- The last of several metadata properties of one key counts.
- Before IR 4 every initializer had to be an input, too; it is a constant all the same. Some
  exporters still do so later. So initializers are also constants if all of them are inputs, and
  most inputs are initializers.
- Sparse tensors are made dense. onnx_ir drops sparse initializers silently and refuses sparse
  attributes, and every execution provider gets dense weights anyway.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, MutableSequence, Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from epctx import limits
from epctx.errors import ModelError
from epctx.graph import soundness
from epctx.graph.epcontext import COMPATIBILITY, OURS, is_epcontext
from epctx.graph.serde import protos
from epctx.graph.serde.reader import OnnxFile
from epctx.graph.weights.external_data import byte_size

_Constant = onnx.TensorProto | onnx.NodeProto | onnx.SparseTensorProto
"""An initializer, a Constant node, a sparse initializer."""
_FIELDS: Final = frozenset(
    {
        "raw_data",
        "float_data",
        "int32_data",
        "string_data",
        "int64_data",
        "double_data",
        "uint64_data",
    }
)
_TYPES: Final = {
    "value": onnx.AttributeProto.TENSOR,
    "sparse_value": onnx.AttributeProto.SPARSE_TENSOR,
    "value_float": onnx.AttributeProto.FLOAT,
    "value_floats": onnx.AttributeProto.FLOATS,
    "value_int": onnx.AttributeProto.INT,
    "value_ints": onnx.AttributeProto.INTS,
    "value_string": onnx.AttributeProto.STRING,
    "value_strings": onnx.AttributeProto.STRINGS,
}
"""Attributes that hold a Constant's value; a Constant has one of them."""
_KINDS: Final = {
    "value_float": TensorProto.FLOAT,
    "value_int": TensorProto.INT64,
    "value_string": TensorProto.STRING,
}
"""Element types of a Constant's attributes other than tensors; lists have an `s` at the end."""
_LARGE: Final = 128
"""Least bytes of initializers that ONNX Runtime stores separately; it confuses equal names among
them.
"""


def normalize_ort_quirks(loaded: OnnxFile, *, where: str) -> Iterator[str]:
    """Rewrite a model as valid ONNX, in place; yield notes on changes that a user may not expect.

    Raises:
        ModelError: different constants have one name, and none of them reliably counts.
    """
    model = loaded.proto
    _defaults(model.graph)
    _initializers_are_constants(model)
    for owner in (model, *model.functions):
        yield from _opsets(owner.opset_import)
    for node in protos.nodes(model):
        if node.domain == "ai.onnx":
            node.domain = ""
    yield from _missing_opsets(model)
    yield from _functions(model)
    yield from _useless_nodes(model.graph)
    yield from _constants(loaded, where)
    yield from _outer_values(model)
    for tensor in protos.tensors(model):
        _values(tensor)
    yield from _metadata(model)


def _metadata(model: onnx.ModelProto) -> Iterator[str]:
    """Leave out metadata that epctx, or an EP that compiles the model, is believed for."""
    last = {entry.key: entry for entry in model.metadata_props}
    compiled = any(map(is_epcontext, protos.nodes(model)))
    prefixes = (OURS,) if compiled else (OURS, COMPATIBILITY)
    kept = [entry for key, entry in last.items() if not key.startswith(prefixes)]
    if len(kept) < len(last):
        words = " or ".join(map(repr, prefixes))
        yield f"metadata that begins with {words} is left out: a build writes its own"
    _keep(model.metadata_props, kept)


def _defaults(graph: onnx.GraphProto) -> None:
    inputs = {value.name for value in graph.input}
    kept = []
    for node in graph.node:
        held = [each for each in node.attribute if _TYPES.get(each.name) == each.type]
        if _is_constant(node) and len(held) == len(node.output) == 1 and node.output[0] in inputs:
            _add_initializer(graph, node.output[0], held[0])
        else:
            kept.append(node)
    _keep(graph.node, kept)


def _add_initializer(graph: onnx.GraphProto, name: str, value: onnx.AttributeProto) -> None:
    if value.name == "value":
        graph.initializer.append(value.t)
        graph.initializer[-1].name = name
    elif value.name == "sparse_value":
        graph.sparse_initializer.append(value.sparse_tensor)
        graph.sparse_initializer[-1].values.name = name
    else:
        held = helper.get_attribute_value(value)
        values = held if isinstance(held, list) else [held]
        dims = [len(values)] if isinstance(held, list) else []
        kind = _KINDS[value.name.removesuffix("s")]
        graph.initializer.append(helper.make_tensor(name, kind, dims, values))


def _initializers_are_constants(model: onnx.ModelProto) -> None:
    """Make initializers constant, as in IR 4 and later.

    If all initializers are inputs, and most inputs are initializers, the exporter has kept to the
    old habit: nobody feeds a model its weights, and an EP wants them constant.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    fed = [value for value in model.graph.input if value.name not in weights]
    defaults = len(model.graph.input) - len(fed)
    is_habit = len(fed) < defaults == len(weights)
    if not model.ir_version or (model.ir_version >= 4 and not is_habit):
        return
    model.ir_version = max(model.ir_version, 4)
    _keep(model.graph.input, fed)


def _opsets(imports: MutableSequence[onnx.OperatorSetIdProto]) -> Iterator[str]:
    last: dict[str, onnx.OperatorSetIdProto] = {}
    for each in imports:
        if each.domain == "ai.onnx":
            each.domain = ""
        other = last.get(each.domain)
        if other is not None and other.version != each.version:
            yield (
                f"imports opset {other.version} and {each.version} of domain "
                f"{each.domain or 'ai.onnx'!r}: the last counts"
            )
        last[each.domain] = each
    _keep(imports, list(last.values()))


def _missing_opsets(model: onnx.ModelProto) -> Iterator[str]:
    """Import the domains that nodes of the graphs use; functions have imports of their own."""
    imported = {each.domain for each in model.opset_import}
    used = {node.domain for graph in protos.graphs(model) for node in graph.node}
    for domain in sorted(used - imported):
        version = soundness.newest(domain)
        if imported and version is not None:
            model.opset_import.add(domain=domain, version=version)
            yield (
                f"does not import domain {domain or 'ai.onnx'!r}, which it uses: opset {version}, "
                "the newest of ONNX Runtime, is taken"
            )


def _functions(model: onnx.ModelProto) -> Iterator[str]:
    versions = {each.domain: each.version for each in model.opset_import}
    for function in model.functions:
        function.domain = "" if function.domain == "ai.onnx" else function.domain
    kept = []
    for function in model.functions:
        version = versions.get(function.domain, 0)
        if soundness.has_operator(function.domain, function.name, version):
            name = f"{function.domain or 'ai.onnx'}::{function.name}"
            yield (
                f"its local function {name} is not called: ONNX Runtime has an operator of that "
                "name"
            )
        else:
            kept.append(function)
    _keep(model.functions, kept)


def _useless_nodes(graph: onnx.GraphProto) -> Iterator[str]:
    kept = [node for node in graph.node if any((*node.input, *node.output))]
    if len(kept) < len(graph.node):
        yield f"{len(graph.node) - len(kept)} nodes without inputs and outputs are left out"
        _keep(graph.node, kept)


def _values(tensor: onnx.TensorProto) -> None:
    """Keep only the field of a tensor that holds its values."""
    held = [field.name for field, _ in tensor.ListFields() if field.name in _FIELDS]
    if len(held) > 1:
        try:
            own = onnx.helper.tensor_dtype_to_field(tensor.data_type)
        except KeyError:
            return  # the checker reports a type that does not exist
        for name in {*held} - {"raw_data" if "raw_data" in held else own}:
            tensor.ClearField(name)


def _constants(loaded: OnnxFile, where: str) -> Iterator[str]:
    """Keep one constant for each name; clear the name of a Constant that another node has."""
    graph = loaded.proto.graph
    constants: list[tuple[str, _Constant]] = [(tensor.name, tensor) for tensor in graph.initializer]
    constants += [(name, n) for n in graph.node if _is_constant(n) for name in n.output]
    constants += [(sparse.values.name, sparse) for sparse in graph.sparse_initializer]
    last, of = dict(constants), defaultdict[str, list[_Constant]](list)
    for name, each in constants:
        of[name].append(each)
    lost = {id(each): name for name, each in constants if last[name] is not each}
    for name in dict.fromkeys(lost.values()):
        _require_known(of[name], name, loaded, where)
        yield f"{name!r} is the name of several constants: the last counts"
    for field in (graph.initializer, graph.node, graph.sparse_initializer) if lost else ():
        _keep(field, [each for each in field if id(each) not in lost])
    names: set[str] = set()
    for node in sorted(graph.node, key=_is_constant):
        if node.name in names and _is_constant(node):
            node.ClearField("name")
        names.add(node.name)


def _outer_values(model: onnx.ModelProto) -> Iterator[str]:
    """Remove initializers of branches in place of which ONNX Runtime reads outer values."""
    for node in protos.nodes(model):
        branches = list(protos.subgraphs(node))
        if len(branches) < 2:
            continue
        taken = {name for branch in branches for name in _captured(branch)}
        for branch in branches:
            for field in (branch.initializer, branch.sparse_initializer):
                hidden = [name for each in field if (name := _name(each)) in taken]
                _keep(field, [each for each in field if _name(each) not in taken])
                for name in hidden:
                    yield (
                        f"initializer {name!r} of {protos.describe(node)} is not read: another "
                        "branch uses the outer value of that name"
                    )


def _name(initializer: onnx.TensorProto | onnx.SparseTensorProto) -> str:
    dense = isinstance(initializer, onnx.TensorProto)
    return initializer.name if dense else initializer.values.name


def _captured(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the values that a body takes from outside."""
    used = {name for node in graph.node for name in node.input}
    used.update(value.name for value in graph.output)
    for node in graph.node:
        for body in protos.subgraphs(node):
            used |= _captured(body)
    defined = {name for node in graph.node for name in node.output}
    defined.update(value.name for value in (*graph.input, *graph.initializer))
    defined.update(each.values.name for each in graph.sparse_initializer)
    return used - defined


def _require_known(constants: Sequence[_Constant], name: str, loaded: OnnxFile, where: str) -> None:
    """Raise ModelError unless constants of one name are equal, or small: then the last counts."""
    tensors = [_tensor(each) for each in constants]
    whole = [tensor for tensor in tensors if tensor is not None]
    if len(whole) == len(tensors):
        if max(byte_size(tensor, where=where) for tensor in whole) < _LARGE:
            return
        if len({_content(tensor, loaded) for tensor in whole}) == 1:
            return
    elif len({each.SerializeToString(deterministic=True) for each in constants}) == 1:
        return
    raise ModelError(
        f"{len(constants)} different constants are named {name!r}",
        where=where,
        why=f"of constants of {_LARGE} bytes or more, ONNX Runtime does not always take the last",
        remedy="give each constant of the model a name of its own",
    )


def _tensor(constant: _Constant) -> onnx.TensorProto | None:
    if isinstance(constant, onnx.NodeProto):
        held = [each.t for each in constant.attribute if each.name == "value"]
        return held[0] if held else None
    return constant if isinstance(constant, onnx.TensorProto) else None


def _content(tensor: onnx.TensorProto, loaded: OnnxFile) -> tuple[object, ...]:
    kind = tensor.data_type, *tensor.dims
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        reference = loaded.reference(tensor)
        return *kind, reference.file.part_digest(reference.offset, reference.length)
    return *kind, numpy_helper.to_array(tensor).tobytes()


def _is_constant(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and not node.domain


def _keep(field: MutableSequence[Any], kept: Sequence[object]) -> None:
    """Keep these elements of a repeated field."""
    if len(kept) < len(field):
        del field[:]
        field.extend(kept)


def densify(model: onnx.ModelProto, *, where: str) -> None:
    """Replace sparse initializers and `Constant` nodes' `sparse_value` by dense ones.

    Raises:
        ModelError: broken indices; dense forms that are too large together; another sparse
            attribute.
    """
    _require_bounded(model, where)
    for graph in protos.graphs(model):
        graph.initializer.extend(_dense(each, where) for each in graph.sparse_initializer)
        del graph.sparse_initializer[:]
    sparse_types = (onnx.AttributeProto.SPARSE_TENSOR, onnx.AttributeProto.SPARSE_TENSORS)
    for node in protos.nodes(model):
        for attribute in node.attribute:
            if attribute.type not in sparse_types:
                continue
            if (node.op_type, attribute.name) != ("Constant", "sparse_value"):
                raise ModelError(
                    f"{protos.describe(node)} has the sparse attribute {attribute.name!r}",
                    where=where,
                    remedy="epctx reads sparse tensors as initializers and constants only",
                )
            dense = _dense(attribute.sparse_tensor, where)
            attribute.Clear()
            attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
            attribute.t.CopyFrom(dense)


def _require_bounded(model: onnx.ModelProto, where: str) -> None:
    """Bound the memory of all dense forms together: a file of a kilobyte may ask for any amount.

    Raises:
        ModelError: a shape is not valid, or they are too large together.
    """
    size = 0
    for sparse in protos.sparse_tensors(model):
        dense = onnx.TensorProto(data_type=sparse.values.data_type, dims=sparse.dims)
        place = f"{where}: sparse tensor {sparse.values.name!r}"
        size += byte_size(dense, where=place)
        if size > limits.DENSE_BYTES.value:
            raise ModelError(
                f"has the shape {list(sparse.dims)}",
                where=place,
                why=f"the dense forms up to this one take more than {limits.DENSE_BYTES}",
                remedy="export the model with this tensor dense, as external data; "
                f"{limits.DENSE_BYTES.remedy}",
            )


def _dense(sparse: onnx.SparseTensorProto, where: str) -> onnx.TensorProto:
    """Return the dense form; indices are linear [NNZ], or coordinates [NNZ, rank]."""
    where = f"{where}: sparse tensor {sparse.values.name!r}"
    shape = tuple(sparse.dims)
    try:
        values = numpy_helper.to_array(sparse.values).reshape(-1)
        indices = numpy_helper.to_array(sparse.indices)
    except (ValueError, TypeError, KeyError) as error:  # KeyError: no such data type
        raise ModelError.broken("cannot be read", where=where, why=repr(error)) from error
    linear = _linear(indices, shape)
    if linear is None or len(linear) != len(values):
        raise ModelError.broken("has indices that do not fit its values or its shape", where=where)
    dense = np.zeros(math.prod(shape), values.dtype)
    dense[linear] = values
    return numpy_helper.from_array(dense.reshape(shape), sparse.values.name)


def _linear(indices: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return positions in the flat dense tensor; None if they do not fit."""
    if indices.ndim == 1:
        indices, shape = indices[:, None], (math.prod(shape),)
    if indices.ndim != 2 or indices.shape[1] != len(shape):
        return None
    if not np.all((indices >= 0) & (indices < np.array(shape))):
        return None
    return np.asarray(np.ravel_multi_index(tuple(indices.T), shape))
