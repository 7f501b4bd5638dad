"""Models without the bytes of their weights: what verify and inspect read, whatever the size."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import onnx
from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import ModelError
from epctx.graph.serde import opening, protos, texts, wire
from epctx.graph.weights.data_file import DataFile

_THRESHOLD: Final = 1 << 12
_INSIDE: Final = f"inside {secrets.token_hex(16)}"
"""`location` of a tensor whose data was left out here; no file can know it."""


class BareModel(Struct, frozen=True, kw_only=True, eq=False):
    """A model without its large tensors' raw data, and the mapped file that this is in."""

    proto: onnx.ModelProto
    file: DataFile
    spans: tuple[wire.Span, ...]

    def raw(self, tensor: onnx.TensorProto) -> memoryview:
        """Raw data of a tensor of this model; empty where it is in a typed field or another file.

        No copy is made of what was left out.
        """
        if tensor.data_location == onnx.TensorProto.EXTERNAL and not is_external(tensor):
            index = next(int(e.value) for e in tensor.external_data if e.key == "offset")
            return self.file.view(self.spans[index].offset, self.spans[index].length)
        return memoryview(tensor.raw_data)


def read(path: Path) -> onnx.ModelProto:
    """Read a model from a regular file, without raw data of 4096 bytes and more.

    Such a tensor looks like an external one: `is_external` tells it from those whose data really
    is in another file. Embedded context payloads are read.

    Raises:
        ModelError: as `read_mapped`.
    """
    return read_mapped(path).proto


def read_mapped(path: Path) -> BareModel:
    """As `read`, with a view of what was left out.

    Raises:
        ModelError: the file is missing, no regular file, beyond 2 GB, or holds no ONNX model, or
            one with names that are not UTF-8.
    """
    file = opening.open_model(path)
    if file.size > wire.LARGEST:
        raise ModelError(
            f"has {file.size} bytes, beyond the 2 GB that protobuf can hold",
            file=str(path),
            remedy="build it with `embed_mode: 0` or `external_initializers`",
            code=Code.MODEL_TOO_LARGE,
        )
    model, spans = opening.parse(file, threshold=_THRESHOLD, location=_INSIDE, where=str(path))
    if not model.HasField("graph") or not model.opset_import:
        raise opening.not_onnx(file, "it has no graph or no opset imports", str(path))
    texts.require_utf8(model, where=str(path))
    return BareModel(proto=model, file=file, spans=spans)


def is_external(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor's data is in another file."""
    return tensor.data_location == onnx.TensorProto.EXTERNAL and location(tensor) != _INSIDE


def external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The tensors, those of attributes and sparse ones too, whose data is in other files."""
    yield from filter(is_external, protos.tensors(model))
    for sparse in protos.sparse_tensors(model):
        yield from filter(is_external, (sparse.values, sparse.indices))


def location(tensor: onnx.TensorProto) -> str:
    """Where an external tensor says its data is; "" if it does not."""
    return next((e.value for e in tensor.external_data if e.key == "location"), "")
