"""ONNX files read without their weights.

`read` and `read_mapped` leave the raw data of large tensors in the file. verify and inspect need no
more, whatever the size of the model.

`read_source` also checks every reference to external data. After it, every tensor of at least
`INLINE` bytes, whether its data is in the file or beside it, is external in the proto and stands
for an entry of `weights`; smaller ones hold their data. So onnx's checker, inliner and shape
inference, which copy protos, cost the same for any weights.
"""

from __future__ import annotations

import codecs
import math
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs
from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import ModelError
from epctx.files.regular import absent
from epctx.graph.serde import protos, wire
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


_HEAD: Final = 512
"""Bytes at the start of a file that show its kind."""

_LOOKS_LIKE: Final[tuple[tuple[int, bytes, str, str], ...]] = (
    (0, b"version https://git-lfs", "a Git LFS pointer", "run `git lfs pull`"),
    (0, b"PK\x03\x04", "a zip archive", "unpack it, and name the .onnx file in it"),
    (0, b"\x1f\x8b", "a gzip archive", "unpack it"),
    (4, b"ORTM", "a model in ONNX Runtime's own format", "name the .onnx file it was made from"),
    (4, b"TFL3", "a TensorFlow Lite model", "convert it to ONNX"),
    (0, b"\x89HDF", "an HDF5 file", "convert it to ONNX"),
    (0, b"\x80\x02", "a Python pickle", "export the model to ONNX"),
    (0, b"<?xml", "XML", "name the .onnx file it was made from"),
    (0, b"<!DOCTYPE", "a web page", "download the file itself"),
    (0, b"<html", "a web page", "download the file itself"),
    (0, b"{", "JSON", "name an .onnx file"),
)


def open_model(path: Path) -> DataFile:
    """Open a file as a model, without looking at its content.

    Raises:
        ModelError: the file is missing, not regular, or cannot be read.
    """
    try:
        return DataFile.open(path)
    except ModelError:
        if os.path.isdir(path):  # noqa: PTH112 - never raises
            raise _folder(path) from None
        if not os.path.exists(path):  # noqa: PTH110 - never raises
            raise absent(path) from None
        raise


def _folder(path: Path) -> ModelError:
    names = sorted(p.name for p in path.glob("*.onnx"))
    return ModelError(
        "is a folder",
        file=str(path),
        remedy=f"name a model in it: {', '.join(names[:5])}" if names else "name an .onnx file",
        code=Code.NOT_REGULAR,
    )


def parse(
    file: DataFile, *, threshold: int, location: str, where: str
) -> tuple[onnx.ModelProto, tuple[wire.Span, ...]]:
    """Parse a file without the raw data of its large tensors, as `wire.strip` leaves it.

    Raises:
        ModelError: it is not a model, or would take far more memory than the file has bytes.
    """
    try:
        data, spans = wire.strip(file.view(), threshold=threshold, location=location)
        return onnx.ModelProto.FromString(data), spans
    except wire.TooLarge as error:
        raise ModelError(
            str(error), where=where, remedy=error.limit.remedy, code=Code.MODEL_TOO_LARGE
        ) from error
    except (wire.Malformed, DecodeError) as error:
        raise not_onnx(file, str(error), where) from error


def not_onnx(file: DataFile, reason: str, where: str) -> ModelError:
    """Return the error of a file that is not a model; it names the kind that the file looks like.

    Args:
        reason: reason of the parser.
        where: the file's name for the user.
    """
    head = bytes(file.view(0, min(file.size, _HEAD)))
    if not head:
        return ModelError(
            "is empty",
            where=where,
            remedy="the export or the download failed: repeat it",
            code=Code.MODEL_BROKEN,
        )
    for offset, magic, kind, remedy in _LOOKS_LIKE:
        if head[offset:].startswith(magic):
            return ModelError(
                f"is {kind}, not an ONNX model", where=where, remedy=remedy, code=Code.MODEL_BROKEN
            )
    if _is_text(head):
        return ModelError(
            "is text, not an ONNX model",
            where=where,
            remedy="name an .onnx file (protobuf)",
            code=Code.MODEL_BROKEN,
        )
    return ModelError(
        "is not an ONNX model, or is damaged",
        where=where,
        why=reason,
        remedy="copy or export it again, and compare its size",
        code=Code.MODEL_BROKEN,
    )


def _is_text(head: bytes) -> bool:
    """Tell whether bytes are UTF-8, perhaps cut in a character, without control characters."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\t\n\r\f" for character in text)


def require_utf8(model: onnx.ModelProto, *, where: str) -> None:
    """Raise ModelError for a name, symbol or piece of metadata that is not UTF-8.

    ONNX demands UTF-8. protobuf does not check it, and gives bytes in place of such a text. So it
    is checked once, at load, for all texts that later stages read.
    """
    for what, texts in _texts(model):
        try:
            "".join(texts)  # the quickest way to ask whether all are texts
        except TypeError:
            broken = next(text for text in texts if not isinstance(text, str))
            raise ModelError.broken(f"the {what} {broken!r} is not UTF-8", where=where) from None


def _texts(model: onnx.ModelProto) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield groups of texts, each with a description in words."""
    yield "domain of the model", (model.domain,)
    yield "producer of the model", (model.producer_name, model.producer_version)
    yield "metadata of the model", _metadata(model)
    yield "domain of an opset import", [each.domain for each in model.opset_import]
    for function in model.functions:
        yield "name of a function", (function.name, function.domain, function.overload)
        yield "documentation of a function", (function.doc_string, *_metadata(function))
        names = (*function.input, *function.output, *function.attribute)
        yield "name of a function's value", names
        yield "domain of an opset import", [each.domain for each in function.opset_import]
        yield from _nodes(function.node)
        yield from _attributes(function.attribute_proto)
    for graph in protos.graphs(model):
        yield from _graph(graph)


def _graph(graph: onnx.GraphProto) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the texts of a graph, but not of graphs in it."""
    yield "name of a graph", (graph.name, graph.doc_string, *_metadata(graph))
    for annotation in graph.quantization_annotation:
        entries = annotation.quant_parameter_tensor_names
        pairs = [text for entry in entries for text in (entry.key, entry.value)]
        yield "quantization annotation", (annotation.tensor_name, *pairs)
    for value in chain(graph.input, graph.output, graph.value_info):
        yield "name of a value", (value.name, value.doc_string, *_metadata(value))
        yield "denotation of a value", (value.type.denotation,)
        dimensions = protos.dimensions(value.type)
        symbols = [text for each in dimensions for text in (each.dim_param, each.denotation)]
        yield "symbolic dimension", symbols
    for tensor in graph.initializer:
        yield from _tensor(tensor)
    for sparse in graph.sparse_initializer:
        yield from _sparse(sparse)
    yield from _nodes(graph.node)


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, Sequence[str]]]:
    for node in nodes:
        yield "name of a value", (*node.input, *node.output)
        yield "name of a node", (node.name, node.op_type, node.domain, node.overload)
        yield "documentation of a node", (node.doc_string, *_metadata(node))
        if node.attribute:
            yield from _attributes(node.attribute)


def _attributes(
    attributes: Iterable[onnx.AttributeProto],
) -> Iterator[tuple[str, Sequence[str]]]:
    for attribute in attributes:
        names = (attribute.name, attribute.ref_attr_name, attribute.doc_string)
        yield "name of an attribute", names
        for tensor in protos.tensors_of(attribute):
            yield from _tensor(tensor)
        for sparse in protos.sparse_tensors_of(attribute):
            yield from _sparse(sparse)


def _sparse(sparse: onnx.SparseTensorProto) -> Iterator[tuple[str, Sequence[str]]]:
    yield from _tensor(sparse.values)
    yield from _tensor(sparse.indices)


def _tensor(tensor: onnx.TensorProto) -> Iterator[tuple[str, Sequence[str]]]:
    yield "name of a tensor", (tensor.name, tensor.doc_string, *_metadata(tensor))
    entries = [text for entry in tensor.external_data for text in (entry.key, entry.value)]
    yield "entry of external data", entries


def _metadata(
    owner: onnx.ModelProto
    | onnx.FunctionProto
    | onnx.GraphProto
    | onnx.NodeProto
    | onnx.ValueInfoProto
    | onnx.TensorProto,
) -> list[str]:
    return [text for entry in owner.metadata_props for text in (entry.key, entry.value)]


_THRESHOLD: Final = 1 << 12
_INSIDE: Final = f"inside {secrets.token_hex(16)}"
"""Location of a tensor whose data was left out here; no file can know it."""


class BareModel(Struct, frozen=True, kw_only=True, eq=False):
    """A model without its large tensors' raw data, and the mapped file with that data."""

    proto: onnx.ModelProto
    file: DataFile
    spans: tuple[wire.Span, ...]

    def raw(self, tensor: onnx.TensorProto) -> memoryview:
        """Return raw data of a tensor of this model; empty if it is in a typed field or another
        file.

        Data that was left out is not copied.
        """
        if tensor.data_location == onnx.TensorProto.EXTERNAL and not is_external(tensor):
            index = next(int(e.value) for e in tensor.external_data if e.key == "offset")
            return self.file.view(self.spans[index].offset, self.spans[index].length)
        return memoryview(tensor.raw_data)


def read(path: Path) -> onnx.ModelProto:
    """Read a model from a regular file, without raw data of 4096 bytes and more.

    Such a tensor looks like an external one; `is_external` tells them apart. Embedded context
    payloads are read. Raises ModelError as `read_mapped`.
    """
    return read_mapped(path).proto


def read_mapped(path: Path) -> BareModel:
    """Read a model as `read`, with a view of the data that was left out.

    Raises:
        ModelError: the file is missing, not regular, beyond 2 GB, not an ONNX model, or has names
            that are not UTF-8.
    """
    file = open_model(path)
    if file.size > wire.LARGEST:
        raise ModelError(
            f"has {file.size} bytes, beyond the 2 GB that protobuf can hold",
            file=str(path),
            remedy="build it with `embed_mode: 0` or `external_initializers`",
            code=Code.MODEL_TOO_LARGE,
        )
    model, spans = parse(file, threshold=_THRESHOLD, location=_INSIDE, where=str(path))
    if not model.HasField("graph") or not model.opset_import:
        raise not_onnx(file, "it has no graph or no opset imports", str(path))
    require_utf8(model, where=str(path))
    return BareModel(proto=model, file=file, spans=spans)


def is_external(tensor: onnx.TensorProto) -> bool:
    """Tell whether a tensor's data is in another file."""
    return tensor.data_location == onnx.TensorProto.EXTERNAL and location(tensor) != _INSIDE


def external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield tensors, also of attributes and sparse ones, whose data is in other files."""
    yield from filter(is_external, protos.tensors(model))
    for sparse in protos.sparse_tensors(model):
        yield from filter(is_external, (sparse.values, sparse.indices))


def location(tensor: onnx.TensorProto) -> str:
    """Return the location in an external tensor; "" if it has none."""
    return next((e.value for e in tensor.external_data if e.key == "location"), "")


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
        """Return the range of an external tensor of `proto`."""
        return self.weights[next(int(e.value) for e in tensor.external_data if e.key == "offset")]

    def tensor(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        """Return onnx_ir's form of a tensor of `proto`, mapped if it is one of `weights`."""
        import onnx_ir as ir

        from epctx.graph.weights.tensors import MappedTensor

        if not isinstance(tensor, ir.ExternalTensor) or isinstance(tensor, MappedTensor):
            return tensor
        reference = self.weights[tensor.offset or 0]
        return MappedTensor.like(tensor, reference.file, reference.offset)


def read_source(file: DataFile, folder: DataFolder, *, where: str) -> OnnxFile:
    """Parse a model, and check every reference to external data.

    Raises:
        ModelError: not an ONNX model; a tensor's data is missing, outside, or of another size.
    """
    token = secrets.token_hex(16)  # no file can have guessed it
    proto, spans = parse(file, threshold=INLINE, location=token, where=where)
    if not proto.HasField("graph") or not (proto.ir_version or proto.opset_import):
        raise not_onnx(file, "it has no graph", where)

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
    """Refuse a tensor inside the model with more or fewer elements than its shape has.

    The checker accepts more, ONNX Runtime does not. Without a data location, raw_data counts if it
    is there, else the field of the type.
    """
    if tensor.HasField("raw_data"):
        _require_size(tensor, len(tensor.raw_data), where=where)
        return
    require_dimensions(tensor, where=f"{where}: tensor {tensor.name!r}")
    try:
        elements = len(getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type)))
    except (ValueError, KeyError):
        return  # a type that does not exist: the checker reports it
    count = math.prod(tensor.dims)
    size = bits(tensor.data_type)
    if tensor.data_type in (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128):
        count *= 2
    elif size in (2, 4):  # packed, a byte an element
        count = -(-count * size // 8)
    if elements != count:
        what = f"has {elements} elements, its type and shape need {count}"
        raise ModelError.broken(what, where=f"{where}: tensor {tensor.name!r}")


def _require_size(tensor: onnx.TensorProto, length: int, *, where: str) -> None:
    where = f"{where}: tensor {tensor.name!r}"
    size = byte_size(tensor, where=where)
    if length != size:
        what = f"has {length} bytes of raw data, its type and shape need {size}"
        raise ModelError.broken(what, where=where)
