"""One serialization for one graph (design section 6, "Dumped ONNX is canonical").

The same bytes come out whatever order nodes, initializers, attributes and metadata are listed in,
whichever field a tensor's data was in, and whether it is in memory or mapped:

- nodes in the order of `ordering`; attributes, initializers, value_info, opset imports, metadata
  and quantization annotations sorted by name;
- tensors as raw data; those that are external and not mapped keep their reference;
- only opset imports in use, the lowest IR version that has all used features (so that an older ONNX
  Runtime on a device reads it), producer name `epctx` and no producer version;
- no doc strings; no metadata but the model's own, since exporters put stack traces with paths into
  the metadata of nodes; no device configurations; no initializers that nothing uses; no training.

None of this changes a result. `digest` covers the same form, with each large tensor replaced by the
digest of its content, so two models with one digest have one serialization.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from epctx.error_codes import Code
from epctx.errors import CompileError, EpctxError
from epctx.files.digest import Buffer, Digest, of_chunks
from epctx.graph.serde import encoder, protos, types, wire
from epctx.graph.weights import tensors
from epctx.graph.weights.data_file import DataFile
from epctx.graph.weights.tensors import MappedTensor, content_digest

_LARGE: Final = 1024
"""Least bytes of tensors that are mapped if possible, and digested by content."""
_SCHEME: Final = b"epctx graph digest 1\n"
"""Version of the digest's coverage."""

_UNREADABLE: Final = (
    DecodeError,
    EpctxError,
    NotImplementedError,
    TypeError,
    ValueError,
    ir.serde.SerdeError,
)
"""Errors of reading or encoding a model that epctx cannot have written."""


def serialize(model: ir.Model) -> bytes:
    """Return the canonical bytes, in memory; for large weights use `chunks`.

    Raises:
        CompileError: the bytes exceed protobuf's 2 GB.
    """
    return b"".join(chunks(model))


def chunks(model: ir.Model) -> Iterator[Buffer]:
    """Yield the canonical bytes in pieces; mapped weights are not copied.

    The size is checked before the first piece.

    Raises:
        CompileError: the bytes exceed protobuf's 2 GB.
    """
    message = encoder.encode(model)
    if message.size > wire.LARGEST:
        raise CompileError(
            f"the model would have {message.size} bytes, more than the 2 GB of an ONNX file",
            where=model.graph.name,
            remedy="set `embed_mode: 0`, and `external_initializers` if weights are left in it",
            code=Code.OUTPUT_TOO_LARGE,
        )
    return message.chunks()


def digest(model: ir.Model) -> Digest:
    """Return BLAKE3 of everything that can change a build from the model.

    Places of weights, doc strings, metadata of nodes, orders and unused initializers do not count;
    everything in the canonical bytes does. Mapped weights are digested once for each range of a
    file.
    """
    return of_chunks(chain((_SCHEME,), encoder.encode(model, tensor_data=_content).chunks()))


def is_canonical(path: Path) -> bool:
    """Tell whether a model file has the canonical bytes of its model.

    Raises:
        ModelError: the file is missing or not a regular file.
    """
    file = DataFile.open(path)
    try:
        return _same(encoder.encode(read(file)), file)
    except _UNREADABLE:
        return False


def _same(message: wire.Message, file: DataFile) -> bool:
    if message.size != file.size:
        return False
    position = 0
    for chunk in message.chunks():
        if bytes(file.view(position, len(chunk))) != bytes(chunk):
            return False
        position += len(chunk)
    return True


def _content(message: wire.Message, tensor: ir.TensorProtocol) -> None:
    """Append a tensor's bytes to a digest, or the digest of its content if it is large."""
    if tensor.nbytes < _LARGE:
        encoder.data(message, tensor)
    else:
        message.encoded(wire.external(str(content_digest(tensor))))


def read_mapped(path: Path) -> ir.Model:
    """Return the model in a file with all weights mapped, in any file. Raises ModelError."""
    model = read(DataFile.open(path))
    files: dict[str, DataFile] = {}

    def mapped(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not isinstance(tensor, ir.ExternalTensor) or isinstance(tensor, MappedTensor):
            return tensor
        location = str(tensor.location)
        if location not in files:
            files[location] = DataFile.open(path.parent / location)
        return MappedTensor.like(tensor, files[location], tensor.offset or 0)

    tensors.replace_all(model, mapped)
    return model


def read(file: DataFile) -> ir.Model:
    """Return the model in a file that epctx wrote; large tensors in it are mapped, references to
    other files stay.
    """
    token = secrets.token_hex(16)  # no file can have guessed it
    data, spans = wire.strip(file.view(), threshold=_LARGE, location=token)
    proto = onnx.ModelProto.FromString(data)
    checksums: dict[object, str] = {}
    for each in protos.tensors(proto):
        keys = {entry.key: entry.value for entry in each.external_data}
        if "checksum" in keys:
            checksums[keys.get("location")] = keys["checksum"]
    model = types.from_proto(proto)

    def inside(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not isinstance(tensor, ir.ExternalTensor):
            return tensor
        if tensor.location != token:
            tensor.meta[encoder.CHECKSUM] = checksums.get(tensor.location)
            return tensor
        return MappedTensor.like(tensor, file, spans[tensor.offset or 0].offset)

    tensors.replace_all(model, inside)
    return model
