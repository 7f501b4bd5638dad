"""Differences between two ONNX models, down to the node, attribute and tensor.

Differences of doc strings, producer, graph names, metadata and model version are marked: these only
describe a model. All others can change results. Of external data only the references are compared;
callers compare the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeVar

import onnx
from msgspec import Struct

from epctx.graph import epcontext, inputs
from epctx.graph.serde import protos
from epctx.graph.serde.reader import BareModel, is_external, read_mapped
from epctx.graph.weights import data_file

T = TypeVar("T")
Part = Literal["metadata", "model", "node", "attribute", "tensor"]
_SHOWN = 60
"""Maximum number of characters of a value that a difference shows."""
_ATTRIBUTE = onnx.AttributeProto
_DESCRIBING = ("producer_name", "producer_version", "domain", "model_version", "doc_string")


class GraphDifference(Struct, frozen=True, kw_only=True):
    """One difference between two models.

    Attributes:
        part: the differing part; `metadata` only describes the model, others can change results.
        where: `metadata`, `node 'x' (EPContext)`, `tensor 'w'`, ...
        what: old and new in words.
    """

    part: Part
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def between(old: Path, new: Path) -> tuple[GraphDifference, ...]:
    """Return all differences of two model files; none if only the serialization differs.

    Raises:
        ModelError: a file is not a model.
    """
    return tuple(_Models(read_mapped(old), read_mapped(new)).differences())


class _Models:
    def __init__(self, old: BareModel, new: BareModel) -> None:
        self._old = old
        self._new = new

    def differences(self) -> Iterator[GraphDifference]:
        old, new = self._old.proto, self._new.proto
        yield from _model(old, new)
        yield from self._graph(old.graph, new.graph, "")
        yield from _functions(old, new)

    def _graph(
        self, old: onnx.GraphProto, new: onnx.GraphProto, inside: str
    ) -> Iterator[GraphDifference]:
        if (old.name, old.doc_string) != (new.name, new.doc_string):
            what = (
                _changed(old.name, new.name) if old.name != new.name else "has another doc string"
            )
            yield GraphDifference(part="metadata", where=f"{inside}graph", what=what)
        yield from _metadata(old, new, f"{inside}graph")
        yield from _values("input", old.input, new.input, inside)
        yield from _values("output", old.output, new.output, inside)
        yield from _values("value", old.value_info, new.value_info, inside, ordered=False)
        for where, before, after in self._nodes(old, new, inside):
            yield from _missing("node", where, before, after)
            if before is not None and after is not None:
                yield from self._node(before, after, where)
        tensors = (_by_name(graph.initializer) for graph in (old, new))
        for name, one, other in _pairs(*tensors):
            where = f"{inside}tensor {name!r}"
            yield from _missing("tensor", where, one, other)
            if one is not None and other is not None:
                yield from self._tensor(one, other, where)
        if _serial(old.sparse_initializer) != _serial(new.sparse_initializer):
            yield GraphDifference(part="tensor", where=f"{inside}sparse tensors", what="differ")

    @staticmethod
    def _nodes(
        old: onnx.GraphProto, new: onnx.GraphProto, inside: str
    ) -> Iterator[tuple[str, onnx.NodeProto | None, onnx.NodeProto | None]]:
        """Pair nodes by name or, where names are not unique, by their first output."""
        for key, before, after in _pairs(*(_named(graph.node) for graph in (old, new))):
            node = after if after is not None else before
            assert node is not None
            yield f"{inside}node {key!r} ({node.op_type})", before, after

    def _node(
        self, old: onnx.NodeProto, new: onnx.NodeProto, where: str
    ) -> Iterator[GraphDifference]:
        for what, before, after in (
            ("op", f"{old.domain}:{old.op_type}", f"{new.domain}:{new.op_type}"),
            ("name", old.name, new.name),
            ("inputs", list(old.input), list(new.input)),
            ("outputs", list(old.output), list(new.output)),
        ):
            yield from _differs("node", where, before, after, of=f"{what} ")
        yield from _metadata(old, new, where)
        for name, one, other in _pairs(_by_name(old.attribute), _by_name(new.attribute)):
            place = f"{where}: attribute {name}"
            yield from _missing("attribute", place, one, other)
            if one is not None and other is not None:
                yield from self._attribute(one, other, place, context=epcontext.is_epcontext(new))

    def _attribute(
        self, old: onnx.AttributeProto, new: onnx.AttributeProto, where: str, *, context: bool
    ) -> Iterator[GraphDifference]:
        if old.type != new.type or old.ref_attr_name != new.ref_attr_name:
            kinds = (_ATTRIBUTE.AttributeType.Name(each.type) for each in (old, new))
            yield GraphDifference(part="attribute", where=where, what=_changed(*kinds))
        elif old.type == _ATTRIBUTE.GRAPH:
            yield from self._graph(old.g, new.g, f"{where}: ")
        elif old.type == _ATTRIBUTE.TENSOR:
            yield from self._tensor(old.t, new.t, where)
        elif context and old.name == "ep_cache_context" and not _are_paths(old.s, new.s):
            what = data_file.difference(memoryview(old.s), memoryview(new.s))
            if what is not None:
                yield GraphDifference(part="attribute", where=where, what=what)
        else:
            values = [onnx.helper.get_attribute_value(each) for each in (old, new)]
            if not _same(*values):
                yield GraphDifference(part="attribute", where=where, what=_changed(*values))

    def _tensor(
        self, old: onnx.TensorProto, new: onnx.TensorProto, where: str
    ) -> Iterator[GraphDifference]:
        kinds = [f"{protos.kind(each.data_type)}{list(each.dims)}" for each in (old, new)]
        if kinds[0] != kinds[1]:
            yield GraphDifference(part="tensor", where=where, what=_changed(*kinds))
            return
        places = [_place(each) for each in (old, new)]
        if places[0] != places[1]:
            yield from _differs("tensor", where, *places)
            return
        what = data_file.difference(self._old.raw(old), self._new.raw(new))
        if what is None and _typed(old) != _typed(new):
            what = "has other values"
        if what is not None:
            yield GraphDifference(part="tensor", where=where, what=what)


def _model(old: onnx.ModelProto, new: onnx.ModelProto) -> Iterator[GraphDifference]:
    for field in _DESCRIBING:
        yield from _differs("metadata", field, getattr(old, field), getattr(new, field))
    yield from _metadata(old, new, "model")
    yield from _differs("model", "IR version", old.ir_version, new.ir_version)
    opsets = ({e.domain or "ai.onnx": e.version for e in m.opset_import} for m in (old, new))
    for domain, one, other in _pairs(*opsets):
        yield from _differs("model", f"opset {domain}", one, other)


def _metadata(
    old: onnx.ModelProto | onnx.GraphProto | onnx.NodeProto,
    new: onnx.ModelProto | onnx.GraphProto | onnx.NodeProto,
    where: str,
) -> Iterator[GraphDifference]:
    entries = ({e.key: e.value for e in each.metadata_props} for each in (old, new))
    for key, one, other in _pairs(*entries):
        place = f"metadata {key}" if where == "model" else f"{where}: metadata {key}"
        yield from _differs("metadata", place, one, other)


def _values(
    kind: str,
    old: Iterable[onnx.ValueInfoProto],
    new: Iterable[onnx.ValueInfoProto],
    inside: str,
    *,
    ordered: bool = True,
) -> Iterator[GraphDifference]:
    one, other = ({info.name: str(inputs.spec(info)) for info in side} for side in (old, new))
    for name, before, after in _pairs(one, other):
        yield from _differs("model", f"{inside}{kind} {name!r}", before, after)
    if ordered and one.keys() == other.keys():
        yield from _differs("model", f"{inside}order of {kind}s", list(one), list(other))


def _functions(old: onnx.ModelProto, new: onnx.ModelProto) -> Iterator[GraphDifference]:
    functions = ({f"{f.domain}:{f.name}": f for f in each.functions} for each in (old, new))
    for name, before, after in _pairs(*functions):
        where = f"function {name}"
        yield from _missing("node", where, before, after)
        if before is not None and after is not None and _serial([before]) != _serial([after]):
            yield GraphDifference(part="node", where=where, what="has another body")


def _differs(
    part: Part, where: str, old: object, new: object, *, of: str = ""
) -> Iterator[GraphDifference]:
    if old != new:
        yield GraphDifference(part=part, where=where, what=of + _changed(old, new))


def _missing(
    part: Part, where: str, old: object | None, new: object | None
) -> Iterator[GraphDifference]:
    if old is None:
        yield GraphDifference(part=part, where=where, what="is new")
    elif new is None:
        yield GraphDifference(part=part, where=where, what="is gone")


def _pairs(old: Mapping[str, T], new: Mapping[str, T]) -> Iterator[tuple[str, T | None, T | None]]:
    for name in dict.fromkeys([*new, *old]):
        yield name, old.get(name), new.get(name)


_Named = TypeVar("_Named", onnx.AttributeProto, onnx.TensorProto)


def _by_name(items: Iterable[_Named]) -> dict[str, _Named]:
    return {item.name: item for item in items}


def _named(nodes: Iterable[onnx.NodeProto]) -> dict[str, onnx.NodeProto]:
    named: dict[str, onnx.NodeProto] = {}
    for number, node in enumerate(nodes):
        output = next((name for name in node.output if name), f"#{number}")
        named[node.name if node.name and node.name not in named else output] = node
    return named


def _are_paths(old: bytes, new: bytes) -> bool:
    """Tell whether both look like file names: short printable text, unlike an embedded context."""
    return all(len(each) < 1024 and _text(each) is not None for each in (old, new))


def _text(value: bytes) -> str | None:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def _same(old: object, new: object) -> bool:
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return all(map(_same, old, new))
    serialize = "SerializeToString"
    if hasattr(old, serialize) and hasattr(new, serialize):
        return _serial([old]) == _serial([new])
    # By its repr, a NaN is equal to itself.
    return repr(old) == repr(new)


def _serial(messages: Iterable[object]) -> list[bytes]:
    # Protobuf messages of any kind, which have no common type here: `_same` asks for the method.
    return [each.SerializeToString(deterministic=True) for each in messages]  # type: ignore[attr-defined]


def _typed(tensor: onnx.TensorProto) -> bytes:
    """Return a tensor serialized without raw data, name, doc string and location of its data."""
    rest = onnx.TensorProto()
    rest.CopyFrom(tensor)
    for field in ("raw_data", "doc_string", "external_data", "data_location", "name"):
        rest.ClearField(field)
    encoded: bytes = rest.SerializeToString(deterministic=True)
    return encoded


def _place(tensor: onnx.TensorProto) -> str:
    if not is_external(tensor):
        return "inside the model"
    keys = {entry.key: entry.value for entry in tensor.external_data}
    ends = f"{keys.get('offset', '0')}+{keys.get('length', '?')}"
    return f"in {keys.get('location')} at {ends}"


def _changed(old: object, new: object) -> str:
    if old is None:
        return f"{_shown(new)} is new"
    if new is None:
        return f"{_shown(old)} is gone"
    return f"{_shown(old)} is now {_shown(new)}"


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        text = _text(value)
        value = f"{len(value)} bytes" if text is None else text
    if isinstance(value, list) and any(hasattr(each, "SerializeToString") for each in value):
        value = f"{len(value)} items"
    if hasattr(value, "SerializeToString"):
        value = type(value).__name__
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
