"""External data of ONNX models: found, checked, mapped.

Source: spec/onnx-external-data (the keys and where they are resolved), design section 7 "load"
(what is checked before use).
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import posixpath
import re
from pathlib import Path

import onnx
from msgspec import Struct

from epctx import limits
from epctx.error_codes import Code
from epctx.errors import ModelError
from epctx.files import paths
from epctx.files.regular import open_regular
from epctx.graph.weights.data_file import DataFile
from epctx.text import nearest_file

_LARGEST = 2**63 - 1
_DECIMAL = re.compile(r"[0-9]{1,19}")
_SHOWN = 120
"""Characters of a text from the model that an error shows."""
_SEARCHED = 10_000
"""Maximum number of files in a folder that are searched for a near name."""
_MODEL = ".onnx"
"""Ending of models' names; such a file is never suggested as data."""
_UNSIZED = {"FLOAT": 32, "DOUBLE": 64, "BOOL": 8}
"""Bits of an element of types whose name has no number."""
_KEYS = frozenset({"location", "offset", "length", "checksum"})
"""Keys of an external tensor; ONNX Runtime 1.31.1 refuses all others but prepacked copies."""
_SHA1 = re.compile(r"[0-9a-fA-F]{40}")


class Reference(Struct, frozen=True, kw_only=True):
    """A checked range of a data file that holds one tensor."""

    file: DataFile
    offset: int
    length: int

    def read(self) -> bytes:
        """Return a copy of its bytes."""
        return bytes(self.file.view(self.offset, self.length))


class DataFolder:
    """Folder of external data; each file in it is opened once.

    Args:
        path: the model's folder, or `external_data_dir`.
        model: the model file, named in errors.
        roots: folders that links of data may lead into, links followed; the folder itself if empty.
    """

    def __init__(self, path: Path, *, model: Path, roots: tuple[Path, ...] = ()) -> None:
        self.path = path
        self._model = model
        self._roots = roots
        self._files: dict[str, DataFile] = {}

    @classmethod
    def of_model(cls, model: Path, file: DataFile, folder: Path | None) -> DataFolder:
        """Return the folder of a model's external data, with ONNX Runtime's rule for links.

        Args:
            file: the model, opened.
            folder: `external_data_dir`; None for the model's folder.
        """
        roots = paths.data_roots(model, file.path, folder)
        return cls(folder or model.parent, model=model, roots=roots)

    @property
    def files(self) -> tuple[DataFile, ...]:
        """Files opened so far, by location."""
        return tuple(self._files[location] for location in sorted(self._files))

    def resolve(self, tensor: onnx.TensorProto) -> Reference:
        """Return the range of an external tensor, after every check of design section 7.

        Raises:
            ModelError: a check failed; the message names the model, the tensor and the file.
        """
        where = f"{self._model}: tensor {tensor.name!r}"
        keys = _keys(tensor, where=where)
        file = self.open(keys.get("location", ""), where=where)
        size = byte_size(tensor, where=where)
        offset = _integer(keys, "offset", 0, where=where)
        length = _integer(keys, "length", size, where=where)
        if length != size:
            raise ModelError(
                f"has {length} bytes of external data, its type and shape need {size}",
                where=where,
                remedy="export the model again, or correct `length`, `dims` or `data_type`",
                code=Code.DATA_REFUSED,
            )
        if offset + length > file.size:
            raise ModelError(
                f"reaches to byte {offset + length} of {file.path}, which has {file.size}",
                where=where,
                remedy="the data file is cut short or belongs to another model: copy it again",
                code=Code.DATA_REFUSED,
            )
        _verify_checksum(keys.get("checksum"), file, where=where)
        return Reference(file=file, offset=offset, length=length)

    def open(self, location: str, *, where: str) -> DataFile:
        """Return the data file at `location`, a relative path with `/` inside the folder.

        Raises:
            ModelError: the location is not such a path; the file is missing, not regular, the model
                itself, or a link that leads out.
        """
        relative = _relative(location, where=where)
        if relative in self._files:
            return self._files[relative]
        path = self.path / relative
        try:
            path.stat()
        except OSError as error:
            lacks = f"which is not in {self.path}"
            if isinstance(error, FileNotFoundError) and path.is_symlink():
                lacks = f"a link to {path.readlink()}, which does not exist"
            raise ModelError(
                f"needs external data {_shown(location)}, {lacks}",
                where=where,
                remedy=self._missing(relative),
                code=Code.DATA_MISSING,
            ) from error
        real, descriptor = open_regular(path, where=f"{where}: external data {path}")
        # A path that is its own real path has no link that could lead out.
        roots = () if real == path else self._roots or (self.path.resolve(),)
        if roots and not any(map(real.is_relative_to, roots)):
            os.close(descriptor)
            raise ModelError(
                f"refers to external data {location!r}, a link to {real}, outside {self.path}",
                where=where,
                remedy="copy the file in place of the link: ONNX Runtime does not follow it either",
                code=Code.DATA_REFUSED,
            )
        if self._is_model(descriptor):
            os.close(descriptor)
            raise ModelError(
                f"refers to external data {location!r}, which is the model itself",
                where=where,
                remedy="export the model again: data in the model file is raw_data",
                code=Code.DATA_REFUSED,
            )
        file = DataFile(self.path, relative, path=real, descriptor=descriptor)
        self._files[relative] = file
        return file

    def _is_model(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._model.stat())
        except OSError:
            return False  # the model file is gone, and was opened before

    def _missing(self, relative: str) -> str:
        folder = (self.path / relative).parent
        try:
            names = [entry.name for entry in itertools.islice(folder.iterdir(), _SEARCHED)]
        except OSError:
            names = []
        name = posixpath.basename(relative)
        others = {*names} - {name, self._model.name}
        near = nearest_file(name, sorted(each for each in others if not each.endswith(_MODEL)))
        if near:
            return f"did you mean {near!r}? Otherwise set `external_data_dir` to its folder"
        return "copy the data file there, or set `external_data_dir` to the folder that has it"


def byte_size(tensor: onnx.TensorProto, *, where: str) -> int:
    """Return the bytes of raw data of a tensor of this type and shape.

    Raises:
        ModelError: the type has no raw data, a dimension is negative, or the size is too large.
    """
    element = bits(tensor.data_type)
    if element is None:
        strings = tensor.data_type == onnx.TensorProto.STRING
        kind = "strings" if strings else f"data type {tensor.data_type}"
        raise ModelError(
            f"has {kind} as raw or external data, which ONNX does not allow",
            where=where,
            remedy="export the model again with this tensor inside the model",
        )
    require_dimensions(tensor, where=where)
    size: int = math.prod(tensor.dims) * element
    if size > _LARGEST:
        what = f"has the shape {list(tensor.dims)}, larger than any file"
        raise ModelError.broken(what, where=where)
    return -(-size // 8)


@functools.cache
def bits(data_type: int) -> int | None:
    """Return the bits of an element; None if the type has no fixed size or does not exist."""
    kinds = onnx.TensorProto.DataType
    name = kinds.Name(data_type) if data_type in kinds.values() else ""
    sized = re.match(r"[A-Z]+(\d+)", name)
    return int(sized[1]) if sized else _UNSIZED.get(name)


def require_dimensions(tensor: onnx.TensorProto, *, where: str) -> None:
    """Raise ModelError for too many dimensions, or a negative one."""
    if len(tensor.dims) > limits.TENSOR_RANK:
        what = f"has {len(tensor.dims):,} dimensions, more than {limits.TENSOR_RANK}"
        raise ModelError.broken(what, where=where)
    if any(dim < 0 for dim in tensor.dims):
        raise ModelError.broken(f"has a negative dimension: {list(tensor.dims)}", where=where)


def _relative(location: str, *, where: str) -> str:
    """Normalize a location; raise ModelError if it is not valid."""
    if reason := paths.fault(location):
        raise ModelError(
            f"has the external data location {_shown(location)}",
            where=where,
            why=reason,
            remedy="it must be a path relative to the model's folder; export the model again",
            code=Code.DATA_REFUSED,
        )
    return paths.normalize(location)


def _keys(tensor: onnx.TensorProto, *, where: str) -> dict[str, str]:
    """Return the keys and values of an external tensor.

    Raises:
        ModelError: ONNX Runtime refuses the model for one of the keys, or two readers may see
            different weights.
    """
    keys: dict[str, str] = {}
    for entry in tensor.external_data:
        if not isinstance(entry.key, str) or not isinstance(entry.value, str):
            # protobuf hands out bytes where they are not UTF-8
            raise ModelError.broken("has external data keys that are not UTF-8", where=where)
        if entry.key in keys:
            why = "it is there twice, and readers may take either: they may see different weights"
        elif entry.key.startswith("prepacked"):
            why = "ONNX Runtime computes with this copy, other readers with the tensor"
        elif entry.key not in _KEYS:
            why = "ONNX Runtime does not load a model with it"
        else:
            keys[entry.key] = entry.value
            continue
        what = f"has the external data key {_shown(entry.key)}"
        remedy = "remove the key from the model, or export the model again"
        raise ModelError(what, where=where, why=why, remedy=remedy, code=Code.DATA_REFUSED)
    return keys


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."


def _integer(keys: dict[str, str], key: str, default: int, *, where: str) -> int:
    text = keys.get(key)
    if text is None:
        return default
    if not _DECIMAL.fullmatch(text) or int(text) > _LARGEST:
        raise ModelError(
            f"has the external data {key} {_shown(text)}",
            where=where,
            remedy=f"{key} must be a whole number of bytes from 0 to 2**63 - 1",
            code=Code.DATA_REFUSED,
        )
    return int(text)


def _verify_checksum(checksum: str | None, file: DataFile, *, where: str) -> None:
    if checksum is None:
        return
    if not _SHA1.fullmatch(checksum):
        raise ModelError(
            f"has the external data checksum {_shown(checksum)}",
            where=where,
            remedy="it must be the SHA-1 of the data file, 40 hexadecimal digits",
            code=Code.DATA_REFUSED,
        )
    if checksum.lower() != file.sha1():
        raise ModelError(
            f"expects {file.path} to have SHA-1 {checksum.lower()}, it has {file.sha1()}",
            where=where,
            remedy="the data file is corrupt or belongs to another model: copy it again",
            code=Code.DATA_REFUSED,
        )
