"""`epctx inspect`: read a model or a context binary without creating a session."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import onnx
from msgspec.structs import replace

from epctx.commands.inspect.inspection import (
    BinaryFile,
    ContextNode,
    Edge,
    Inspection,
    ModelFile,
    ShippedFile,
    Weights,
)
from epctx.error_codes import Code
from epctx.errors import EpctxError, ModelError, UsageError, VerificationError
from epctx.files import paths
from epctx.graph import epcontext
from epctx.graph import inputs as graph_inputs
from epctx.graph.epcontext import COMPATIBILITY, EPContextNode
from epctx.graph.serde import protos, reader
from epctx.graph.weights.external_data import byte_size
from epctx.providers import registry
from epctx.providers.base import HEAD_SIZE, ExecutionProvider
from epctx.verification.folder import ContextModel, context_nodes, read_node, summarize


def inspect(path: Path) -> Inspection:
    """Read a model or a context binary, as described in `api.inspect`."""
    if not path.is_file():
        raise UsageError(
            "is a folder" if path.is_dir() else "is not a regular file" if path.exists()
            else "does not exist",
            file=path.as_posix(),
            remedy="name a model or a context binary", code=Code.NO_SUCH_PATH)  # fmt: skip
    reader = _reader(path)
    if reader is not None:
        return Inspection(binary=_read_binary(path.name, path, reader))
    try:
        return Inspection(model=_model(path))
    except ModelError as error:
        raise ModelError(
            "is neither an ONNX model nor a context binary that an installed EP knows",
            file=path.as_posix(),
            why=error.why or f"it {error.what}",
            remedy="name the model that refers to it; installed EPs are "
            f"{', '.join(registry.names())}",
        ) from error


def _reader(path: Path) -> ExecutionProvider | None:
    """EP that wrote a binary, recognized by the binary's first bytes."""
    with path.open("rb") as stream:
        head = stream.read(HEAD_SIZE)
    for name in registry.names():
        try:
            provider = registry.bind(name, {})
            if provider.recognizes(head):
                return provider
        except EpctxError:
            continue
    return None


def _read_binary(name: str, path: Path, reader: ExecutionProvider | None) -> BinaryFile:
    size = path.stat().st_size
    try:
        info = None if reader is None else reader.inspect_binary(path)
        problem = "no installed EP knows its format" if info is None else None
        return BinaryFile(name=name, size=size, info=info, problem=problem)
    except EpctxError as error:
        damaged = isinstance(error, VerificationError)
        return BinaryFile(name=name, size=size, problem=error.reason, damaged=damaged)


def _binaries(
    folder: Path, contexts: Sequence[str], nodes: Sequence[EPContextNode]
) -> Iterator[BinaryFile]:
    for name in contexts:
        if paths.objection(name) is None and paths.missing(folder, name) is None:
            yield _read_binary(name, folder / name, _reader(folder / name))
    for node in nodes:
        if node.embed_mode and node.main_context and node.ep_cache_context:
            with tempfile.TemporaryDirectory(prefix="epctx-inspect-") as scratch:
                payload = Path(scratch) / "context.bin"
                payload.write_bytes(node.ep_cache_context)
                yield _read_binary(f"in node {node.name}", payload, _reader(payload))


def _model(path: Path) -> ModelFile:
    proto = reader.read(path)
    model = summarize(path.name, proto)
    contexts = list(context_nodes(proto))
    parsed = [read_node(node) for node in contexts]
    sound = [node for node in parsed if isinstance(node, EPContextNode)]
    plain = [protos.op(node) for node in protos.nodes(proto) if not epcontext.is_epcontext(node)]
    types = _types(proto)
    return ModelFile(
        name=path.name,
        size=path.stat().st_size,
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        ir_version=proto.ir_version,
        opsets={entry.domain or "ai.onnx": entry.version for entry in proto.opset_import},
        inputs=tuple(Edge(name=spec.name, type=str(spec)) for spec in model.inputs),
        outputs=tuple(_edge(name, types) for name in model.outputs),
        nodes=tuple(map(partial(_described, types), contexts, parsed)),
        operators=dict(Counter(plain).most_common()),
        weights=_weights(proto),
        compatibility={
            key.removeprefix(COMPATIBILITY): value
            for key, value in model.metadata.items()
            if key.startswith(COMPATIBILITY)
        },
        metadata={k: v for k, v in model.metadata.items() if not k.startswith(COMPATIBILITY)},
        files=tuple(_files(path, model)),
        binaries=tuple(_binaries(path.parent, model.contexts, sound)),
    )


def _described(
    types: Mapping[str, str], proto: onnx.NodeProto, node: EPContextNode | str
) -> ContextNode:
    unread = ContextNode(
        name=proto.name,
        source="",
        main_context=1,
        embed_mode=1,
        inputs=tuple(_edge(name, types) for name in proto.input if name),
        outputs=tuple(_edge(name, types) for name in proto.output if name),
    )
    if isinstance(node, str):
        return replace(unread, problem=node)
    embedded = node.ep_cache_context if node.embed_mode and node.main_context else None
    names = ("partition_name", "ep_sdk_version", "hardware_architecture", "onnx_model_filename")
    optional = {name: getattr(node, name) for name in (*names, "notes")}
    attributes = {name: value for name, value in optional.items() if value is not None}
    if node.max_size:
        attributes["max_size"] = str(node.max_size)
    return replace(
        unread,
        source=node.source or "",
        main_context=node.main_context,
        embed_mode=node.embed_mode,
        context=node.context_path,
        embedded=None if embedded is None else len(embedded),
        attributes=attributes,
        unknown=tuple(node.unknown),
    )


def _types(model: onnx.ModelProto) -> dict[str, str]:
    """Types of values, in words; includes initializers."""
    types: dict[str, str] = {}
    for graph in protos.graphs(model):
        for tensor in graph.initializer:
            types[tensor.name] = f"{protos.kind(tensor.data_type)}{list(tensor.dims)}"
        for info in (*graph.value_info, *graph.input, *graph.output):
            types[info.name] = str(graph_inputs.spec(info))
    return types


def _edge(name: str, types: Mapping[str, str]) -> Edge:
    return Edge(name=name, type=types.get(name, "?"))


def _weights(model: onnx.ModelProto) -> Weights:
    inside = count = 0
    external: Counter[str] = Counter()
    for graph in protos.graphs(model):
        for tensor in graph.initializer:
            count += 1
            size = _size(tensor)
            if reader.is_external(tensor):
                external[reader.location(tensor)] += size
            else:
                inside += size
    return Weights(tensors=count, inside=inside, external=dict(sorted(external.items())))


def _size(tensor: onnx.TensorProto) -> int:
    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    try:
        return byte_size(tensor, where=tensor.name)
    except ModelError:
        return 0


def _files(path: Path, model: ContextModel) -> Iterator[ShippedFile]:
    yield ShippedFile(name=path.name, kind="model", size=path.stat().st_size)
    for name in model.contexts:
        yield _shipped(path.parent, name, "context binary")
    for name in sorted(model.data):
        yield _shipped(path.parent, name, "external data")


def _shipped(
    folder: Path, name: str, kind: Literal["context binary", "external data"]
) -> ShippedFile:
    problem = paths.objection(name) or paths.missing(folder, name)
    if problem is not None:
        return ShippedFile(name=name, kind=kind, problem=problem)
    return ShippedFile(name=name, kind=kind, size=(folder / name).stat().st_size)
