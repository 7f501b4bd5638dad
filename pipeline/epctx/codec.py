"""Convert structs and dataclasses to JSON and back, with paths as `/` strings."""

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
    """Encode a value as one line of JSON (`indent` 0) or as an indented document, with keys in the
    types' order.

    Raises:
        UsageError: a string in the value is not valid text, such as a file name that is not UTF-8.
    """
    try:
        encoded = msgspec.json.encode(value, enc_hook=_encode)
    except UnicodeEncodeError as error:
        raise no_text(error) from error
    return msgspec.json.format(encoded, indent=indent) if indent else encoded


def no_text(error: UnicodeEncodeError) -> UsageError:
    """Make the error for the name of a file or folder that is not UTF-8."""
    name = error.object.encode(errors="backslashreplace").decode()
    return UsageError("is not UTF-8", where=name, remedy="rename the file or the folder")


def decode(data: Buffer | str, kind: type[T]) -> T:
    """Parse JSON into `kind`.

    Raises:
        msgspec.ValidationError: a value is missing or has the wrong type. Names the value's path.
        msgspec.DecodeError: the data is not JSON, not UTF-8, or nested too deeply.
    """
    decoder: msgspec.json.Decoder[T] | None = _decoders.get(kind)
    if decoder is None:
        # msgspec 0.22 crashes the process if two threads inspect a new dataclass at the same time.
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
