"""Check models and groups against the headers of the models."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import onnx
from msgspec import Struct, field
from msgspec.structs import replace

from epctx.commands.validate.finding import Finding, of_error
from epctx.errors import EpctxError, ModelError, about
from epctx.files.regular import absent
from epctx.graph.passes import registry as passes
from epctx.graph.prepare import shapes
from epctx.graph.weights.data_file import DataFile
from epctx.manifest import Composition, Manifest, ModelGroup, ModelSource
from epctx.parsing import precedence
from epctx.parsing.document.tree import Node, at_key
from epctx.providers import default, registry
from epctx.stages import header as model_headers
from epctx.stages.exclusion import Exclusion, NodeName, Unmatched, in_all, operator, refusal

_PATHS: Final = ("path", "external_data_dir", "custom_ops")


class Header(Struct, frozen=True, kw_only=True, eq=False):
    """Properties of a model that validation needs.

    Attributes:
        interface: model that only contains the inputs that must be fed.
        outputs: outputs of the graph.
        nodes: names of the main graph's nodes; nodes of local functions are listed without a name.
        inlines: True if the model has local functions. A build inlines them, and the names of their
            nodes are not known before.
    """

    interface: onnx.ModelProto
    outputs: tuple[onnx.ValueInfoProto, ...]
    nodes: frozenset[NodeName]
    inlines: bool


class Headers(Struct, kw_only=True):
    """The headers of a manifest's models, each file read once.

    Attributes:
        root: root of the manifest.
        findings: faults of the models that were read so far.
    """

    root: Node
    findings: list[Finding] = field(default_factory=list)
    _by_name: dict[str, Header | None] = field(default_factory=dict)
    _files: dict[tuple[Path, Path | None], Header] = field(default_factory=dict)

    def of(self, source: ModelSource) -> Header | None:
        """Return the header with the manifest's sizes; None if `findings` has the reason."""
        if source.name not in self._by_name:
            self._by_name[source.name] = self._read(source)
        return self._by_name[source.name]

    def _read(self, source: ModelSource) -> Header | None:
        node = self.root.mapping["models"].mapping[source.name]
        reference = source.as_reference
        if reference is not None:
            self._require(reference, node.mapping["reference"])
        header = self._require(source, node)
        return None if header is None else self._fixed(header, source, node)

    def _require(self, source: ModelSource, node: Node) -> Header | None:
        file = source.path, source.external_data_dir
        try:
            if source.custom_ops is not None:
                with about(file=str(source.custom_ops)):
                    DataFile.open(source.custom_ops)
            if file not in self._files:
                self._files[file] = _header(model_headers.read(source))
            return self._files[file]
        except ModelError as error:
            blamed = _blamed(error, source, node)
            self.findings.append(of_error(error, blamed, shown=_shown(source, node)))
            return None

    def _fixed(self, header: Header, source: ModelSource, node: Node) -> Header | None:
        if not (source.dimensions or source.shapes):
            return header

        interface = onnx.ModelProto()
        interface.CopyFrom(header.interface)
        before = len(self.findings)

        def misfit(key: str, name: str, error: ModelError) -> None:
            at = node.mapping[key].mapping[name]
            self.findings.append(of_error(error, at, shown=_shown(source, node)))

        where = str(source.path)
        shapes.fix(interface, source.dimensions, source.shapes, where=where, misfit=misfit)
        if len(self.findings) > before:
            return None
        return replace(header, interface=interface)


def _shown(source: ModelSource, node: Node) -> dict[Path, str]:
    return {getattr(source, key): at.text for key in _PATHS if (at := node.get(key)) is not None}


def _blamed(error: ModelError, source: ModelSource, node: Node) -> Node:
    """Key of the file that the error is about."""
    named = (key for key in _PATHS if error.file == str(getattr(source, key)))
    return node.get(next(named, "path")) or node


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


_WILD = re.compile(r"[*?\[]")


def findings(root: Node, manifest: Manifest) -> Iterator[Finding]:
    """Find faults of the models that a build reads, and of the groups' settings for them."""
    headers = Headers(root=root)
    groups: list[Finding] = []
    absent: dict[tuple[object, ...], tuple[Unmatched, ...]] = {}
    for tree, target in zip(precedence.targets(root), manifest.targets, strict=True):
        for layered, group in zip(tree.groups, target.groups, strict=True):
            read_headers = [(model.name, headers.of(model)) for model in group.models]
            readable = {name: header for name, header in read_headers if header is not None}
            checker = _Group(
                root=root,
                folder=manifest.path.parent,
                node=layered.node,
                group=group,
                headers=readable,
                absent=absent,
            )
            groups += checker.findings(whole=len(readable) == len(read_headers))
        for composition in target.compositions:
            groups += _composition(composition, target.groups, root, headers)
    yield from headers.findings
    yield from groups


def _composition(
    composition: Composition, groups: Sequence[ModelGroup], root: Node, headers: Headers
) -> Iterator[Finding]:
    """Find parts of a composition whose inputs and outputs do not match."""
    # Needs numpy, which manifests without compositions do not need.
    from epctx.verification.numbers.composed import require_wirable

    sources = {model.name: model for group in groups for model in group.models}
    models: dict[str, onnx.ModelProto] = {}
    for part in composition.parts:
        header = headers.of(sources[part.model])
        if header is None:
            return
        models[part.model] = whole = onnx.ModelProto()
        whole.CopyFrom(header.interface)
        whole.graph.output.extend(header.outputs)
    try:
        require_wirable(composition, models)
    except EpctxError as error:
        yield of_error(error, root.at(error.where or ""))


class _Group(Struct, frozen=True, kw_only=True):
    """Model group for one target, with the headers of its models.

    Attributes:
        absent: unmatched `exclude` entries by models and settings, shared by all groups, because
            targets repeat groups.
    """

    root: Node
    folder: Path
    node: Node
    group: ModelGroup
    headers: dict[str, Header]
    absent: dict[tuple[object, ...], tuple[Unmatched, ...]]

    def findings(self, *, whole: bool) -> Iterator[Finding]:
        """Yield all findings of this group. `whole`: the headers of all its models are known."""
        for name, header in self.headers.items():
            yield from self._open_sizes(name, header)
        yield from self._files()
        if whole:
            yield from self._exclude()
            yield from self._inputs()

    def _open_sizes(self, name: str, header: Header) -> Iterator[Finding]:
        """Find open sizes of a model that an EP needs and the manifest does not fix."""
        for spec in self.group.execution_providers:
            if registry.needs_static_shapes(spec.provider):
                from epctx.graph.serde import types
                from epctx.providers.onnxruntime.capability import require_static_shapes

                try:
                    model = types.from_proto(header.interface)
                    require_static_shapes(model, provider=spec.provider)
                except ModelError as error:
                    node = self.root.mapping["models"].mapping[name]
                    yield of_error(error, node)
                    return

    def _exclude(self) -> Iterator[Finding]:
        """Find entries of `partition.exclude` that match no node."""
        settings = self.group.partition
        key = (*self.headers, settings.exclude_op_types, settings.exclude_nodes)
        if key not in self.absent:
            exclusion, headers = Exclusion(settings), self.headers.values()
            unmatched = [exclusion.unmatched(each.nodes, _never) for each in headers]
            self.absent[key] = in_all(unmatched)
        for each in self.absent[key]:
            listed = self.node.mapping["partition"].mapping["exclude"].mapping[each.key]
            node = next(item for item in listed.items if item.string == each.entry)
            error = refusal([each], where=f"model group {self.group.name}")
            finding = of_error(error, node)
            yield finding if self._refused(each) else _warning(finding, each)

    def _refused(self, each: Unmatched) -> bool:
        """Tell whether a build refuses an entry because no pass can make a match."""
        if not all(map(passes.is_built_in, self.group.optimize.passes)):
            return False
        if each.key == "op_types":
            return not default.registered(*operator(each.entry))
        headers = self.headers.values()
        names = {node.name for header in headers for node in header.nodes}
        return not any(header.inlines for header in headers) and not _may_be_made(each.entry, names)

    def _inputs(self) -> Iterator[Finding]:
        """Find ranges and sizes for inputs that no model of the group has."""
        settings = replace(self.group.verify.inputs, files=())
        if not (settings.ranges or settings.dimensions):
            return
        # Needs numpy, which the rest of the group's checks do not need.
        from epctx.graph.inputs import specs
        from epctx.verification.numbers.input_sets import InputSets

        sets = InputSets(settings)
        for header in self.headers.values():
            sets.note(specs(header.interface))
        for key, name, error in sets.unknown():
            setting = self.node.mapping["verify"].mapping["inputs"].mapping[key]
            yield self._unless_off(
                of_error(error, at_key(setting, name, error.what, error.remedy, error.code))
            )

    def _files(self) -> Iterator[Finding]:
        """Find input files that do not exist."""
        listed = self.node.get("verify", "inputs", "files")
        for item in listed.items if listed is not None else ():
            path = self.folder / item.text
            if path in self.group.verify.inputs.files and not path.exists():
                yield self._unless_off(of_error(absent(path), item, shown={path: item.text}))

    def _unless_off(self, finding: Finding) -> Finding:
        """Turn the finding into a warning if the group compares no numbers."""
        return replace(finding, exit_code=0) if self.group.verify.numbers == "off" else finding


def _never(domain: str, op_type: str) -> bool:
    return False


def _warning(finding: Finding, each: Unmatched) -> Finding:
    """Make the finding a warning that the entry matches nothing yet."""
    near = f'did you mean "{each.near}"? If not, ' if each.near else ""
    if each.key == "op_types":
        what = f"no model of the group has a node of the op type {each.entry}"
        remedy = f"{near}remove it, unless it is meant for future models"
    else:
        what = f'no node of the group\'s models matches "{each.entry}"'
        remedy = f"{near}`epctx plan --partition` lists the names that passes give"
    return Finding(problem=replace(finding.problem, what=what, remedy=remedy))


def _may_be_made(pattern: str, names: set[str]) -> bool:
    """Tell whether a pattern may match a node that a pass makes, named `<node>/<suffix>`."""
    literal = _WILD.split(pattern, maxsplit=1)[0]
    prefixes = (f"{name}/" for name in names)
    return any(literal.startswith(each) or each.startswith(literal) for each in prefixes)
