"""load: a source model by path, checked, its dimensions fixed, its weights still on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import onnx
import onnx_ir as ir
from msgspec.structs import replace

from epctx.errors import ModelError, about
from epctx.graph import soundness, structure
from epctx.graph.model import LoadedModel, SourceFile
from epctx.graph.prepare import functions, inference, normalize, shapes
from epctx.graph.serde import reader, types
from epctx.graph.serde import reader as onnx_files
from epctx.graph.serde.reader import OnnxFile
from epctx.graph.weights import tensors
from epctx.graph.weights.data_file import DataFile
from epctx.graph.weights.external_data import Reference
from epctx.manifest import ModelSource
from epctx.stages import header


def run(source: ModelSource) -> LoadedModel:
    """Read a source model by path.

    Every reference to data is checked before use. Tensors of 1 KiB or more, in the model file or
    beside it, are `MappedTensor`, not in memory. onnx.checker or ONNX Runtime has accepted the
    model. It has no local functions, no sparse tensors and no unsorted graphs. `dimensions` and
    `shapes` are fixed, and shapes inferred from them; a dynamic shape is not an error.

    Raises:
        ModelError: the model or its data is missing or broken, or `dimensions` and `shapes` do not
            fit it; the message names the file and the tensor, node or input.
    """
    with about(file=str(source.path), model=source.name):
        return _load(source)


def _load(source: ModelSource) -> LoadedModel:
    where = str(source.path)
    file = reader.open_model(source.path)
    libraries = () if source.custom_ops is None else (DataFile.open(source.custom_ops),)
    folder = header.data_folder(source, file)
    loaded = onnx_files.read_source(file, folder, where=where)
    verdict = _Verdict(lambda: onnx_files.read_source(file, folder, where=where), where)
    declared: dict[str, ir.Shape] = {}
    try:
        model = _to_ir(_prepare(loaded, source, verdict, declared, where=where), where=where)
    except ModelError as error:
        if error.is_broken:
            raise verdict.about(error) from error
        raise
    tensors.replace_all(model, loaded.tensor)
    files = (file, *folder.files, *libraries)
    _hash(files, loaded.weights)
    return LoadedModel(
        name=source.name,
        model=model,
        sources=tuple(
            SourceFile(path=f.path, location=f.location, size=f.size, digest=f.digest())
            for f in files
        ),
        notes=tuple(verdict.notes),
        declared=declared,
    )


def refusal(source: ModelSource) -> ModelError | None:
    """Return the error of a source model that ONNX Runtime refuses; None if it loads the model."""
    where = str(source.path)
    with about(file=where, model=source.name):
        file = reader.open_model(source.path)
        folder = header.data_folder(source, file)
        loaded, kept = (onnx_files.read_source(file, folder, where=where) for _ in range(2))
        shapes.fix(loaded.proto, source.dimensions, source.shapes, where=where)
        said = soundness.try_loading(loaded).refusal
    return None if said is None else soundness.load_error(said, kept.proto, where=where)


class _Verdict:
    """ONNX Runtime's verdict on a model, obtained on demand: an undisputed model needs no session.

    Attributes:
        notes: objections to the model that ONNX Runtime does not share.
    """

    def __init__(self, read: Callable[[], OnnxFile], where: str) -> None:
        self._read = read
        self._where = where
        self.notes: list[str] = []

    @cached_property
    def _verdict(self) -> soundness.Verdict:
        return soundness.try_loading(self._read())

    def require(self, model: onnx.ModelProto, objection: str) -> None:
        """Accept a model that onnx.checker objects to if ONNX Runtime loads it.

        Outputs without a type, to which onnx.checker objects, get the type that ONNX Runtime
        infers.

        Raises:
            ModelError: ONNX Runtime does not load the model.
        """
        verdict = self._verdict
        if verdict.refusal is not None:
            raise soundness.load_error(verdict.refusal, self._read().proto, where=self._where)
        self.notes.append(f"ONNX Runtime loads what onnx.checker objects to: {objection}")
        inferred = {value.name: value.type for value in verdict.outputs}
        for value in model.graph.output:
            if not value.HasField("type") and value.name in inferred:
                value.type.CopyFrom(inferred[value.name])

    def about(self, error: ModelError) -> ModelError:
        """Return an error of epctx together with ONNX Runtime's verdict on the file."""
        return soundness.with_verdict(error, self._verdict.refusal)


def _hash(files: Sequence[DataFile], weights: Iterable[Reference]) -> None:
    """Digest every file and every weight in one pass; refuse a file that changed meanwhile."""
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


def _prepare(
    loaded: OnnxFile,
    source: ModelSource,
    verdict: _Verdict,
    declared: dict[str, ir.Shape],
    *,
    where: str,
) -> onnx.ModelProto:
    """Check a model without its weights, and bring it into the form that `run` describes.

    `declared` gets the shapes of outputs before inference may replace them.
    """
    proto = loaded.proto
    if not proto.graph.name:
        proto.graph.name = "graph"  # the checker requires a name, ONNX Runtime does not
    header.require_source(proto, where=where)
    verdict.notes += normalize.normalize_ort_quirks(loaded, where=where)
    structure.normalize(proto, where=where)
    objection = soundness.objection(proto)
    if objection is not None:
        verdict.require(proto, objection)
    soundness.require_known_opsets(proto, where=where)
    normalize.densify(proto, where=where)
    shapes.clear_unknown(proto)
    shapes.fix(proto, source.dimensions, source.shapes, where=where)
    for value in proto.graph.output:
        if value.type.tensor_type.HasField("shape"):
            declared[value.name] = ir.serde.deserialize_tensor_shape(value.type.tensor_type.shape)
    proto = functions.inline(proto, where=where)
    contradictions: list[str] = []
    proto = inference.infer(
        proto,
        contradictions.append,
        lambda probe: soundness.output_types(replace(loaded, proto=probe)),
    )
    if contradictions:  # onnx may report some that do not exist
        try:
            soundness.require_resolvable(proto, where=where)
        except ModelError as error:
            if source.dimensions or source.shapes:
                error.remedy = "correct `dimensions` and `shapes` of the model: give sizes that fit"
            raise
    return proto


def _to_ir(proto: onnx.ModelProto, *, where: str) -> ir.Model:
    try:
        return types.from_proto(proto)
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
