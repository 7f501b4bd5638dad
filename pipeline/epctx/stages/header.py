"""Structure of a source model before any checker sees it, without weights."""

from __future__ import annotations

import onnx

from epctx.error_codes import Code
from epctx.errors import ModelError, about
from epctx.graph import structure
from epctx.graph.epcontext import is_epcontext
from epctx.graph.serde import protos, reader
from epctx.graph.serde import reader as onnx_files
from epctx.graph.weights.data_file import DataFile
from epctx.graph.weights.external_data import DataFolder
from epctx.manifest import ModelSource


def read(source: ModelSource) -> onnx.ModelProto:
    """Read a source model by path, without applying `dimensions` and `shapes`.

    Raises:
        ModelError: the model or its data is missing, broken, optimized for a CPU, compiled already,
            or beyond a limit. onnx.checker and ONNX Runtime are not asked.
    """
    where = str(source.path)
    with about(file=where, model=source.name):
        file = reader.open_model(source.path)
        proto = onnx_files.read_source(file, data_folder(source, file), where=where).proto
        require_source(proto, where=where)
        return proto


def require_source(proto: onnx.ModelProto, *, where: str) -> None:
    """Raise ModelError if a model exceeds a limit, has names that are not UTF-8, or is optimized
    for a CPU or compiled already.
    """
    structure.require_bounded(proto, where=where)
    reader.require_utf8(proto, where=where)
    for node in protos.nodes(proto):
        if node.domain == "com.microsoft.nchwc":
            raise ModelError(
                "is optimized for a CPU already",
                where=where,
                why=f"ONNX Runtime made {protos.describe(node)} for the layout of one kind of CPU",
                remedy="build from the model as it was exported",
            )
        if is_epcontext(node):
            raise ModelError(
                "is compiled already",
                where=where,
                why=f"it has EPContext nodes, the first is {protos.describe(node)}",
                remedy="build from the source model of this EPContext model",
                code=Code.COMPILED_ALREADY,
            )


def data_folder(source: ModelSource, file: DataFile) -> DataFolder:
    """Return the folder of the external data of a model, whose open file is `file`.

    Raises:
        ModelError: `external_data_dir` is not a folder.
    """
    folder = source.external_data_dir
    if folder is not None and not folder.is_dir():
        raise ModelError(
            "`external_data_dir` is not a folder",
            file=str(folder),
            remedy="name the folder that the model's data files are in",
            code=Code.DATA_MISSING,
        )
    return DataFolder.of_model(source.path, file, folder)
