"""Files that a generating session reads (a partition's model) and writes (EPContext model,
binaries).

EPs hash the string of the model's path, and the model's names, producer and documentation, into
node names, graph names and bytes (real-eps.md section 1). So the file's name depends only on the
manifest's model name and prefix, and everything outside the graph is removed from the model.

This module reads the session's output back: an EPContext model that replaces the partition, and
context binaries. It checks that each binary exists and belongs to the nodes that refer to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Final

import onnx_ir as ir
from msgspec import Struct, field

from epctx.errors import CompileError, ModelError, StorageError
from epctx.files.digest import CHUNK, Buffer, Digest
from epctx.files.outputs import OwnFile
from epctx.graph import epcontext
from epctx.graph.dataflow import captured, subgraphs
from epctx.graph.epcontext import EPContextNode, Payload
from epctx.graph.model import Partition
from epctx.graph.serde import canonical
from epctx.graph.serde.data_files import ALIGNMENT
from epctx.graph.weights import tensors
from epctx.graph.weights.tensors import MappedTensor, chunks, content_digest
from epctx.providers.base import BinaryGraph, ContextBinary
from epctx.providers.onnxruntime.ep import OrtEp

_INLINE: Final = 1024
"""Size in bytes. Tensors up to this size stay in the model, since ONNX Runtime needs shapes and
scalars for shape inference."""

Place = tuple[str, int]
"""Place of a tensor's content: a file of the folder, and the offset in it."""


class Staging(Struct, kw_only=True, eq=False):
    """Writer of models into one folder. Tensor content that several models share is written once.

    Attributes:
        folder: the current folder of the process when the models are compiled.
        inside: weights stay in the model, which is then limited to 2 GB.
    """

    folder: Path
    inside: bool = False
    _places: dict[Digest, Place] = field(default_factory=dict)

    def write(self, model: ir.Model, stem: str) -> str:
        """Write `model` as `<stem>.onnx` and return that name. Changes `model`.

        Raises:
            ModelError: the model without its weights is larger than protobuf allows.
            StorageError: the disk refuses the file.
        """
        sink_captured_initializers(model)
        with StorageError.if_refused(
            f"cannot write {stem}.onnx for the execution provider",
            file=str(self.folder),
            remedy="free space in the folder for temporary files, or set TMPDIR to another",
        ):
            if not self.inside:
                with (self.folder / f"{stem}.weights").open("wb", buffering=0) as stream:
                    for value, tensor in _large(model):
                        value.const_value = self._externalize(tensor, stream, f"{stem}.weights")
            write_model(model, self.folder / f"{stem}.onnx")
        return f"{stem}.onnx"

    def _externalize(
        self, tensor: ir.TensorProtocol, stream: FileIO, location: str
    ) -> ir.ExternalTensor:
        content = content_digest(tensor)
        place = self._places.get(content)
        if place is None:
            place = self._places[content] = (location, _append(stream, tensor))
        return tensors.external(tensor, *place, tensor.nbytes, folder=self.folder)


def write_model(model: ir.Model, path: Path) -> None:
    """Write a model canonically, without anything outside the graph.

    So an EP's output depends only on the content of the graph's digest.

    Raises:
        ModelError: the model is larger than protobuf allows.
        OSError: the disk refuses the file.
    """
    model.metadata_props.clear()
    model.domain = model.model_version = None
    model.graph.name = "graph"
    try:
        pieces = canonical.chunks(model)
    except CompileError as error:
        raise ModelError(
            error.what,
            why="epctx must write this model for the execution provider",
            remedy="set `optimize: basic`, which turns constants in nodes into initializers, which "
            "may be larger; if sharing needs the weights inside the model, do not share",
        ) from error
    with path.open("wb") as stream:
        for piece in pieces:
            stream.write(piece)


def sink_captured_initializers(model: ir.Model) -> None:
    """Copy main-graph initializers into the control-flow bodies that use them.

    QNN (2.7.0) refuses a body that uses an outer initializer, and ONNX Runtime (1.31.1) does not
    write an initializer that only bodies use. Both end in INVALID_GRAPH.
    """
    for node in model.graph:
        for value in [v for v in captured(node) if v.is_initializer() and v.graph is model.graph]:
            for body in subgraphs(node):
                _sink(value, body)


def _sink(value: ir.Value, body: ir.Graph) -> None:
    own: ir.Value | None = None
    for node in body:
        for place, used in enumerate(node.inputs):
            if used is value:
                if own is None:
                    own = _copy(value, body)
                node.replace_input_with(place, own)


def _copy(value: ir.Value, body: ir.Graph) -> ir.Value:
    name = f"{value.name}/{body.name}"
    taken = set(body.initializers) | {v.name for node in body for v in node.outputs}
    while name in taken:
        name += "_"
    own = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
    body.initializers.add(own)
    return own


def _large(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if (
                tensor is not None
                and tensor.dtype != ir.DataType.STRING
                and tensor.nbytes > _INLINE
            ):
                yield value, tensor


def _append(stream: FileIO, tensor: ir.TensorProtocol) -> int:
    offset = -(-stream.tell() // ALIGNMENT) * ALIGNMENT
    stream.seek(offset)
    if isinstance(tensor, MappedTensor):
        tensor.file.copy(stream, tensor.start, tensor.nbytes)
        return offset
    for chunk in chunks(tensor):
        rest = memoryview(chunk)
        while rest:
            rest = rest[stream.write(rest) :]
    return offset


_REPORT = "report it with the model and the versions of onnxruntime and of the EP"


def read_fragment(
    path: Path, partition: Partition, sources: frozenset[str], *, provider: str
) -> ir.Model:
    """Read the model at `path`. Its weights become the source's, and its EPContext nodes get full
    types.

    Raises:
        CompileError: the model is not a valid result of a generating session of this EP.
    """
    model = ir.load(path)
    _take_source_tensors(model, partition)
    _describe_outputs(model, partition, provider=provider)
    for node in context_nodes(model):
        source = epcontext.EPContextNode.from_ir(node).source
        if source not in sources:
            raise CompileError(
                f"EPContext node {node.name!r} has the source {source!r}",
                where=f"{provider}, {path.name}",
                why=f"this execution provider's sources are {', '.join(sorted(sources))}",
                remedy=_REPORT,
            )
    return model


def context_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the EPContext nodes of a model's main graph, in its order."""
    return [node for node in model.graph if epcontext.is_epcontext(node)]


def _take_source_tensors(model: ir.Model, partition: Partition) -> None:
    """Replace ONNX Runtime's copies of the source's tensors by the source's tensors.

    So the weights of nodes that stay on the CPU are references again, and ONNX Runtime's external
    file is no longer needed.
    """
    originals = {value.name: value.const_value for value in partition.initializers}
    for name, value in model.graph.initializers.items():
        tensor = originals.get(name)
        copy = value.const_value
        if (
            tensor is not None
            and copy is not None
            and (tensor.dtype, tensor.shape) == (copy.dtype, copy.shape)
        ):
            value.const_value = tensor


def _describe_outputs(model: ir.Model, partition: Partition, *, provider: str) -> None:
    """Set the type and shape of every output; those of an EPContext node are required
    (section 14).
    """
    originals: Mapping[str | None, ir.Value] = {
        value.name: value for node in partition.nodes for value in node.outputs
    }
    for node in model.graph:
        for value in node.outputs:
            original = originals.get(value.name)
            if value.type is None and original is not None:
                value.type = original.type
            if value.shape is None and original is not None and original.shape is not None:
                value.shape = original.shape.copy()
            bare = value.name and (value.type is None or value.shape is None)
            if bare and epcontext.is_epcontext(node):
                raise CompileError(
                    f"output {value.name!r} of EPContext node {node.name!r} has no type or shape",
                    where=provider,
                    why="ONNX Runtime cannot load such a model",
                    remedy="give the source model a value_info for it, or keep the nodes around "
                    "it off the EP with `partition: {exclude: {nodes: [...]}}`",
                )


def rename_binaries(model: ir.Model, names: Mapping[str, str]) -> None:
    """Rename the binaries in the EPContext nodes that refer to them."""
    for node in context_nodes(model):
        path = epcontext.EPContextNode.from_ir(node).context_path
        if path is not None and path in names:
            node.attributes["ep_cache_context"] = ir.AttrString("ep_cache_context", names[path])


def binaries_of(model: ir.Model) -> list[str]:
    """Return the names of the binaries that the EPContext nodes refer to, each once, in order."""
    paths = (epcontext.EPContextNode.from_ir(node).context_path for node in context_nodes(model))
    return list(dict.fromkeys(path for path in paths if path is not None))


def nodes_of_context(model: ir.Model, main: ir.Node) -> list[ir.Node]:
    """Return a main node and the nodes whose graphs are in its context: all nodes up to the next
    main node.
    """
    nodes = context_nodes(model)
    members = [main]
    for node in nodes[nodes.index(main) + 1 :]:
        if epcontext.EPContextNode.from_ir(node).main_context:
            break
        members.append(node)
    return members


def left_on_cpu(model: ir.Model, nodes: Iterable[ir.Node]) -> Sequence[ir.Node]:
    """Return a partition's nodes that stayed on the CPU in the compiled fragment.

    Nodes are matched by name; nodes without a name by their outputs.
    """
    stayed = [node for node in model.graph if not epcontext.is_epcontext(node)]
    names = {node.name for node in stayed}
    outputs = {value.name for node in stayed for value in node.outputs if value.name}
    return [
        node
        for node in nodes
        if (node.name in names if node.name else any(v.name in outputs for v in node.outputs))
    ]


class Binaries:
    """The binaries of one session group and EP.

    Args:
        provider: the EP, which may know the binaries' format.
        folder: folder into which the EP's sessions write.
        first: the first model of the group, which names the binaries.

    Attributes:
        graphs: for each checked binary, its graphs by device.
    """

    def __init__(self, provider: OrtEp, folder: Path, first: str) -> None:
        self._provider = provider
        self._folder = folder
        self._first = first
        self.graphs: list[Mapping[str, Sequence[BinaryGraph]]] = []
        self._written: dict[str, str] = {}  # final name to the name given by the EP

    def name(self, fragment: ir.Model) -> None:
        """Rename the binaries that a fragment refers to, inside the fragment, to their final names.

        The first binary becomes `[first model]_[ep].bin`, with or without a prefix by the EP;
        further binaries get a number. The files are renamed when they are written out. The EPs find
        a renamed binary (real-eps.md section 14).
        """
        final_names = {written: final for final, written in self._written.items()}
        for written in binaries_of(fragment):
            if written not in final_names:
                ending = f"_{len(final_names)}" if final_names else ""
                final_names[written] = f"{self._first}{ending}_{self._provider.label}.bin"
                self._written[final_names[written]] = written
        rename_binaries(fragment, final_names)

    def collect(self, fragments: Sequence[ir.Model], *, shared: bool) -> list[ContextBinary]:
        """Return all binaries, each checked against the nodes that refer to it.

        Args:
            fragments: all fragments that the EP compiled.
            shared: the fragments' sessions share one context.

        Raises:
            CompileError: a binary is missing, does not match its nodes, or is referred to by no
                model.
        """
        nodes: dict[str, list[ir.Node]] = {}
        for fragment in fragments:
            for name in binaries_of(fragment):
                nodes.setdefault(name, []).extend(context_nodes(fragment))
        self._require_files(list(nodes), shared=shared)
        for name in nodes:
            self._provider.canonicalize(self._path(name))
        own = {name: OwnFile(self._path(name)) for name in nodes}
        for name, users in nodes.items():
            self._check(own[name].path, users)
        return [
            ContextBinary(name=name, chunks=partial(_chunks, file.path), file=file)
            for name, file in own.items()
        ]

    def check_embedded(self, fragments: Sequence[ir.Model]) -> None:
        """Check embedded contexts against their nodes, and remove their build time.

        Raises:
            CompileError: a context does not match its nodes.
        """
        for number, fragment in enumerate(fragments):
            for node in context_nodes(fragment):
                context = EPContextNode.from_ir(node)
                if context.main_context and context.ep_cache_context:
                    path = self._folder / f"{number}.embedded"
                    path.write_bytes(context.ep_cache_context)
                    if self._provider.canonicalize(path):
                        payload = Payload(path.read_bytes())
                        node.attributes["ep_cache_context"] = ir.Attr(
                            "ep_cache_context", ir.AttributeType.STRING, payload
                        )
                    self._check(path, nodes_of_context(fragment, node))

    def _check(self, path: Path, nodes: Sequence[ir.Node]) -> None:
        self._provider.check_binary(path, nodes)
        self.graphs.append(self._provider.graphs(path))

    def _require_files(self, names: Sequence[str], *, shared: bool) -> None:
        for name in names:
            path = self._path(name)
            if not path.is_file() or not path.stat().st_size:
                raise self._wrong(f"a model refers to {path.name}, which is missing or empty")
        if shared and len(names) != 1:
            raise self._wrong(
                "sessions that share one context must refer to one binary, not "
                + (", ".join(names) or "none")
            )
        stray = {path.name for path in self._folder.glob("*.bin")} - set(self._written.values())
        if stray:
            raise self._wrong(f"no model refers to {', '.join(sorted(stray))}")

    def _path(self, name: str) -> Path:
        return self._folder / self._written[name]

    def _wrong(self, why: str) -> CompileError:
        return CompileError(
            f"{self._provider.name} did not write the expected context binaries",
            where=f"session group of model {self._first}",
            why=why,
            remedy="report it with the models and the versions of onnxruntime and of the EP",
        )


def _chunks(path: Path) -> Iterator[Buffer]:
    with path.open("rb", buffering=0) as stream:
        while chunk := stream.read(CHUNK):
            yield chunk
