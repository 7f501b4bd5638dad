"""Where a model comes from: a file or bytes, and where what it refers to is."""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from msgspec import Struct

from epctx.errors import InvalidGraph, ModelError
from epctx.graph import structure
from epctx.graph.epcontext import is_epcontext
from epctx.graph.serde import protos, reader
from epctx.graph.weights.data_file import DataFile
from epctx.graph.weights.external_data import DataFolder
from epctx.runtime.options import SessionConfig


class ModelSource(Struct, frozen=True, kw_only=True):
    """A model, not read yet.

    Attributes:
        path: the file; None: `data` has it.
        data: the model's bytes.
        folder: where context binaries are resolved; None: from bytes, and not said.
        data_folder: where external data is resolved.
    """

    path: Path | None
    data: bytes
    folder: Path | None
    data_folder: Path

    @classmethod
    def of(cls, given: str | Path | bytes, config: SessionConfig) -> ModelSource:
        """Resolve what a caller names, without reading it.

        External data is in `session.model_external_initializers_file_folder_path`, as for
        onnxruntime 1.31, else beside the model; of a model from bytes in the current folder.
        Context binaries are beside the model; of one from bytes beside `ep.context_file_path`,
        which need not exist.
        """
        if isinstance(given, bytes | bytearray | memoryview):
            folder = None if config.file_path is None else config.file_path.absolute().parent
            return cls(
                path=None,
                data=bytes(given),
                folder=folder,
                data_folder=config.data_folder or Path.cwd(),
            )
        path = Path(given).absolute()
        data_folder = (config.data_folder or path.parent).absolute()
        return cls(path=path, data=b"", folder=path.parent, data_folder=data_folder)

    @property
    def where(self) -> str:
        """The model in messages."""
        return "the model from bytes" if self.path is None else str(self.path)

    def has_contexts(self) -> bool:
        """Whether the model has EPContext nodes, those inside control flow and functions too.

        Raises:
            ModelError: there is no such file, or it is no ONNX model.
        """
        model = self._parse(self.data) if self.path is None else reader.read(self.path)
        return any(is_epcontext(node) for node in protos.nodes(model))

    def read(self) -> onnx.ModelProto:
        """The model, its nodes in topological order, every reference to external data checked.

        Raises:
            ModelError: there is no such file, or it is no ONNX model.
            InvalidGraph: the graph is broken, or refers to data that is missing or outside.
        """
        data = self.data
        if self.path is not None:
            data = bytes(DataFile.open(self.path).view())
        model = self._parse(data)
        folder = DataFolder(self.data_folder, model=self.path or Path("model from bytes"))
        try:
            structure.normalize(model, where=self.where)
            for tensor in protos.tensors(model):
                if tensor.data_location == onnx.TensorProto.EXTERNAL:
                    folder.resolve(tensor)
        except ModelError as error:
            raise InvalidGraph.of(error.failure) from error
        return model

    def _parse(self, data: bytes) -> onnx.ModelProto:
        try:
            model: onnx.ModelProto = onnx.ModelProto.FromString(data)
        except DecodeError as error:
            raise ModelError(
                "is not an ONNX model",
                where=self.where,
                why=str(error),
                remedy="give the bytes of an .onnx file",
            ) from error
        return model
