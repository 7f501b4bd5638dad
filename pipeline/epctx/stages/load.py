"""load: a source model by path, checked, its dimensions fixed, its weights mapped."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from epctx.errors import ModelError
from epctx.graph.external_data import DataFile, DataFolder, mapped
from epctx.graph.model import LoadedModel, SourceFile
from epctx.manifest import ModelSource


def run(source: ModelSource) -> LoadedModel:
    """Read a source model by path.

    Promises that large tensors are `MappedTensor`, that every range of external data was checked,
    and that digests are of the bytes that the tensors show.

    Raises:
        ModelError: the model or its data is missing or broken; the message names where.
    """
    file = DataFile.open(source.path)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(bytes(file.view()))
    except DecodeError as error:
        raise ModelError(
            "is not an ONNX model", where=str(source.path), remedy="name an .onnx file"
        ) from error
    folder = DataFolder(source.external_data_dir or source.path.parent, model=source.path)
    tensors = {
        tensor.name: mapped(tensor, folder.resolve(tensor))
        for tensor in proto.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }
    model = ir.serde.deserialize_model(proto)
    for name, tensor in tensors.items():
        model.graph.initializers[name].const_value = tensor
    files = (file, *folder.files)
    for each in files:
        each.hash_parts((t.start, t.nbytes) for t in tensors.values() if t.file is each)
    return LoadedModel(
        name=source.name,
        model=model,
        sources=tuple(SourceFile(path=f.path, size=f.size, digest=f.digest()) for f in files),
    )
