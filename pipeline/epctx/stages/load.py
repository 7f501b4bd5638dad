"""load: a source model by path, checked, its dimensions fixed, its weights still on disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from epctx.errors import ModelError, about
from epctx.graph.checks import bounds, soundness, structure
from epctx.graph.model import LoadedModel, SourceFile
from epctx.graph.prepare import functions, inference, shapes, sparse
from epctx.graph.serde import opening, protos, texts
from epctx.graph.serde import reader as onnx_files
from epctx.graph.weights import tensors
from epctx.graph.weights.external_data import DataFolder, Reference
from epctx.graph.weights.mapped import DataFile
from epctx.manifest import ModelSource


def run(source: ModelSource) -> LoadedModel:
    """Read a source model by path.

    Promises: every reference to data was checked before use; tensors of 1 KiB or more are
    `MappedTensor`, of which nothing is in memory, whether they are in the model file or beside
    it; onnx.checker took the model; there are no local functions, no sparse tensors, no unsorted
    graphs; `dimensions` and `shapes` are fixed and shapes inferred from them. A shape that is
    still dynamic is no error here.

    Raises:
        ModelError: the model or its data is missing or broken, or `dimensions` and `shapes` do
            not fit it; the message names the file and the tensor, node or input.
    """
    with about(file=str(source.path), model=source.name):
        return _load(source)


def _load(source: ModelSource) -> LoadedModel:
    where = str(source.path)
    file = opening.open_model(source.path)
    folder = DataFolder(_data_folder(source), model=source.path)
    loaded = onnx_files.read(file, folder, where=where)
    proto = _prepare(loaded.proto, source, where=where)
    model = _to_ir(proto, where=where)
    tensors.replace_all(model, loaded.tensor)
    files = (file, *folder.files)
    _hash(files, loaded.weights)
    return LoadedModel(
        name=source.name,
        model=model,
        sources=tuple(
            SourceFile(path=f.path, location=f.location, size=f.size, digest=f.digest())
            for f in files
        ),
    )


def _hash(files: Sequence[DataFile], weights: Iterable[Reference]) -> None:
    """Digest every file and every weight in it, in one pass, and see that none changed under it."""
    parts: dict[DataFile, list[tuple[int, int]]] = {file: [] for file in files}
    for weight in weights:
        parts[weight.file].append((weight.offset, weight.length))
    for file, ranges in parts.items():
        file.hash_parts(ranges)
        if file.changed():
            raise ModelError(
                "was written to while it was read",
                file=str(file.path),
                remedy="build again when nothing writes to the file",
            )


def _prepare(proto: onnx.ModelProto, source: ModelSource, *, where: str) -> onnx.ModelProto:
    """Check a model without its weights, and bring it into the form that `run` promises."""
    if not proto.graph.name:
        proto.graph.name = "graph"  # the checker insists, ONNX Runtime does not
    bounds.require(proto, where=where)
    texts.require_utf8(proto, where=where)
    _initializers_are_constants(proto)
    _normalize_domains(proto)
    structure.normalize(proto, where=where)
    soundness.check(proto, where=where)
    soundness.require_known_opsets(proto, where=where)
    sparse.densify(proto, where=where)
    proto = functions.inline(proto, where=where)
    shapes.fix(proto, source.dimensions, source.shapes, where=where)
    contradictions: list[str] = []
    proto = inference.infer(proto, contradictions.append)
    if contradictions:  # onnx finds some where there are none
        soundness.require_resolvable(proto, where=where)
    _refuse_maps(proto, where=where)
    return proto


def _data_folder(source: ModelSource) -> Path:
    if source.external_data_dir is None:
        return source.path.parent
    if not source.external_data_dir.is_dir():
        raise ModelError(
            "`external_data_dir` is not a folder",
            file=str(source.external_data_dir),
            remedy="name the folder that the model's data files are in",
        )
    return source.external_data_dir


def _normalize_domains(proto: onnx.ModelProto) -> None:
    """Write ONNX's own domain in one way: it has two names, "" and "ai.onnx"."""
    for owner in (proto, *proto.functions):
        for each in owner.opset_import:
            if each.domain == "ai.onnx":
                each.domain = ""
    for node in protos.nodes(proto):
        if node.domain == "ai.onnx":
            node.domain = ""


def _initializers_are_constants(proto: onnx.ModelProto) -> None:
    """Before IR 4 every initializer had to be an input too; ONNX Runtime takes it as constant.

    The checker holds older models to rules that exporters and ONNX Runtime never kept; from here
    on the model is one of IR 4 at least.
    """
    if not 0 < proto.ir_version < 4:
        return
    proto.ir_version = 4
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in weights]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)


def _refuse_maps(proto: onnx.ModelProto, *, where: str) -> None:
    for value in protos.values(proto):
        if protos.holds_map(value.type):
            raise ModelError(
                f"{value.name!r} is a map, which epctx does not build",
                where=where,
                remedy="export the model without ZipMap (skl2onnx: options={'zipmap': False})",
            )


def _to_ir(proto: onnx.ModelProto, *, where: str) -> ir.Model:
    try:
        return ir.serde.deserialize_model(proto)
    except (ir.serde.SerdeError, ValueError, TypeError, NotImplementedError) as error:
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        raise ModelError(
            "cannot be read",
            where=where,
            why=str(root),
            remedy="export the model again; if onnxruntime loads it, report it to epctx",
        ) from error
