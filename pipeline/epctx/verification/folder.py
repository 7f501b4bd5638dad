"""Group folders as the policies see them: models, files, EPs, and the manifest's group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol

import onnx
from msgspec import Struct, field
from msgspec.structs import replace

from epctx.errors import EpctxError, InvalidGraph, ModelError
from epctx.files import paths
from epctx.files.outputs import GOLDEN, SIGNATURE, SUMS, context_file
from epctx.graph import epcontext
from epctx.graph import inputs as graph_inputs
from epctx.graph.epcontext import Cuts, EPContextNode
from epctx.graph.inputs import InputSpec
from epctx.graph.serde import protos, reader
from epctx.manifest import ModelGroup, ProviderSpec
from epctx.providers import registry
from epctx.providers.base import ExecutionProvider
from epctx.verification.findings import Finding, OutputNumbers, PolicyName


class Providers(Struct, kw_only=True):
    """EPs by the `source` that they accept.

    Attributes:
        asked: the manifest's EPs, bound to their options, in priority order. None if there is no
            manifest; then any installed EP counts, with its default options.
        missing: EPs of the manifest that this host lacks: the reason, by name.
    """

    asked: tuple[ExecutionProvider, ...] | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    _found: dict[str, ExecutionProvider | None] = field(default_factory=dict)

    @classmethod
    def of_group(cls, specs: Iterable[ProviderSpec]) -> Providers:
        """Create the EPs that a model group asks for."""
        providers: list[ExecutionProvider] = []
        missing: dict[str, str] = {}
        for spec in specs:
            try:
                providers.append(registry.create(spec))
            except EpctxError as error:
                missing[spec.provider] = str(error).replace("\n  -> ", "; ")
        return cls(asked=tuple(providers), missing=missing)

    def find(self, source: str) -> ExecutionProvider | None:
        """Return the EP that takes nodes of this source; None if this host has no such EP."""
        if source not in self._found:
            if self.asked is None:
                self._found[source] = registry.accepting(source)
            else:
                takers = (provider for provider in self.asked if source in provider.sources)
                self._found[source] = next(takers, None)
        return self._found[source]

    def of(self, sources: Iterable[str]) -> tuple[ExecutionProvider, ...]:
        """Return the available EPs for nodes of these sources, each once."""
        providers = map(self.find, sources)
        return tuple({id(each): each for each in providers if each is not None}.values())

    def why_not(self, source: str) -> str:
        """Return the remedy for a source that `find` does not know."""
        if self.missing:
            return "; ".join(self.missing.values())
        if self.asked is not None:
            sources = ", ".join(sorted(s for p in self.asked for s in p.sources)) or "none"
            return f"the manifest's execution providers have the sources: {sources}"
        return (
            "install the package of the EP that it is for, or give the EP's options "
            f"with --manifest; installed are {', '.join(registry.names())}"
        )


PRODUCER = "epctx"


class Unreadable(Exception):
    """The file cannot be read as a model; the text says why."""


class ContextModel(Struct, frozen=True, kw_only=True):
    """Summary of an EPContext model of the folder, without weights and payloads.

    Attributes:
        file: its name in the folder.
        producer: its producer name.
        nodes: its EPContext nodes, in bodies of control flow too; payloads are cut to 64 bytes.
        broken: (node name, reason) of each EPContext node that breaks the op's schema.
        quantized: it has Quantize- or DequantizeLinear nodes.
        inputs: inputs of a run.
        outputs: names of its outputs.
        contexts: paths of its context binaries, as written, each once.
        data: locations of its external data, as written, each once.
        metadata: its metadata properties.
        cuts: cuts between its pieces; None if it is whole, or its manifest asks for no pieces.
    """

    file: str
    producer: str
    nodes: tuple[EPContextNode, ...]
    broken: tuple[tuple[str, str], ...]
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    contexts: tuple[str, ...]
    data: tuple[str, ...]
    metadata: Mapping[str, str]
    cuts: Cuts | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """Every file to ship: the model first; paths as written."""
        return tuple(dict.fromkeys((self.file, *self.contexts, *self.data)))

    @property
    def sources(self) -> tuple[str, ...]:
        """The `source` of its EPContext nodes, each once, in order; "" for one without."""
        return tuple(dict.fromkeys(node.source or "" for node in self.nodes))

    @property
    def stem(self) -> str:
        """File name without its endings."""
        return self.file.removesuffix(".onnx").removesuffix("_ctx")

    @property
    def ours(self) -> bool:
        """Return whether epctx made the model."""
        return self.producer == PRODUCER


class GroupFolder(Struct, frozen=True, kw_only=True):
    """A folder of EPContext models, or some models of one.

    Attributes:
        path: the folder.
        models: its readable EPContext models, in the group's order if there is a group.
        unreadable: (file, why) of models that cannot be read.
        plain: `.onnx` files without an EPContext node that were not asked for.
        entries: all entries of the folder, without golden inputs and outputs.
        whole: the whole folder is checked, not only some of its models.
        group: the manifest's group; None if unknown.
        providers: the EPs that accept the sources of the nodes.
        data: folders of external data, by model, if it is in another folder.
    """

    path: Path
    models: tuple[ContextModel, ...]
    unreadable: tuple[tuple[str, str], ...]
    plain: tuple[str, ...]
    entries: tuple[str, ...]
    whole: bool
    group: ModelGroup | None
    providers: Providers
    data: Mapping[str, Path] = field(default_factory=dict)

    def data_folder(self, model: ContextModel) -> Path:
        """Return the folder of a model's external data."""
        return self.data.get(model.file, self.path)

    @property
    def ours(self) -> bool:
        """Return whether epctx made the folder: it has sums, or a model that epctx made."""
        return SUMS in self.entries or any(model.ours for model in self.models)

    def load(self, model: ContextModel) -> onnx.ModelProto:
        """Read a model again, with its payloads. Raises Unreadable."""
        return read_proto(self.path / model.file)


class Policy(Protocol):
    """Requirement on a folder. Policies are applied one by one, in a fixed order."""

    @property
    def name(self) -> PolicyName:
        """Name of the policy in findings."""
        ...

    def check(
        self, folder: GroupFolder, earlier: Sequence[Finding]
    ) -> Iterator[Finding | OutputNumbers]:
        """Check a folder.

        Args:
            folder: folder to check.
            earlier: findings of earlier policies; no file that failed there is loaded.
        """
        ...


def open_folder(
    path: Path,
    *,
    providers: Providers,
    group: ModelGroup | None = None,
    models: Sequence[str] | None = None,
    data: Mapping[str, Path] | None = None,
) -> GroupFolder:
    """Summarize the models of a folder.

    Args:
        path: the folder.
        providers: the EPs of the models.
        group: the manifest's group: its models come first, in its order, also without EPContext
            nodes.
        models: names of the model files to read; None for the whole folder.
        data: folders of external data, by model, if it is in another folder.

    Raises:
        ModelError: `path` is not a readable folder.
    """
    with ModelError.if_refused(
        "cannot be read as a group folder",
        file=str(path),
        remedy="name a folder that `epctx build` made, or a model",
    ):
        listed = paths.entries(path)
    entries = [e for e in listed if not e.startswith(f"{GOLDEN}/") and e != SIGNATURE]
    group_files = [context_file(model.name) for model in group.models] if group else []
    onnx_files = [name for name in entries if "/" not in name and name.endswith(".onnx")]
    names = [n for n in group_files if n in onnx_files]
    names += [n for n in onnx_files if n not in group_files]
    if models is not None:
        names = list(models)
    pieces = group is not None and group.pieces is not None
    readable: list[ContextModel] = []
    unreadable: list[tuple[str, str]] = []
    plain: list[str] = []
    for name in names:
        try:
            model = summarize(name, read_proto(path / name), pieces=pieces)
        except Unreadable as error:
            unreadable.append((name, str(error)))
            continue
        compiled = bool(model.nodes or model.broken)
        if compiled or model.ours or name in group_files or models is not None:
            readable.append(model)
        else:
            plain.append(name)
    return GroupFolder(
        path=path,
        models=tuple(readable),
        unreadable=tuple(unreadable),
        plain=tuple(plain),
        entries=tuple(entries),
        whole=models is None,
        group=group,
        providers=providers,
        data=data or {},
    )


def read_proto(path: Path) -> onnx.ModelProto:
    """Read a model without the bytes of its weights (`graph.serde.reader`).

    Raises:
        Unreadable: the model cannot be read, for any reason.
    """
    reason = paths.missing(path.parent, path.name)
    if reason is not None:
        raise Unreadable(reason)
    try:
        return reader.read(path)
    except ModelError as error:
        raise Unreadable(error.reason) from error


def summarize(file: str, model: onnx.ModelProto, *, pieces: bool = False) -> ContextModel:
    """Summarize a model, for the policies to keep while they read others.

    Args:
        pieces: its manifest asks for pieces. Otherwise the cuts in its metadata do not count.
    """
    nodes: list[EPContextNode] = []
    broken: list[tuple[str, str]] = []
    for proto in context_nodes(model):
        node = read_node(proto)
        if isinstance(node, str):
            broken.append((proto.name, node))
            continue
        if node.context_path is None and node.ep_cache_context is not None:
            node = replace(node, ep_cache_context=node.ep_cache_context[:64])
        nodes.append(node)
    contexts = [node.context_path for node in nodes]
    return ContextModel(
        file=file,
        producer=model.producer_name,
        nodes=tuple(nodes),
        broken=tuple(broken),
        inputs=graph_inputs.specs(model),
        outputs=tuple(info.name for info in model.graph.output),
        contexts=tuple(dict.fromkeys(path for path in contexts if path is not None)),
        data=tuple(dict.fromkeys(reader.location(t) for t in reader.external_tensors(model))),
        metadata={entry.key: entry.value for entry in model.metadata_props},
        cuts=epcontext.cuts(model) if pieces else None,
    )


def read_node(proto: onnx.NodeProto) -> EPContextNode | str:
    """Return an EPContext node, or the reason why its attributes cannot be read."""
    try:
        node = EPContextNode.from_proto(proto)
        _ = node.context_path
    except InvalidGraph as error:
        return f"{error.what}: {error.why}"
    return node


def context_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The EPContext nodes of a model, in bodies of control flow too."""
    return (node for node in protos.nodes(model) if epcontext.is_epcontext(node))


def sharing_sets(folder: GroupFolder) -> list[tuple[ContextModel, ...]]:
    """Return the sets of models that share a context, in load order; single models come last.

    The sets are the manifest's sharing groups. Without a manifest, models that refer to the same
    binary share; the model that the binary is named after comes first.
    """
    by_file = {model.file: model for model in folder.models}
    if folder.group is not None:
        listed = [
            tuple(by_file[f] for f in map(context_file, members) if f in by_file)
            for members in folder.group.sharing_groups.values()
        ]
    else:
        listed = _by_binary(folder.models)
    shared = [models for models in listed if len(models) > 1]
    shared_files = {model.file for models in shared for model in models}
    return shared + [(model,) for model in folder.models if model.file not in shared_files]


def _by_binary(models: Sequence[ContextModel]) -> list[tuple[ContextModel, ...]]:
    sets: list[tuple[set[str], list[ContextModel]]] = []
    for model in models:
        binaries, members = set(model.contexts), [model]
        apart = []
        for theirs, others in sets:
            if theirs & binaries:
                binaries, members = binaries | theirs, [*others, *members]
            else:
                apart.append((theirs, others))
        sets = [*apart, (binaries, members)]
    return [tuple(sorted(members, key=_names_binary)) for _, members in sets]


def _names_binary(model: ContextModel) -> tuple[bool, str]:
    names = (PurePosixPath(path).name for path in model.contexts)
    return not any(name.startswith(f"{model.stem}_") for name in names), model.file
