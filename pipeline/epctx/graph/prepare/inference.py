"""Shape inference over a model whose weights are elsewhere.

onnx's inference works on protos and reads small constants only, so it runs on what `wire.strip`
leaves: megabytes, whatever the weights.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cache
from typing import Final

import onnx
import onnx.shape_inference

from epctx.graph import native
from epctx.graph.prepare import arguments, foreign
from epctx.graph.serde import protos


def separate_names(model: onnx.ModelProto) -> Mapping[str, str]:
    """Give each value of a body its own name, if another graph has the name.

    ONNX Runtime lets a body's value hide an outer one of that name. onnx 1.23's inference does not:
    it merges the two types, and reads the content of one value in place of the other's.

    Returns:
        The earlier names, by the new ones.
    """
    if not any(True for node in model.graph.node for _ in protos.subgraphs(node)):
        return {}
    taken = {name for graph in protos.graphs(model) for name in _defined(graph)}
    seen = _defined(model.graph)
    before: dict[str, str] = {}

    def enter(graph: onnx.GraphProto, outer: Mapping[str, str]) -> None:
        names = dict(outer)
        for name in sorted(_defined(graph)):
            names.pop(name, None)
            if name in seen:
                count = len(before)
                while (new := f"{name}/{count}") in taken:
                    count += 1
                taken.add(new)
                before[new], names[name] = name, new
            seen.add(name)
        _rename(graph, names)
        for node in graph.node:
            for body in protos.subgraphs(node):
                enter(body, names)

    for node in model.graph.node:
        for body in protos.subgraphs(node):
            enter(body, {})
    return before


def restore_names(model: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Undo `separate_names`, which returned `names`."""
    for graph in protos.graphs(model) if names else ():
        _rename(graph, names)


def _defined(graph: onnx.GraphProto) -> set[str]:
    names = {name for node in graph.node for name in node.output if name}
    names.update(value.name for value in (*graph.input, *graph.initializer))
    names.update(sparse.values.name for sparse in graph.sparse_initializer)
    return names


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = names.get(sparse.values.name, sparse.values.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]


_log = logging.getLogger(__name__)
_HIDDEN: Final = "epctx.disputed"
_REFUSALS: Final = (
    onnx.shape_inference.InferenceError,
    onnx.checker.ValidationError,
    RuntimeError,
    ValueError,
)
_NUMBERED: Final = b"unk__"
"""Prefix of symbols that onnx makes up."""
_OPEN: Final = f"open {secrets.token_hex(8)} "
"""Prefix of the names of open sizes; no file can know it."""


def infer(
    model: onnx.ModelProto,
    contradicted: Callable[[str], None] = _log.warning,
    ask: foreign.Ask | None = None,
) -> onnx.ModelProto:
    """Return the model with types and shapes of its values inferred; no weight is read.

    `native.reach` limits the extent of inference.

    If onnx infers other shapes than ONNX Runtime's kernels make (`arguments`), the result has the
    node in another form. Without such a form, the shapes of its output and of the values that
    follow are unknown, whatever the file declares.

    Inferred types win over declared ones, which may be older than the fixed dimensions. Declared
    types count where nothing is inferred, and more is inferred from them.

    Initializers that are inputs have no value here, as in ONNX Runtime: a caller may feed another.

    Args:
        contradicted: gets a message about a node whose inputs do not fit it, as onnx sees it;
            inference goes on.
        ask: returns the types that ONNX Runtime infers for operators that onnx does not know.
    """
    named = {d.dim_param for value in protos.values(model) for d in protos.dimensions(value.type)}
    given = onnx.ModelProto()
    given.CopyFrom(model)
    _name_open(given.graph)
    defaults = _take_defaults(given)
    messages: list[str] = []
    inferred = _inferred(given, messages.append)
    if ask is not None and native.reach() == "data" and (names := _unknown(inferred.graph)):
        inferred_types = {value.name: value.type for value in _value_infos(inferred.graph)}
        types = foreign.types(inferred, names, ask)
        if any(inferred_types.get(name) != kind for name, kind in types.items()):
            _declare(given.graph, types)
            messages.clear()
            inferred = _inferred(given, messages.append)
    for message in messages:
        contradicted(message)
    _drop_symbols(inferred, named)
    inferred.graph.initializer.extend(defaults)
    return inferred


def _take_defaults(model: onnx.ModelProto) -> Sequence[onnx.TensorProto]:
    """Remove and return the initializers that are inputs. Of shapes that may follow from their
    values, declared ones and those that the defaults make, only the rank counts: an exporter's
    inference takes defaults for constants.
    """
    graph = model.graph
    inputs = {value.name: value.type for value in graph.input}
    defaults = [tensor for tensor in graph.initializer if tensor.name in inputs]
    if not defaults:
        return ()
    _keep(graph, lambda name: name not in inputs or _is_fixed(inputs[name]))
    ranked = {value.name: value.type for value in _value_infos(_inferred(model, _log.debug).graph)}
    _keep(graph, lambda name: name not in inputs)
    follows = {tensor.name for tensor in defaults}
    for node in graph.node:
        bodies = (inner for body in protos.subgraphs(node) for inner in protos.nested(body))
        used = {*node.input, *(name for g in bodies for each in g.node for name in each.input)}
        if _is_inferred(node.op_type, node.domain) and used & follows:
            follows.update(node.output)
    _declare(graph, {name: kind for name, kind in ranked.items() if name in follows})
    for value in _value_infos(graph):
        for dim in protos.dimensions(value.type) if value.name in follows else ():
            dim.Clear()
    return defaults


def _keep(graph: onnx.GraphProto, is_kept: Callable[[str], bool]) -> None:
    kept = [tensor for tensor in graph.initializer if is_kept(tensor.name)]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _is_fixed(kind: onnx.TypeProto) -> bool:
    return _has_rank(kind) and all(d.HasField("dim_value") for d in protos.dimensions(kind))


def _name_open(graph: onnx.GraphProto) -> None:
    """Name each open size of an input, so that sizes that follow from it are open, too."""
    count = itertools.count()
    for value in graph.input:
        for dim in protos.dimensions(value.type):
            if dim.WhichOneof("value") is None:
                dim.dim_param = f"{_OPEN}{next(count)}"


def _inferred(model: onnx.ModelProto, contradicted: Callable[[str], None]) -> onnx.ModelProto:
    """Return the model as `infer` does, without its `ask`."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    arguments.write_alike(bare)
    shadowed = separate_names(bare)
    for graph in protos.graphs(bare):
        _forget(graph)
    _hide_crashing(bare)
    messages: list[str] = []
    inferred = _infer(bare, messages.append)
    is_believed = True
    while inferred is not None and (disputes := _hide_disputed(bare, inferred)):
        is_believed = is_believed and all(each.shape is not None for each in disputes)
        messages.clear()  # they contradict shapes that are unknown now
        inferred = _infer(bare, messages.append)
    for message in messages:
        contradicted(message)
    if inferred is None:
        return model
    named = {d.dim_param for value in protos.values(model) for d in protos.dimensions(value.type)}
    _drop_symbols(inferred, named)
    restore_names(inferred, shadowed)
    if is_believed:
        inferred = _completed(model, inferred, named)
    else:
        _keep_scanned(model, inferred)
    _reveal(inferred)
    return inferred


def _completed(
    model: onnx.ModelProto, inferred: onnx.ModelProto, named: Container[str]
) -> onnx.ModelProto:
    """Complete inferred types by declared ones where onnx cannot infer."""
    gained = 0
    for old, new in _pairs(model, inferred):
        if lacking := _lacking(old, new):
            gained += _restore(old, new, lacking & _border(new))
    if gained:
        inferred = _infer(inferred, _log.warning) or inferred
        _drop_symbols(inferred, named)
    for old, new in _pairs(model, inferred):
        _restore(old, new, None)
    return inferred


def _hide_crashing(bare: onnx.ModelProto) -> None:
    """Hide nodes from onnx that may end the process; declare the types of their outputs."""
    for graph in protos.graphs(bare):
        typed = {each.name for each in (*graph.input, *graph.initializer)}
        for node in graph.node:
            if arguments.is_crashing(node, typed):
                _hide(bare, node)
                for attribute in node.attribute:
                    if attribute.name == "dtype":
                        kind = onnx.helper.make_tensor_value_info(node.output[0], attribute.i, None)
                        graph.value_info.append(kind)


def _hide(bare: onnx.ModelProto, node: onnx.NodeProto) -> None:
    node.domain = _HIDDEN
    if not any(each.domain == _HIDDEN for each in bare.opset_import):
        bare.opset_import.add(domain=_HIDDEN, version=1)


def _hide_disputed(bare: onnx.ModelProto, inferred: onnx.ModelProto) -> Sequence[arguments.Dispute]:
    """Hide disputed nodes from onnx; declare the output shapes that kernels make, or no shapes if
    these are unknown.
    """
    opset = max((each.version for each in bare.opset_import if not each.domain), default=0)
    shapes: dict[str, arguments.Shape] = {}
    disputes = []
    for graph, inferred_graph in _pairs(bare, inferred):
        types = {
            v.name: v.type
            for v in (*inferred_graph.input, *inferred_graph.value_info, *inferred_graph.output)
        }
        for name, kind in types.items():
            if kind.tensor_type.HasField("shape"):
                dims = kind.tensor_type.shape.dim
                shapes[name] = tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)
        shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        for node in graph.node:
            dispute = arguments.disputed(node, opset, shapes)
            if dispute is None:
                continue
            _hide(bare, node)
            disputes.append(dispute)
            outputs = {value.name: value for value in graph.output}
            for name in filter(None, node.output):
                if name in outputs and dispute.shape is None:
                    continue
                value = outputs.get(name) or graph.value_info.add(name=name)
                if name not in types:
                    continue
                value.type.CopyFrom(types[name])
                if dispute.shape is None:
                    value.type.tensor_type.ClearField("shape")
                else:
                    value.type.tensor_type.shape.CopyFrom(_shape(dispute.shape))
    return disputes


def _shape(sizes: arguments.Shape) -> onnx.TensorShapeProto:
    """Return the proto of a shape; a size that is None is left out."""
    dims = (onnx.TensorShapeProto.Dimension(dim_value=size) for size in sizes)
    return onnx.TensorShapeProto(dim=dims)


def _keep_scanned(model: onnx.ModelProto, inferred: onnx.ModelProto) -> None:
    """Give the outputs of Scan nodes' bodies the shapes that ONNX Runtime infers at load: it does
    not run a Scan without them.
    """
    if not any(node.op_type == "Scan" for node in protos.nodes(model)):
        return
    loaded = _infer(model, _log.debug) or model
    for old, new in zip(protos.nodes(loaded), protos.nodes(inferred), strict=True):
        if old.op_type == "Scan":
            for body, inferred_body in zip(
                protos.subgraphs(old), protos.subgraphs(new), strict=True
            ):
                for value, result in zip(body.output, inferred_body.output, strict=True):
                    _merge(value.type, result.type, value.name)


def _reveal(model: onnx.ModelProto) -> None:
    for node in protos.nodes(model):
        if node.domain == _HIDDEN:
            node.domain = ""
    kept = [each for each in model.opset_import if each.domain != _HIDDEN]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def _pairs(
    model: onnx.ModelProto, inferred: onnx.ModelProto
) -> Iterator[tuple[onnx.GraphProto, onnx.GraphProto]]:
    return zip(protos.graphs(model), protos.graphs(inferred), strict=True)


def _forget(graph: onnx.GraphProto) -> None:
    """Remove declared types, except of outputs of unknown operators. A graph output that no node
    makes gets the shape of its input or initializer: onnx prefers the output's shape.
    """
    kept = {
        name
        for node in graph.node
        if not _is_inferred(node.op_type, node.domain)
        for name in node.output
    }
    values = [value for value in graph.value_info if value.name in kept]
    del graph.value_info[:]
    graph.value_info.extend(values)
    given = {value.name: value.type.tensor_type for value in graph.input}
    for tensor in graph.initializer:
        given[tensor.name] = onnx.helper.make_tensor_type_proto(
            tensor.data_type, tensor.dims
        ).tensor_type
    for value in graph.output:
        if value.name not in kept and value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
            if value.name in given and given[value.name].HasField("shape"):
                value.type.tensor_type.shape.CopyFrom(given[value.name].shape)


def _unknown(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the outputs of operators that onnx does not know. Outputs without type or rank count,
    too, if their node is in another domain than ONNX's own, or has an unknown operator in a body.
    """
    ranked = {
        v.name for v in _value_infos(graph) if v.type.WhichOneof("value") and _has_rank(v.type)
    }
    unknown: set[str] = set()
    for node in graph.node:
        inner = (n for body in protos.subgraphs(node) for g in protos.nested(body) for n in g.node)
        if not _is_inferred(node.op_type, node.domain):
            unknown.update(node.output)
        elif node.domain or not all(_is_inferred(each.op_type, each.domain) for each in inner):
            unknown.update({*node.output} - ranked)
    return frozenset(unknown - {""})


def _value_infos(graph: onnx.GraphProto) -> Sequence[onnx.ValueInfoProto]:
    return (*graph.value_info, *graph.output)


def _has_rank(kind: onnx.TypeProto) -> bool:
    return not kind.HasField("tensor_type") or kind.tensor_type.HasField("shape")


def _declare(graph: onnx.GraphProto, types: foreign.Types) -> None:
    values = {value.name: value for value in _value_infos(graph)}
    for name, kind in types.items():
        (values.get(name) or graph.value_info.add(name=name)).type.CopyFrom(kind)


@cache
def _is_inferred(op_type: str, domain: str) -> bool:
    """Tell whether onnx can infer the types of an operator's outputs."""
    try:
        schema = onnx.defs.get_schema(op_type, domain=domain)
    except onnx.defs.SchemaError:
        return False
    has_body = schema.has_function  # type: ignore[attr-defined]  # the stub forgets it
    return bool(schema.has_type_and_shape_inference_function or has_body)


def _lacking(declared: onnx.GraphProto, inferred: onnx.GraphProto) -> set[str]:
    """Return declared values whose shape inference did not complete."""
    names = {value.name for value in (*declared.output, *declared.value_info)}
    values = (*inferred.output, *inferred.value_info) if names else ()
    return names - {value.name for value in values if value.name in names and _is_whole(value.type)}


def _border(graph: onnx.GraphProto) -> set[str]:
    """Return values without a complete shape whose makers read values with complete shapes only."""
    outputs = {name for node in graph.node for name in node.output}
    complete = {v.name for v in (*graph.value_info, *graph.output) if _is_whole(v.type)}
    incomplete = outputs - complete
    return {
        name
        for node in graph.node
        if incomplete.isdisjoint(node.input)
        for name in node.output
        if name in incomplete
    }


def _is_whole(kind: onnx.TypeProto) -> bool:
    if not kind.HasField("tensor_type"):
        return kind.WhichOneof("value") is not None
    shape = kind.tensor_type.shape
    return kind.tensor_type.HasField("shape") and all(d.WhichOneof("value") for d in shape.dim)


def _infer(model: onnx.ModelProto, contradicted: Callable[[str], None]) -> onnx.ModelProto | None:
    """Return onnx's inference; None if it fails for the whole model, or if `native` forbids it."""
    reach = native.reach()
    if reach == "nothing":
        return None
    data = reach == "data"
    with native.allowed("onnx's shape inference", model.ByteSize()):
        try:
            return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=data)
        except _REFUSALS as error:
            contradicted(str(error))
        try:
            return onnx.shape_inference.infer_shapes(model, data_prop=data)
        except _REFUSALS as error:
            _log.warning("shapes are not inferred: %s", error)
            return None


def _drop_symbols(model: onnx.ModelProto, named: Container[str]) -> None:
    """Remove the symbols that inference numbers: the numbers follow the nodes' order."""
    data = model.SerializeToString()
    if _NUMBERED not in data and _OPEN.encode() not in data:
        return
    for value in protos.values(model):
        for dim in protos.dimensions(value.type):
            if dim.dim_param and dim.dim_param not in named:
                dim.ClearField("dim_param")


def _restore(
    declared: onnx.GraphProto, inferred: onnx.GraphProto, names: Container[str] | None
) -> int:
    """Restore declared types that inference did not find, of these values or of all.

    Returns the number of values that gained by it.
    """
    gained = 0
    outputs = {value.name: value for value in inferred.output}
    inner = {value.name: value for value in inferred.value_info}
    for value in (*declared.output, *declared.value_info):
        if names is not None and value.name not in names:
            continue
        result = outputs.get(value.name) or inner.get(value.name)
        if result is None:
            inferred.value_info.add().CopyFrom(value)
            gained += 1
        else:
            gained += _merge(value.type, result.type, value.name)
    return gained


def _merge(declared: onnx.TypeProto, inferred: onnx.TypeProto, name: str) -> bool:
    """Complete an inferred type by the declared one, unless they contradict."""
    if inferred.WhichOneof("value") is None:
        inferred.CopyFrom(declared)
        return True
    if not (declared.HasField("tensor_type") and inferred.HasField("tensor_type")):
        return False
    source, target = declared.tensor_type, inferred.tensor_type
    if source.elem_type != target.elem_type or not source.HasField("shape"):
        return False
    if not target.HasField("shape"):
        target.shape.CopyFrom(source.shape)
        return True
    if protos.contradict(source.shape, target.shape):
        _log.warning(
            "%r does not have the shape that the file declares: the inferred shape counts", name
        )
        return False
    gained = False
    for given, own in zip(source.shape.dim, target.shape.dim, strict=True):
        unknown = own.WhichOneof("value") is None
        if (unknown and given.WhichOneof("value")) or (own.dim_param and given.dim_param):
            own.CopyFrom(given)
            gained |= unknown
    return gained
