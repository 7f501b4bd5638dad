"""External data written: which tensors go out of a model, and into which files.

Source: spec/onnx-external-data: one file for all or one for each tensor, a size threshold,
attributes too on request, aligned offsets, an optional checksum. `basepath` is never written
(ONNX Runtime refuses it, real-eps.md section 15).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnx_ir as ir

from epctx.errors import ManifestError, StorageError
from epctx.files import paths
from epctx.files.digest import Buffer, Digest, HashingWriter
from epctx.graph.serde import canonical
from epctx.graph.serde.ordering import OrderedGraph, order
from epctx.graph.weights import tensors
from epctx.graph.weights.mapped import MappedTensor
from epctx.graph.weights.planned import PlacedTensor, PlannedFile

THRESHOLD: Final = 1024
"""Bytes from which on onnx itself moves a tensor out."""
_INFERENCE_READS: Final = 1024
"""Bytes of the largest tensor that holds a shape or the like: 128 dimensions."""
_LONGEST: Final = 100
"""Characters of a tensor's name that a file name keeps."""
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)
"""Names of devices, which are no files on Windows."""


@dataclass(frozen=True, kw_only=True)
class WrittenFile:
    """A file that was written: `name` relative to its folder, `size` in bytes, its digests."""

    name: str
    size: int
    blake3: Digest
    sha256: Digest


def place(
    model: ir.Model,
    location: str | None,
    *,
    size_threshold: int = THRESHOLD,
    attributes: bool = False,
    keep: Callable[[ir.TensorProtocol], bool] = lambda tensor: False,
) -> tuple[PlannedFile, ...]:
    """Move large tensors of a model out into planned files: the model then refers to them.

    The files are a function of the graph: tensors come in its canonical order. A content that
    several values share is there once. Tensors of strings stay, they have no external form.

    Args:
        location: the file for all of them; None: a file for each, named after it.
        size_threshold: tensors of at least so many bytes; 0: all.
        attributes: tensors in attributes too, not initializers alone.
        keep: tensors that stay, whatever their size.

    Raises:
        ManifestError: the location is no relative path inside the folder.
    """
    if location is not None and (reason := paths.fault(location)):
        raise ManifestError(
            f"{location!r} cannot be the file of external initializers",
            why=reason,
            remedy="name a file in the output folder",
        )
    files: dict[str, PlannedFile] = {}
    places: dict[object, tuple[PlannedFile, int]] = {}
    moved: set[int] = set()
    for owner, tensor in _tensors(order(model.graph), attributes=attributes):
        if tensor.dtype == ir.DataType.STRING or tensor.nbytes < size_threshold or keep(tensor):
            continue
        moved.add(id(tensor))
        if _content(tensor) not in places:
            name = paths.normalize(location) if location else _file_name(owner, files)
            file = files.setdefault(name.casefold(), PlannedFile(name))
            places[_content(tensor)] = file, file.append(tensor)

    def refer(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        return PlacedTensor(tensor, *places[_content(tensor)]) if id(tensor) in moved else tensor

    tensors.replace_all(model, refer)
    return tuple(files.values())


def write(
    model: ir.Model,
    path: Path,
    location: str | None,
    *,
    size_threshold: int = THRESHOLD,
    attributes: bool = False,
    checksum: bool = False,
) -> tuple[WrittenFile, ...]:
    """Write a model and its external data: the data files, then `path`. The model changes.

    All is streamed, and hashed in the pass that writes it. Nothing is overwritten.

    Args:
        path: the `.onnx` file; data files lie in its folder.
        location: as in `place`, with `size_threshold` and `attributes`.
        checksum: name the SHA-1 of the data file at each reference.

    Raises:
        StorageError: a file is there already, or the disk refuses.
        CompileError: what is left in the model is more than protobuf's 2 GB.
    """
    folder = path.parent
    written = []
    for file in place(model, location, size_threshold=size_threshold, attributes=attributes):
        if file.location.casefold() == path.name.casefold():
            raise _clash(path)
        target = folder / file.location
        sha1 = hashlib.sha1(usedforsecurity=False)
        chunks = _tee(file.chunks(), sha1.update) if checksum else file.chunks()
        written.append(_write(target, file.location, chunks))
        if checksum:
            file.checksum = sha1.hexdigest()
    written.append(_write(path, path.name, canonical.chunks(model)))
    return tuple(written)


def inference_may_read(tensor: ir.TensorProtocol) -> bool:
    """Whether shape inference may need the tensor's values: a shape, axes, pads, scales, a count.

    It cannot read them from external data, and ONNX Runtime then refuses the model ("Cannot parse
    data from external tensors", measured on 1.31.1), so they have to stay in it.
    """
    return len(tensor.shape) <= 1 and tensor.nbytes <= _INFERENCE_READS


def _tensors(ordered: OrderedGraph, *, attributes: bool) -> Iterator[tuple[str, ir.TensorProtocol]]:
    """Tensors in canonical order, each with a name for its file."""
    for name, value in ordered.initializers():
        if value.const_value is not None:
            yield name, value.const_value
    for node in ordered.nodes:
        for body in ordered.bodies.get(node, ()):
            yield from _tensors(body, attributes=attributes)
        for key, attribute in sorted(node.attributes.items()) if attributes else ():
            owner = f"{node.outputs[0].name if node.outputs else node.name}_{key}"
            if attribute.type == ir.AttributeType.TENSOR:
                yield owner, attribute.as_tensor()
            elif attribute.type == ir.AttributeType.TENSORS:
                yield from ((owner, tensor) for tensor in attribute.as_tensors())


def _content(tensor: ir.TensorProtocol) -> object:
    """The same for tensors whose bytes are the same range of a file, or the same object."""
    if isinstance(tensor, MappedTensor):
        return id(tensor.file), tensor.start, tensor.nbytes
    return id(tensor)


def _file_name(owner: str, taken: Iterable[str]) -> str:
    """A file name for one tensor: good on Windows too, and new in any case of its letters."""
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", owner)[:_LONGEST].strip(".") or "tensor"
    if _RESERVED.match(stem):
        stem = f"_{stem}"
    name, number = f"{stem}.data", 1
    while name.casefold() in taken:
        number += 1
        name = f"{stem}_{number}.data"
    return name


def _tee(chunks: Iterable[Buffer], update: Callable[[Buffer], object]) -> Iterator[Buffer]:
    for chunk in chunks:
        update(chunk)
        yield chunk


def _write(path: Path, name: str, chunks: Iterable[Buffer]) -> WrittenFile:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as stream:
            writer = HashingWriter(stream)
            for chunk in chunks:
                writer.write(chunk)
    except FileExistsError as error:
        raise _clash(path) from error
    except OSError as error:
        raise StorageError(
            "cannot be written",
            file=str(path),
            why=error.strerror or str(error),
            remedy="free some space, or write to another folder",
        ) from error
    return WrittenFile(name=name, size=writer.size, blake3=writer.blake3, sha256=writer.sha256)


def _clash(path: Path) -> StorageError:
    return StorageError(
        "is there already",
        file=str(path),
        remedy="write to another folder, or give the data file another name",
    )
