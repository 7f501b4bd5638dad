"""An optimized model on disk: its graph, and references to weights that stay where they are.

    graph.onnx      the graph in canonical form; weights refer to files of the record
    record.json     name, passes, digest, and size and digests of each file; no path
    places.json     paths of files outside the folder on this host, and their identities

Weights that passes made are in files beside them (`graph.passes.scratch`). Weights that no pass
touched are references to the source (digest, offset, length), never copied (design section 9).
All files but `places.json` depend on the model and the passes alone.

The graph is canonical, so that what is built from it depends on the digest alone and not on the
order in which the source lists its nodes. An optimized model goes from one worker process to
another in this form.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from epctx.errors import ModelError, StorageError
from epctx.files import paths
from epctx.files.digest import Algorithm, Digest, of_bytes
from epctx.graph.model import OptimizedModel
from epctx.graph.places import PLACES, RECORD, File, Part, Place, Record, read_record
from epctx.graph.places import read as read_places
from epctx.graph.serde import encoder, types, wire
from epctx.graph.weights import tensors
from epctx.graph.weights.data_file import DataFile
from epctx.graph.weights.tensors import MappedTensor

GRAPH = "graph.onnx"
VERSION = 1
"""Version of the format; a folder of another version is not read."""

_SCHEME = "epctx-file:"
"""Prefix of a file's index in the record, by which a tensor of graph.onnx names the file."""


def write(optimized: OptimizedModel, folder: Path) -> None:
    """Write a model to `folder`, which exists and may hold the files that its passes made.

    Raises:
        ModelError: a source was written to while it was being optimized.
        StorageError: the disk is full, or the folder cannot be written.
    """
    files: dict[DataFile, set[tuple[int, int]]] = defaultdict(set)
    indices: dict[DataFile, int] = {}

    def refer(message: wire.Message, tensor: ir.TensorProtocol) -> None:
        if not isinstance(tensor, MappedTensor):
            encoder.data(message, tensor)
            return
        index = indices.setdefault(tensor.file, len(indices))
        files[tensor.file].add((tensor.start, tensor.nbytes))
        keys = {"offset": tensor.start, "length": tensor.nbytes}
        message.encoded(wire.external(f"{_SCHEME}{index}", **keys))

    graph = b"".join(encoder.encode(optimized.model, tensor_data=refer).chunks())
    here = folder.resolve()
    places = [None if file.path.parent == here else Place.of_source(file.path) for file in files]
    for file in files:
        if file.changed():
            raise _changed(file.path)
    record = Record(
        version=VERSION,
        name=optimized.name,
        digest=str(optimized.digest),
        graph=str(of_bytes(graph)),
        passes=optimized.passes,
        files=tuple(_describe(file, parts, here) for file, parts in files.items()),
    )
    with StorageError.if_refused(
        "the optimized model cannot be written",
        file=str(folder),
        remedy="free some space, or choose another folder",
    ):
        (folder / GRAPH).write_bytes(graph)
        (folder / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(record)))
        (folder / PLACES).write_bytes(msgspec.json.format(msgspec.json.encode(places)))


def read(folder: Path) -> OptimizedModel:
    """Read a model that `write` wrote; its weights are mapped.

    A file outside the folder is not hashed if its stat is the recorded one.

    Raises:
        ModelError: a source is gone, or is no longer the one that was optimized.
        StorageError: the folder is incomplete or damaged.
    """
    record, places, graph = _parse(folder)
    files = [_open(folder, *each) for each in zip(record.files, places, strict=True)]
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(graph)
        model = types.from_proto(proto)
    except (DecodeError, ValueError) as error:
        raise _damaged(folder / GRAPH, str(error)) from error

    def mapped(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not isinstance(tensor, ir.ExternalTensor):
            return tensor
        location = str(tensor.location)
        if not location.startswith(_SCHEME):
            return tensor
        index = location.removeprefix(_SCHEME)
        if not index.isdecimal() or int(index) >= len(files):
            raise _damaged(folder / GRAPH, f"it refers to {location!r}")
        weight = MappedTensor.like(tensor, files[int(index)], tensor.offset or 0)
        if not 0 <= weight.start <= weight.file.size - weight.nbytes:
            raise _damaged(folder / GRAPH, f"{weight.name!r} reaches beyond {location!r}")
        return weight

    tensors.replace_all(model, mapped)
    return OptimizedModel(
        name=record.name, model=model, passes=record.passes, digest=_digest(record.digest)
    )


def _parse(folder: Path) -> tuple[Record, Sequence[Place | None], bytes]:
    try:
        record, places = read_record(folder), read_places(folder)
        graph = (folder / GRAPH).read_bytes()
    except OSError as error:
        # The error has no file name if the call was given none.
        words = [str(each) for each in (error.filename, error.strerror) if each is not None]
        raise _damaged(folder, ": ".join(words)) from error
    except msgspec.MsgspecError as error:
        raise _damaged(folder, str(error)) from error
    if record.version != VERSION:
        raise _damaged(folder / RECORD, f"version {record.version}, not {VERSION}")
    if len(places) != len(record.files):
        raise _damaged(folder / PLACES, "it belongs to another record")
    if of_bytes(graph) != _digest(record.graph):
        raise _damaged(folder / GRAPH, "its digest is not the recorded one")
    return record, places, graph


def _describe(file: DataFile, parts: Iterable[tuple[int, int]], here: Path) -> File:
    return File(
        size=file.size,
        digest=str(file.digest()),
        parts=tuple(Part(o, n, str(file.part_digest(o, n))) for o, n in sorted(parts)),
        name=file.path.name if file.path.parent == here else None,
    )


def _open(folder: Path, file: File, place: Place | None) -> DataFile:
    whole = _digest(file.digest)
    parts = {(part.offset, part.length): _digest(part.digest) for part in file.parts}
    if file.name is not None:
        path = folder / file.name
        if not paths.is_bare(file.name):
            raise _damaged(path, "its name in the record leads out of the folder")
        if not path.is_file() or path.stat().st_size != file.size:
            raise _damaged(path, f"it must have {file.size} bytes")
        return DataFile.open(path, whole=whole, parts=parts)
    if place is None:
        raise _damaged(folder / PLACES, "it does not say where a source is")
    path = Path(place.path)
    if place.is_unchanged():
        return DataFile.open(path, whole=whole, parts=parts)
    if path.is_file() and path.stat().st_size == file.size:
        opened = DataFile.open(path, whole=whole, parts=parts)
        if DataFile.open(path).digest() == whole and not opened.changed():
            return opened
    raise _changed(path)


def _digest(text: str) -> Digest:
    algorithm, _, value = text.partition(":")
    algorithms: Mapping[str, Algorithm] = {"blake3": "blake3", "sha256": "sha256"}
    try:
        return Digest(algorithms[algorithm], value)
    except (KeyError, ValueError) as error:
        raise StorageError(
            f"{text!r} is not a digest", remedy="delete the folder, and build again"
        ) from error


def _changed(path: Path) -> ModelError:
    return ModelError(
        "is not the file that was optimized",
        file=str(path),
        why="it was changed or moved in the meantime" if path.exists() else "it is gone",
        remedy="build again when nothing writes to it",
    )


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(
        "the optimized model is damaged",
        file=str(path),
        why=why,
        remedy="delete the folder, and build again",
    )
