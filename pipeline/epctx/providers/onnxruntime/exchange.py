"""Files that a generating session reads and writes: a partition's model, and what comes of it.

The string of the model's path is hashed into node names, graph names and bytes, and so are names,
producer and documentation of the model (real-eps.md section 1). So the file has a name that only
the manifest's model name and prefix decide, and the model is stripped of all that is no graph.

What the session wrote is read back: an EPContext model in the place of the partition, and context
binaries, which are named, present, and the right ones.
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
"""Bytes of a tensor up to which it stays in the model: shapes and scalars, which ONNX Runtime
wants at hand for shape inference."""

Place = tuple[str, int]
"""Place of a tensor's content: a file of the folder, and the offset in it."""


class Staging(Struct, kw_only=True, eq=False):
    """Models written into one folder; content that several of them share is written once.

    Attributes:
        folder: is the current folder of the process when the models are compiled.
        inside: weights stay in the model, which then has at most 2 GB.
    """

    folder: Path
    inside: bool = False
    _places: dict[Digest, Place] = field(default_factory=dict)

    def write(self, model: ir.Model, stem: str) -> str:
        """Write `model`, which changes, as `<stem>.onnx`; return that name.

        Raises:
            ModelError: without its weights it is larger than protobuf allows.
            StorageError: the disk refuses.
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
    """Write a model canonically, and without what is no part of the graph.

    So what an EP makes of it depends on nothing but what is in the graph's digest.

    Raises:
        ModelError: it is larger than protobuf allows.
        OSError: the disk refuses.
    """
    model.metadata_props.clear()
    model.domain = model.model_version = None
    model.graph.name = "graph"
    try:
        pieces = canonical.chunks(model)
    except CompileError as error:
        raise ModelError(
            error.what,
            why="as the execution provider must get it",
            remedy="with `optimize: basic`, constants in nodes become initializers, which may be "
            "larger; where sharing needs the weights inside the model, do not share",
        ) from error
    with path.open("wb") as stream:
        for piece in pieces:
            stream.write(piece)


def sink_captured_initializers(model: ir.Model) -> None:
    """Give the bodies of control flow the main graph's initializers that they use, as their own.

    QNN (2.7.0) refuses a body that uses one from outside, and ONNX Runtime (1.31.1) forgets to
    write one that only bodies use: both end in INVALID_GRAPH.
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
    """Read the model at `path`: its weights are the source's, its EPContext nodes have full types.

    Raises:
        CompileError: it is not what a generating session of this EP owes.
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
                why=f"this execution provider's are {', '.join(sorted(sources))}",
                remedy=_REPORT,
            )
    return model


def context_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the EPContext nodes of a model's main graph, in its order."""
    return [node for node in model.graph if epcontext.is_epcontext(node)]


def _take_source_tensors(model: ir.Model, partition: Partition) -> None:
    """Put the source's tensors in the place of ONNX Runtime's copies of them.

    So the weights of what stays on the CPU are references again, and nothing of ONNX Runtime's
    external file is needed any more.
    """
    known = {value.name: value.const_value for value in partition.initializers}
    for name, value in model.graph.initializers.items():
        tensor = known.get(name)
        copy = value.const_value
        if (
            tensor is not None
            and copy is not None
            and (tensor.dtype, tensor.shape) == (copy.dtype, copy.shape)
        ):
            value.const_value = tensor


def _describe_outputs(model: ir.Model, partition: Partition, *, provider: str) -> None:
    """Give every output type and shape, an EPContext node's without fail (section 14)."""
    source: Mapping[str | None, ir.Value] = {
        value.name: value for node in partition.nodes for value in node.outputs
    }
    for node in model.graph:
        for value in node.outputs:
            known = source.get(value.name)
            if value.type is None and known is not None:
                value.type = known.type
            if value.shape is None and known is not None and known.shape is not None:
                value.shape = known.shape.copy()
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
    """Let the EPContext nodes refer to their binaries by new names."""
    for node in context_nodes(model):
        path = epcontext.EPContextNode.from_ir(node).context_path
        if path is not None and path in names:
            node.attributes["ep_cache_context"] = ir.AttrString("ep_cache_context", names[path])


def binaries_of(model: ir.Model) -> list[str]:
    """Return the binaries that the EPContext nodes refer to, each once, in order."""
    paths = (epcontext.EPContextNode.from_ir(node).context_path for node in context_nodes(model))
    return list(dict.fromkeys(path for path in paths if path is not None))


def nodes_of_context(model: ir.Model, main: ir.Node) -> list[ir.Node]:
    """Return a main node and the nodes whose graphs are in its context: those until the next main
    one.
    """
    nodes = context_nodes(model)
    found = [main]
    for node in nodes[nodes.index(main) + 1 :]:
        if epcontext.EPContextNode.from_ir(node).main_context:
            break
        found.append(node)
    return found


def left_on_cpu(model: ir.Model, nodes: Iterable[ir.Node]) -> Sequence[ir.Node]:
    """Return a partition's nodes that stayed on the CPU in what was compiled of it.

    They are known by their names; those without one by what they make.
    """
    stayed = [node for node in model.graph if not epcontext.is_epcontext(node)]
    names = {node.name for node in stayed}
    made = {value.name for node in stayed for value in node.outputs if value.name}
    return [
        node
        for node in nodes
        if (node.name in names if node.name else any(v.name in made for v in node.outputs))
    ]


class Binaries:
    """The binaries of one session group and EP.

    Args:
        provider: the EP, which may know the format.
        folder: where its sessions write.
        first: the first model of the group, which names them.

    Attributes:
        graphs: what each has for each device that it is for, once it was checked.
    """

    def __init__(self, provider: OrtEp, folder: Path, first: str) -> None:
        self._provider = provider
        self._folder = folder
        self._first = first
        self.graphs: list[Mapping[str, Sequence[BinaryGraph]]] = []
        self._written: dict[str, str] = {}  # a final name to the one that the EP gave

    def name(self, made: ir.Model) -> None:
        """Give the binaries that a fragment refers to their final names, in it.

        The first is `[first model]_[ep].bin`, with or without the prefix that the EP put before
        it; others have a number. The files follow when they are written out: the EPs find a
        renamed binary (real-eps.md section 14).
        """
        known = {written: final for final, written in self._written.items()}
        for written in binaries_of(made):
            if written not in known:
                ending = f"_{len(known)}" if known else ""
                known[written] = f"{self._first}{ending}_{self._provider.label}.bin"
                self._written[known[written]] = written
        rename_binaries(made, known)

    def collect(self, fragments: Sequence[ir.Model], *, shared: bool) -> list[ContextBinary]:
        """Return all binaries, each checked against the nodes that refer to it.

        Args:
            fragments: everything that the EP compiled.
            shared: their sessions share one context.

        Raises:
            CompileError: one is missing, or is not of these nodes; there is one too many.
        """
        nodes: dict[str, list[ir.Node]] = {}
        for made in fragments:
            for name in binaries_of(made):
                nodes.setdefault(name, []).extend(context_nodes(made))
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
        """Check embedded contexts against their nodes, and remove the time of their making.

        Raises:
            CompileError: one is not of its nodes.
        """
        for number, made in enumerate(fragments):
            for node in context_nodes(made):
                context = EPContextNode.from_ir(node)
                if context.main_context and context.ep_cache_context:
                    path = self._folder / f"{number}.embedded"
                    path.write_bytes(context.ep_cache_context)
                    if self._provider.canonicalize(path):
                        payload = Payload(path.read_bytes())
                        node.attributes["ep_cache_context"] = ir.Attr(
                            "ep_cache_context", ir.AttributeType.STRING, payload
                        )
                    self._check(path, nodes_of_context(made, node))

    def _check(self, path: Path, nodes: Sequence[ir.Node]) -> None:
        self._provider.check_binary(path, nodes)
        self.graphs.append(self._provider.graphs(path))

    def _require_files(self, names: Sequence[str], *, shared: bool) -> None:
        for name in names:
            path = self._path(name)
            if not path.is_file() or not path.stat().st_size:
                raise self._wrong(f"a model refers to {path.name}, which is missing or empty")
        if shared and len(names) != 1:
            raise self._wrong(f"the sessions that share refer to {', '.join(names) or 'none'}")
        stray = {path.name for path in self._folder.glob("*.bin")} - set(self._written.values())
        if stray:
            raise self._wrong(f"no model refers to {', '.join(sorted(stray))}")

    def _path(self, name: str) -> Path:
        return self._folder / self._written[name]

    def _wrong(self, why: str) -> CompileError:
        return CompileError(
            f"{self._provider.name} did not write the context binaries that it owes",
            where=f"session group of model {self._first}",
            why=why,
            remedy="report it with the models and the versions of onnxruntime and of the EP",
        )


def _chunks(path: Path) -> Iterator[Buffer]:
    with path.open("rb", buffering=0) as stream:
        while chunk := stream.read(CHUNK):
            yield chunk
