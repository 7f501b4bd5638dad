"""JSON to structs and dataclasses and back, paths as `/` strings; nothing is parsed by hand."""

from __future__ import annotations

import threading
from pathlib import Path, PurePath
from typing import Any, TypeVar

import msgspec

from epctx.errors import UsageError
from epctx.files.digest import Buffer

T = TypeVar("T")
_decoders: dict[object, msgspec.json.Decoder[Any]] = {}
_looking = threading.Lock()


def encode(value: object, *, indent: int = 0) -> bytes:
    """One line of JSON (`indent` 0) or a printed document; keys in the types' order.

    Raises:
        UsageError: a text in it is none, as the name of a file can be.
    """
    try:
        encoded = msgspec.json.encode(value, enc_hook=_encode)
    except UnicodeEncodeError as error:
        raise no_text(error) from error
    return msgspec.json.format(encoded, indent=indent) if indent else encoded


def no_text(error: UnicodeEncodeError) -> UsageError:
    """What to say of the name of a file, or of a folder, that is no text."""
    name = error.object.encode(errors="backslashreplace").decode()
    return UsageError("is not UTF-8", where=name, remedy="rename the file or the folder")


def decode(data: Buffer | str, kind: type[T]) -> T:
    """Parse JSON into `kind`.

    Raises:
        msgspec.ValidationError: a value is missing or of another type; names its path.
        msgspec.DecodeError: it is not JSON, or not UTF-8, or nested too deeply.
    """
    decoder: msgspec.json.Decoder[T] | None = _decoders.get(kind)
    if decoder is None:
        # msgspec 0.22 crashes the process when two threads look at a dataclass for the first time.
        with _looking:
            decoder = _decoders[kind] = msgspec.json.Decoder(kind, dec_hook=_decode)
    try:
        return decoder.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:  # which msgspec lets through
        raise msgspec.DecodeError(f"JSON is malformed: {error}") from error


def _encode(value: object) -> object:
    if isinstance(value, PurePath):
        return value.as_posix()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _decode(kind: type, value: object) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise TypeError(f"{kind.__name__} cannot be made from {type(value).__name__}")
