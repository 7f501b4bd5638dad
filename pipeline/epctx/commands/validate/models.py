"""Headers of a manifest's models: inputs with their sizes, names of nodes; no weight is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import onnx
from msgspec import Struct, field
from msgspec.structs import replace

from epctx.commands.validate.finding import Finding, of_error
from epctx.errors import ModelError
from epctx.graph.prepare import shapes
from epctx.manifest import ModelSource
from epctx.parsing.document.tree import Node
from epctx.stages import header
from epctx.stages.exclusion import NodeName

_PATHS: Final = ("path", "external_data_dir")


class Header(Struct, frozen=True, kw_only=True, eq=False):
    """What validation keeps of a model.

    Attributes:
        interface: a model of nothing but the inputs that must be fed.
        outputs: of the graph.
        nodes: of the main graph; those of local functions, which a build inlines, have no name.
        inlines: it has local functions: what their nodes will be called is not known.
    """

    interface: onnx.ModelProto
    outputs: tuple[onnx.ValueInfoProto, ...]
    nodes: frozenset[NodeName]
    inlines: bool


class Headers(Struct, kw_only=True):
    """The headers of a manifest's models, each file read once.

    Attributes:
        root: of the manifest.
        findings: what is wrong with the models that were asked for, so far.
    """

    root: Node
    findings: list[Finding] = field(default_factory=list)
    _known: dict[str, Header | None] = field(default_factory=dict)
    _files: dict[tuple[Path, Path | None], Header] = field(default_factory=dict)

    def of(self, source: ModelSource) -> Header | None:
        """The header with the manifest's sizes; None: there is none, and `findings` says why."""
        if source.name not in self._known:
            self._known[source.name] = self._read(source)
        return self._known[source.name]

    def _read(self, source: ModelSource) -> Header | None:
        node = self.root.mapping["models"].mapping[source.name]
        reference = source.as_reference
        if reference is not None:
            self._require(reference, node.mapping["reference"])
        found = self._require(source, node)
        return None if found is None else self._fixed(found, source, node)

    def _require(self, source: ModelSource, node: Node) -> Header | None:
        file = source.path, source.external_data_dir
        try:
            if file not in self._files:
                self._files[file] = _header(header.read(source))
            return self._files[file]
        except ModelError as error:
            blamed = _blamed(error, source, node)
            self.findings.append(of_error(error, blamed, shown=_shown(source, node)))
            return None

    def _fixed(self, found: Header, source: ModelSource, node: Node) -> Header | None:
        if not (source.dimensions or source.shapes):
            return found

        interface = onnx.ModelProto()
        interface.CopyFrom(found.interface)
        before = len(self.findings)

        def misfit(key: str, name: str, error: ModelError) -> None:
            at = node.mapping[key].mapping[name]
            self.findings.append(of_error(error, at, shown=_shown(source, node)))

        where = str(source.path)
        shapes.fix(interface, source.dimensions, source.shapes, where=where, misfit=misfit)
        if len(self.findings) > before:
            return None
        return replace(found, interface=interface)


def _shown(source: ModelSource, node: Node) -> dict[Path, str]:
    paths = ((source.path, node.get("path")), (source.external_data_dir, node.get(_PATHS[1])))
    return {path: at.text for path, at in paths if path is not None and at is not None}


def _blamed(error: ModelError, source: ModelSource, node: Node) -> Node:
    """The key that names the file that the error is about."""
    data = node.get("external_data_dir")
    if data is not None and error.file == str(source.external_data_dir):
        return data
    return node.get("path") or node


def _header(proto: onnx.ModelProto) -> Header:

    weights = {tensor.name for tensor in proto.graph.initializer}
    weights |= {tensor.values.name for tensor in proto.graph.sparse_initializer}
    interface = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    interface.graph.name = "graph"
    interface.graph.input.extend(each for each in proto.graph.input if each.name not in weights)
    return Header(
        interface=interface,
        outputs=tuple(proto.graph.output),
        nodes=frozenset(_nodes(proto)),
        inlines=bool(proto.functions),
    )


def _nodes(model: onnx.ModelProto) -> Iterator[NodeName]:
    for node in model.graph.node:
        yield NodeName(_domain(node), node.op_type, node.name)
    for function in model.functions:
        for node in function.node:
            yield NodeName(_domain(node), node.op_type, "")


def _domain(node: onnx.NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else node.domain
