"""Conformance of EPContext nodes, by the op schema in spec/ep-context-design.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Final

import onnx
from msgspec import Struct

from epctx.files import paths
from epctx.graph import epcontext
from epctx.graph.epcontext import EPContextNode
from epctx.graph.partition import borders
from epctx.graph.serde import protos
from epctx.providers.base import ExecutionProvider, Outcome, PrefixPlace
from epctx.text import nearest, node_words
from epctx.verification.findings import REBUILD
from epctx.verification.folder import ContextModel, GroupFolder, context_nodes


class Fault(Struct, frozen=True, kw_only=True):
    """Fault of a model, or the reason why a check was not possible."""

    message: str
    remedy: str = REBUILD
    outcome: Outcome = "fail"


class Subject(Struct, frozen=True, kw_only=True):
    """A model, its summary, and its folder."""

    folder: GroupFolder
    model: ContextModel
    proto: onnx.ModelProto


Check = Callable[[Subject], Iterator[Fault]]
"""Yields the faults of a model; a model without faults has passed."""


def attributes(subject: Subject) -> Iterator[Fault]:
    """Require names, types and values of the op schema; models of epctx have every attribute."""
    for name, why in subject.model.broken:
        yield Fault(message=f"{node_words(name, 'EPContext', ())}: {why}")
    written = {node.name: {a.name for a in node.attribute} for node in context_nodes(subject.proto)}
    for node in subject.model.nodes:
        yield from _unknown(subject, node)
        for required in ("embed_mode", "main_context"):
            # If absent, the op assumes 1 and ONNX Runtime's option 0, so epctx writes them.
            if subject.model.ours and required not in written.get(node.name, {required}):
                yield Fault(message=f"{node.words}: `{required}` is not written")
        file = node.onnx_model_filename
        if file is not None and file != PurePosixPath(file.replace("\\", "/")).name:
            yield Fault(message=f"{node.words}: `onnx_model_filename` is a path: {file}")


def _unknown(subject: Subject, node: EPContextNode) -> Iterator[Fault]:
    provider = subject.folder.providers.find(node.source or "")
    extra = frozenset[str]() if provider is None else provider.extra_attributes
    for name in node.unknown:
        if name in extra:
            continue
        near = nearest(name, epcontext.ATTRIBUTES)
        meant = f", did the maker mean `{near}`?" if near else ""
        if provider is None:
            yield Fault(
                message=f"{node.words}: `{name}` is not in the op schema; "
                f"only the EP can say what it means{meant}",
                remedy=subject.folder.providers.why_not(node.source or ""),
                outcome="not checkable",
            )
        else:
            yield Fault(message=f"{node.words}: `{name}` is not in the op schema{meant}")


def sources(subject: Subject) -> Iterator[Fault]:
    """Require a `source` that an EP knows; sessions refuse others (real-eps.md section 5)."""
    providers = subject.folder.providers
    for node in subject.model.nodes:
        if not node.source:
            yield Fault(
                message=f"{node.words} has no `source`: no EP takes it",
                remedy="build it again with an EP that writes its key",
            )
        elif providers.find(node.source) is None:
            foreign = providers.asked is not None and not providers.missing
            yield Fault(
                message=f"{node.words}: no EP on this host accepts the source '{node.source}'",
                remedy=providers.why_not(node.source),
                outcome="fail" if foreign else "not checkable",
            )


def contexts(subject: Subject) -> Iterator[Fault]:
    """Require the `ep_cache_context` that `embed_mode` implies: a payload, or a binary's path."""
    group = subject.folder.group
    for node in map(EPContextNode.from_proto, _sound(subject)):
        where = f"{node.words}: "
        if group is not None and node.main_context and node.embed_mode != group.embed_mode:
            yield Fault(
                message=f"{where}embed_mode is {node.embed_mode}, the manifest asks for "
                f"{group.embed_mode}",
            )
        for message in _context(subject, node):
            yield Fault(message=where + message)


def _context(subject: Subject, node: EPContextNode) -> Iterator[str]:
    content = node.ep_cache_context
    if not node.main_context:
        if node.embed_mode and content:
            yield "main_context is 0, yet it embeds a payload"
        return
    if not content:
        yield "main_context is 1, but `ep_cache_context` is empty"
        return
    if node.embed_mode:
        if len(content) < 4096 and _names_a_file(subject, content):
            yield "embed_mode is 1, but `ep_cache_context` is the name of a file of the folder"
        return
    path = node.context_path
    assert path is not None
    shown = path if len(path) <= 200 else path[:200] + "…"
    reason = paths.missing(subject.folder.path, path)
    if reason is not None:
        yield f"`ep_cache_context` is '{shown}': {reason}"
    elif (subject.folder.path / path).stat().st_size == 0:
        yield f"`ep_cache_context` is '{shown}': the file is empty"


def _names_a_file(subject: Subject, content: bytes) -> bool:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return False
    return text in subject.folder.entries


def main_contexts(subject: Subject) -> Iterator[Fault]:
    """Require for each node with main_context 0 another node of its EP with the context."""
    in_model = {node.source for node in subject.model.nodes if node.main_context}
    in_folder = {
        node.source
        for other in subject.folder.models
        for node in other.nodes
        if node.main_context and not node.embed_mode
    }
    for node in subject.model.nodes:
        if node.main_context or node.source in in_model:
            continue
        if node.source in in_folder and not node.embed_mode:
            continue
        yield Fault(
            message=f"{node.words} has main_context 0, and no other node of the "
            f"source '{node.source}' has the context of its graph"
        )


def names(subject: Subject) -> Iterator[Fault]:
    """Require unique names: of nodes in their graph, of EPContext nodes in the model, and of
    partitions in a context, where EPs look up graphs by these names.
    """
    places = Counter(node.name for node in protos.nodes(subject.proto))
    twice: set[str] = set()
    for graph in protos.graphs(subject.proto):
        own = Counter(node.name for node in graph.node)
        for node in graph.node:
            is_context = epcontext.is_epcontext(node)
            if is_context and not node.name:
                yield Fault(
                    message=f"an EPContext node has no name; its outputs are {list(node.output)}"
                )
            elif node.name and (places if is_context else own)[node.name] > 1:
                twice.add(node.name)
    yield from (Fault(message=f"two nodes are named '{name}'") for name in sorted(twice))
    partitions: set[tuple[str | None, str | None, str]] = set()
    for each in subject.model.nodes:
        if each.partition_name is None or not each.main_context:
            continue
        key = (each.source, each.context_path, each.partition_name)
        if each.context_path is not None and key in partitions:
            yield Fault(
                message=f"two nodes name the partition '{each.partition_name}' of "
                f"'{each.context_path}'"
            )
        partitions.add(key)


_PLACES: Final[dict[PrefixPlace, str]] = {
    "name": "node name",
    "partition_name": "partition name",
    "graph": "graph name",
}


def has_prefix(subject: Subject) -> bool:
    """Return whether the manifest asks for a prefix."""
    return subject.folder.group is not None and bool(subject.folder.group.node_name_prefix)


def prefix(subject: Subject) -> Iterator[Fault]:
    """Require `node_name_prefix` where the EP puts it; real EPs ignore it (real-eps.md, 2)."""
    assert subject.folder.group is not None
    expected = subject.folder.group.node_name_prefix
    carrying: dict[str, None] = {}
    wrong = False
    for node in subject.model.nodes:
        provider = subject.folder.providers.find(node.source or "")
        places = ExecutionProvider.prefixed if provider is None else provider.prefixed
        carrying |= {words: None for place, words in _PLACES.items() if place in places}
        for place, value in (("name", node.name), ("partition_name", node.partition_name)):
            if place in places and value is not None and not value.startswith(expected):
                wrong = True
                yield Fault(
                    message=f"{node.words}: its {place} '{value}' does not begin with "
                    f"the prefix '{expected}'",
                )
    if not wrong:
        own = [words for words in _PLACES.values() if words not in carrying]
        chosen = f"; the EP chooses the {' and the '.join(own)}" if own else ""
        message = f"the prefix '{expected}' is in {', '.join(carrying)}{chosen}"
        yield Fault(message=message, remedy="", outcome="pass")


def types(subject: Subject) -> Iterator[Fault]:
    """Require types that the op allows, and shapes of outputs, which cannot be inferred."""
    for graph in protos.graphs(subject.proto):
        nodes = [node for node in graph.node if epcontext.is_epcontext(node)]
        if not nodes:
            continue
        infos = {i.name: i.type for i in (*graph.value_info, *graph.input, *graph.output)}
        initializers = {tensor.name: tensor.data_type for tensor in graph.initializer}
        for node in nodes:
            if not any(node.output):
                yield Fault(message=f"{protos.describe(node)} has no output")
            for name in filter(None, node.output):
                yield from _output_type(protos.describe(node), name, infos.get(name))
            for name in filter(None, node.input):
                kind = initializers.get(name) or _element(infos.get(name))
                if kind is not None and kind not in borders.TYPES:
                    yield Fault(
                        message=f"{protos.describe(node)}: its input '{name}' is of type "
                        f"{_type_name(kind)}, which the op does not take"
                    )


def _output_type(node: str, name: str, info: onnx.TypeProto | None) -> Iterator[Fault]:
    kind = _element(info)
    if info is None or kind is None:
        yield Fault(message=f"{node}: its output '{name}' has no type")
    elif kind not in borders.TYPES:
        yield Fault(
            message=f"{node}: its output '{name}' is of type {_type_name(kind)}, "
            "which the op does not make"
        )
    elif not info.tensor_type.HasField("shape"):
        yield Fault(message=f"{node}: its output '{name}' has no shape")


def _element(info: onnx.TypeProto | None) -> int | None:
    """The element type; 0, which the op does not take, if the value is not a tensor; None if
    unknown.
    """
    if info is None or info.WhichOneof("value") is None:
        return None
    return info.tensor_type.elem_type if info.HasField("tensor_type") else 0


def _type_name(kind: int) -> str:
    data_types = onnx.TensorProto.DataType
    return data_types.Name(kind).lower() if kind in data_types.values() else f"number {kind}"


def _sound(subject: Subject) -> Iterator[onnx.NodeProto]:
    """The EPContext nodes that conform to the op schema; `attributes` reports the others."""
    broken = {name for name, _ in subject.model.broken}
    return (node for node in context_nodes(subject.proto) if node.name not in broken)
