"""ONNX models on the wire: read without their weights, written without copying them.

A `.onnx` file may hold gigabytes of raw data inside. Protobuf would copy all of it into memory;
`strip` instead walks the bytes of the mapped file once, copies what is small, and leaves a
reference where a tensor's raw data was. `Message` is the other direction: a message put together
from small encoded parts and payloads that stay where they are until they are written.

This module knows only the wire format (tags, varints, lengths); field numbers come from onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import onnx
from msgspec import Struct

from epctx import limits
from epctx.files.digest import Buffer
from epctx.limits import Limit

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_JOIN: Final = 1 << 16
LARGEST: Final = 2**31 - 1
"""Maximum bytes of a protobuf message."""
_MAX_DEPTH: Final = 100
"""Maximum nesting that protobuf's own parser accepts."""


class Malformed(ValueError):
    """Bytes that are not a protobuf message."""


class TooLarge(ValueError):
    """A message beyond `limit`, one of `epctx.limits`."""

    def __init__(self, what: str, limit: Limit) -> None:
        super().__init__(f"{what}, more than {limit}")
        self.limit = limit


class Span(Struct, frozen=True):
    """A range of the bytes walked."""

    offset: int
    length: int


# ------------------------------------------------------------------------------------------ read


class _Kind(Struct, frozen=True):
    """A message type, and its fields that may hold a tensor's raw data at any depth."""

    name: str
    inner: Mapping[int, str]
    messages: frozenset[int]
    """Other fields that hold messages: protobuf makes objects of them in any case."""


def _kind(message: type, **fields: str) -> _Kind:
    numbers = message.DESCRIPTOR.fields_by_name  # type: ignore[attr-defined]
    return _Kind(
        message.DESCRIPTOR.name,  # type: ignore[attr-defined]
        {numbers[field].number: kind for field, kind in fields.items()},
        frozenset(
            field.number
            for name, field in numbers.items()
            if field.message_type is not None and name not in fields
        ),
    )


_KINDS: Final = {
    kind.name: kind
    for kind in (
        _kind(onnx.ModelProto, graph="GraphProto", functions="FunctionProto"),
        _kind(onnx.GraphProto, node="NodeProto", initializer="TensorProto"),
        _kind(onnx.FunctionProto, node="NodeProto", attribute_proto="AttributeProto"),
        _kind(onnx.NodeProto, attribute="AttributeProto"),
        _kind(
            onnx.AttributeProto,
            t="TensorProto",
            tensors="TensorProto",
            g="GraphProto",
            graphs="GraphProto",
        ),
    )
}
_MODEL: Final = onnx.ModelProto.DESCRIPTOR.name
_TRAINING: Final = onnx.ModelProto.DESCRIPTOR.fields_by_name["training_info"].number
_TENSOR: Final = onnx.TensorProto.DESCRIPTOR.fields_by_name
_RAW_DATA: Final = _TENSOR["raw_data"].number
_TENSOR_MESSAGES: Final = frozenset(
    field.number for field in _TENSOR.values() if field.message_type is not None
)
_DATA_LOCATION: Final = _TENSOR["data_location"].number


def strip(data: memoryview, *, threshold: int, location: str) -> tuple[bytes, tuple[Span, ...]]:
    """Return a serialized ModelProto without the raw data of its large tensors, and their spans.

    A tensor with `threshold` or more bytes of raw data becomes an external one, whose `location`
    is the given text and whose `offset` is the index of its span. Training information, which
    nothing here reads, is left out; sparse tensors stay. Only the result is copied.

    Raises:
        Malformed: the bytes are not protobuf, are cut short, or nest too deeply.
        TooLarge: parsing the result would take far more memory than the file has bytes.
    """
    walk = _Walk(data, threshold, location)
    parts = walk.message(0, len(data), _KINDS["ModelProto"], _MAX_DEPTH)
    size = len(data) if parts is None else parts.size
    if size > LARGEST:
        raise Malformed(f"has {size} bytes without its weights, and protobuf reads {LARGEST}")
    return (bytes(data) if parts is None else b"".join(parts.parts())), tuple(walk.spans)


class _Walk:
    def __init__(self, data: memoryview, threshold: int, location: str) -> None:
        self._data = data
        self._threshold = threshold
        self._location = location
        self._fields = limits.MODEL_FIELDS.value
        self._nodes = limits.MODEL_NODES.value
        self._structure = limits.MODEL_STRUCTURE_BYTES.value
        self.spans: list[Span] = []

    def message(self, start: int, stop: int, kind: _Kind, depth: int) -> Message | None:
        """Return the message at [start, stop), stripped; None if there is nothing to strip."""
        if not depth:
            raise Malformed(f"nests more than {_MAX_DEPTH} messages")
        result: Message | None = None
        copied = start
        for number, wire_type, field, payload, end in self._walk(start, stop):
            inner = kind.inner.get(number)
            if inner == "NodeProto":
                self._nodes -= 1
                if self._nodes < 0:
                    raise TooLarge("has too many nodes", limits.MODEL_NODES)
            if number == _TRAINING and kind.name == _MODEL:
                result = result or Message()
                result.encoded(self._data[copied:field])
                copied = end
                continue
            if inner is None or wire_type != _BYTES or end - payload < self._threshold:
                if wire_type == _BYTES and (inner is not None or number in kind.messages):
                    self._count_structure(end - payload)
                continue
            if inner == "TensorProto":
                replacement = self._tensor(payload, end)
            else:
                replacement = self.message(payload, end, _KINDS[inner], depth - 1)
            if replacement is not None:
                result = result or Message()
                result.encoded(self._data[copied:field])
                result.field(number, replacement)
                copied = end
        if result is not None:
            result.encoded(self._data[copied:stop])
        return result

    def _walk(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield and count the fields of a message: each costs time here, and a protobuf object."""
        for field in _fields(self._data, start, stop):
            self._fields -= 1
            if self._fields < 0:
                raise TooLarge("has too many fields", limits.MODEL_FIELDS)
            yield field

    def _count_structure(self, size: int) -> None:
        """Count bytes that are not examined before protobuf makes objects of them."""
        self._structure -= size
        if self._structure < 0:
            raise TooLarge(
                "has too many bytes of small nodes, types or metadata", limits.MODEL_STRUCTURE_BYTES
            )

    def _tensor(self, start: int, stop: int) -> Message | None:
        raw: list[tuple[int, int, int]] = []
        for number, wire_type, field, payload, end in self._walk(start, stop):
            if number in _TENSOR_MESSAGES and wire_type == _BYTES:
                self._count_structure(end - payload)
            if number == _DATA_LOCATION:
                return None  # a tensor with a data location: the checker judges it
            if number == _RAW_DATA and wire_type == _BYTES:
                raw.append((field, payload, end))
        if not raw or raw[-1][2] - raw[-1][1] < self._threshold:
            return None
        result = Message()
        copied = start
        for field, _, end in raw:
            result.encoded(self._data[copied:field])
            copied = end
        result.encoded(self._data[copied:stop])
        result.encoded(external(self._location, offset=len(self.spans)))
        _, payload, end = raw[-1]  # the last one counts if a field is given twice
        self.spans.append(Span(payload, end - payload))
        return result


def _fields(data: memoryview, start: int, stop: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (number, wire type, start of field, start of payload, end) of each field."""
    position = start
    while position < stop:
        field = position
        tag, position = _varint(data, position, stop)
        number, wire_type = tag >> 3, tag & 7
        payload = position
        if wire_type == _BYTES:
            length, payload = _varint(data, position, stop)
            position = payload + length
        elif wire_type == _VARINT:
            _, position = _varint(data, position, stop)
        elif wire_type == _FIXED32:
            position += 4
        elif wire_type == _FIXED64:
            position += 8
        else:
            raise Malformed(f"has wire type {wire_type} at byte {field}")
        if number == 0 or position > stop:
            raise Malformed(f"is cut short, or damaged at byte {field}")
        yield number, wire_type, field, payload, position


def _varint(data: memoryview, position: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while position < stop and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise Malformed(f"is cut short, or damaged at byte {position}")


# ----------------------------------------------------------------------------------------- write


class Payload(Struct, frozen=True):
    """`size` bytes that are produced when they are written, anew each time."""

    size: int
    chunks: Callable[[], Iterable[Buffer]]


class Message:
    """A message under construction: its size is known, its large payloads are not held."""

    def __init__(self) -> None:
        self._parts: list[Buffer | Payload | Message] = []
        self.size = 0

    def encoded(self, fields: Buffer) -> None:
        """Append encoded fields."""
        if len(fields):
            self._parts.append(fields)
            self.size += len(fields)

    def field(self, number: int, content: Payload | Message) -> None:
        """Append a bytes field, or an embedded message, which must not grow afterwards."""
        self.encoded(_header(number, content.size))
        self._parts.append(content)
        self.size += content.size

    def parts(self) -> Iterator[Buffer]:
        """Yield the encoded message in pieces, in order; many of them tiny."""
        for part in self._parts:
            if isinstance(part, Message):
                yield from part.parts()
            elif isinstance(part, Payload):
                yield from part.chunks()
            else:
                yield part

    def chunks(self) -> Iterator[Buffer]:
        """Yield the message with small pieces joined, for an unbuffered writer."""
        small = bytearray()
        for part in self.parts():
            if len(part) < _JOIN:
                small += part
            if len(small) >= _JOIN or (len(part) >= _JOIN and small):
                yield bytes(small)
                small.clear()
            if len(part) >= _JOIN:
                yield part
        if small:
            yield bytes(small)


def embedded(number: int, encoded: bytes) -> bytes:
    """Return a field that holds an encoded message, or bytes."""
    return _header(number, len(encoded)) + encoded


def external(location: str, **keys: int | str) -> bytes:
    """Return the encoded fields of a TensorProto that locate its data."""
    tensor = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
    for key, value in {"location": location, **keys}.items():
        tensor.external_data.add(key=key, value=str(value))
    return bytes(tensor.SerializeToString(deterministic=True))


def _header(number: int, length: int) -> bytes:
    return _encoded_varint(number << 3 | _BYTES) + _encoded_varint(length)


def _encoded_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
