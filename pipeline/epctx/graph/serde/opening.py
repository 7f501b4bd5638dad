"""A path that is given as a model's: opened, or told what it is instead."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Final

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs

from epctx.error_codes import Code
from epctx.errors import ModelError
from epctx.files.regular import absent
from epctx.graph.serde import wire
from epctx.graph.weights.data_file import DataFile

_HEAD: Final = 512
"""Bytes that tell what a file is."""

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
    """Open the file that is to be a model; whether it is one is not looked at.

    Raises:
        ModelError: there is no such file, it is no regular file, or it cannot be read.
    """
    try:
        return DataFile.open(path)
    except ModelError:
        if path.is_dir():
            raise _folder(path) from None
        if not path.exists():
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
    """The message in a file without the raw data of its large tensors, as `wire.strip` has it.

    Raises:
        ModelError: it is none, or would take far more memory than the file has bytes.
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
    """What to say of a file that is no model: what it looks like, if that is often taken for one.

    Args:
        file: the file.
        reason: what was found instead of a model.
        where: the file, as the user knows it.
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
    """UTF-8, perhaps cut in a character, without control characters."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\t\n\r\f" for character in text)
