"""A `.onnx` file read without its weights: a proto of what is small, and where the rest lies.

After `read`, every tensor of at least `INLINE` bytes, whether its data is in the file or beside
it, is external in the proto and stands for an entry of `weights`; smaller ones hold their data.
So onnx's checker, inliner and shape inference, which copy protos, cost the same for any weights.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import onnx
from msgspec import Struct

from epctx.errors import ModelError
from epctx.graph.serde import opening, protos
from epctx.graph.weights.data_file import DataFile
from epctx.graph.weights.external_data import (
    DataFolder,
    Reference,
    bits,
    byte_size,
    require_dimensions,
)

if TYPE_CHECKING:
    import onnx_ir as ir

INLINE: Final = 1024
"""Tensors of fewer bytes stay in the proto: shapes, axes, scalars, which inference reads."""
STAND_IN: Final = "weights"
"""Location of every external tensor in the proto; its offset is the index in `weights`."""


class OnnxFile(Struct, frozen=True, kw_only=True):
    """A model file without its weights.

    Attributes:
        proto: the model; its external tensors are indices of `weights`.
        weights: a checked range for each of them.
    """

    proto: onnx.ModelProto
    weights: Sequence[Reference]

    def reference(self, tensor: onnx.TensorProto) -> Reference:
        """Where the bytes of an external tensor of `proto` are."""
        return self.weights[next(int(e.value) for e in tensor.external_data if e.key == "offset")]

    def tensor(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        """What onnx_ir made of a tensor of `proto`, mapped if it is one of `weights`."""
        import onnx_ir as ir

        from epctx.graph.weights.mapped import MappedTensor

        if not isinstance(tensor, ir.ExternalTensor) or isinstance(tensor, MappedTensor):
            return tensor
        reference = self.weights[tensor.offset or 0]
        return MappedTensor.like(tensor, reference.file, reference.offset)


def read(file: DataFile, folder: DataFolder, *, where: str) -> OnnxFile:
    """Parse a model, and check every reference to external data.

    Raises:
        ModelError: no ONNX model; a tensor whose data is missing, outside, or of another size.
    """
    token = secrets.token_hex(16)  # no file can have guessed it
    proto, spans = opening.parse(file, threshold=INLINE, location=token, where=where)
    if not proto.HasField("graph") or not (proto.ir_version or proto.opset_import):
        raise opening.not_onnx(file, "it has no graph", where)

    def resolve(tensor: onnx.TensorProto) -> Reference:
        keys = {entry.key: entry.value for entry in tensor.external_data}
        if keys.get("location") != token:
            return folder.resolve(tensor)
        span = spans[int(keys["offset"])]
        _require_size(tensor, span.length, where=where)
        return Reference(file=file, offset=span.offset, length=span.length)

    weights: list[Reference] = []
    for tensor in protos.tensors(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            _require_whole(tensor, where=where)
            continue
        if tensor.HasField("raw_data"):
            what = f"tensor {tensor.name!r} has raw_data and external data"
            raise ModelError.broken(what, where=where)
        reference = resolve(tensor)
        del tensor.external_data[:]
        if reference.length < INLINE:
            tensor.raw_data = reference.read()
            tensor.ClearField("data_location")
        else:
            tensor.external_data.add(key="location", value=STAND_IN)
            tensor.external_data.add(key="offset", value=str(len(weights)))
            weights.append(reference)
    for sparse in protos.sparse_tensors(proto):
        for part in (sparse.values, sparse.indices):
            if part.data_location == onnx.TensorProto.EXTERNAL:
                part.raw_data = resolve(part).read()
                part.ClearField("data_location")
                del part.external_data[:]
    return OnnxFile(proto=proto, weights=weights)


def _require_whole(tensor: onnx.TensorProto, *, where: str) -> None:
    """A tensor that is inside the model has as many elements as its shape: no fewer, no more.

    The checker lets more pass, ONNX Runtime does not. Without a data location, raw_data counts
    if it is there, else the field of the type.
    """
    if tensor.HasField("raw_data"):
        _require_size(tensor, len(tensor.raw_data), where=where)
        return
    require_dimensions(tensor, where=f"{where}: tensor {tensor.name!r}")
    try:
        found = len(getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type)))
    except (ValueError, KeyError):
        return  # a type that does not exist: the checker says it
    count = math.prod(tensor.dims)
    size = bits(tensor.data_type)
    if tensor.data_type in (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128):
        count *= 2
    elif size in (2, 4):  # packed, a byte an element
        count = -(-count * size // 8)
    if found != count:
        what = f"has {found} elements, its type and shape need {count}"
        raise ModelError.broken(what, where=f"{where}: tensor {tensor.name!r}")


def _require_size(tensor: onnx.TensorProto, length: int, *, where: str) -> None:
    where = f"{where}: tensor {tensor.name!r}"
    size = byte_size(tensor, where=where)
    if length != size:
        what = f"has {length} bytes of raw data, its type and shape need {size}"
        raise ModelError.broken(what, where=where)
