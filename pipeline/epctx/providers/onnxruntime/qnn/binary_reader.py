"""Print a context binary's content, as QNN's system library reads it, as JSON.

Run as `python -m epctx.providers.onnxruntime.qnn.binary_reader LIBRARY`, with the binary's path on
stdin. It runs in a process of its own, since the library may crash. It imports only the standard
library, and so stays small. In a flexible binary (`dlc`) it reads the context binary of each chip.

The layouts are those of QNN's C headers (System/QnnSystemInterface.h, System/QnnSystemContext.h,
QnnTypes.h, API 2.21 and later), on 64-bit systems. Tried with QAIRT 2.51.0.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
from collections.abc import Iterator, Sequence
from io import FileIO
from typing import IO, Final

from epctx.providers.onnxruntime import supervisor

MISSING: Final = 3
"""Exit code: the library cannot be loaded, or is not QNN's system library."""
REFUSED: Final = 4
"""Exit code: the library refuses the binary."""
_ZIP: Final = b"PK"


class _Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("patch", ctypes.c_uint32)]

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


class _Quantization(ctypes.Structure):
    """Qnn_QuantizeParams_t, read as a scale and offset; the rest is for other encodings."""

    _fields_ = [
        ("definition", ctypes.c_uint32),
        ("encoding", ctypes.c_uint32),
        ("scale", ctypes.c_float),
        ("offset", ctypes.c_int32),
        ("rest", ctypes.c_uint64 * 3),
    ]


class _Tensor(ctypes.Structure):
    """Qnn_Tensor_t: versions 1 and 2 agree in all fields read here."""

    _fields_ = [
        ("version", ctypes.c_uint32),
        ("id", ctypes.c_uint64),  # uint32_t and padding
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_uint32),
        ("data_format", ctypes.c_uint32),
        ("data_type", ctypes.c_uint32),
        ("quantization", _Quantization),
        ("rank", ctypes.c_uint32),
        ("dimensions", ctypes.POINTER(ctypes.c_uint32)),
        ("rest", ctypes.c_uint64 * 6),  # version 2 ends here; the union has this size
    ]


_Tensors = ctypes.POINTER(_Tensor)


class _GraphV1(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("input_count", ctypes.c_uint32),
        ("inputs", _Tensors),
        ("output_count", ctypes.c_uint32),
        ("outputs", _Tensors),
    ]


class _Graph(ctypes.Structure):
    """QnnSystemContext_GraphInfo_t: its versions begin alike; version 3 is the largest."""

    _fields_ = [
        ("version", ctypes.c_uint32),
        ("v1", _GraphV1),
        ("rest", ctypes.c_uint64 * 5),
    ]


class _BinaryV1(ctypes.Structure):
    """Version 2 has one more pointer at the end."""

    _fields_ = [
        ("backend", ctypes.c_uint32),
        ("build_id", ctypes.c_char_p),
        ("core_api", _Version),
        ("backend_api", _Version),
        ("soc", ctypes.c_char_p),
        ("hardware_version", _Version),
        ("blob_version", _Version),
        ("hardware_size", ctypes.c_uint32),
        ("hardware", ctypes.c_void_p),
        ("blob_size", ctypes.c_uint64),
        ("tensor_count", ctypes.c_uint32),
        ("tensors", _Tensors),
        ("graph_count", ctypes.c_uint32),
        ("graphs", ctypes.POINTER(_Graph)),
    ]


class _BinaryV3(ctypes.Structure):
    _fields_ = [
        ("backend", ctypes.c_uint32),
        ("build_id", ctypes.c_char_p),
        ("core_api", _Version),
        ("backend_api", _Version),
        ("soc", ctypes.c_char_p),
        ("blob_version", _Version),
        ("blob_size", ctypes.c_uint64),
        ("tensor_count", ctypes.c_uint32),
        ("tensors", _Tensors),
        ("graph_count", ctypes.c_uint32),
        ("graphs", ctypes.POINTER(_Graph)),
        ("platform", ctypes.c_void_p),
        ("metadata_size", ctypes.c_uint32),
        ("metadata", ctypes.c_void_p),
        ("soc_model", ctypes.c_uint32),
    ]


class _BinaryUnion(ctypes.Union):
    _fields_ = [("v1", _BinaryV1), ("v3", _BinaryV3)]


class _Binary(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("u", _BinaryUnion)]


_Handle = ctypes.c_void_p
_Create = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.POINTER(_Handle))
_GetBinaryInfo = ctypes.CFUNCTYPE(
    ctypes.c_uint64,
    _Handle,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.POINTER(ctypes.POINTER(_Binary)),
    ctypes.POINTER(ctypes.c_uint64),
)
_Free = ctypes.CFUNCTYPE(ctypes.c_uint64, _Handle)


class _Interface(ctypes.Structure):
    """QnnSystemInterface_t; later API versions append more functions."""

    _fields_ = [
        ("backend", ctypes.c_uint32),
        ("provider", ctypes.c_char_p),
        ("api", _Version),
        ("create", _Create),
        ("get_binary_info", _GetBinaryInfo),
        ("get_metadata", ctypes.c_void_p),
        ("free", _Free),
    ]


class Unusable(Exception):
    """The library cannot be used."""


class Refused(Exception):
    """The library refuses the binary."""


def _interface(library: str) -> _Interface:
    loaded = ctypes.CDLL(library)
    providers = ctypes.POINTER(ctypes.POINTER(_Interface))()
    count = ctypes.c_uint32()
    get = loaded.QnnSystemInterface_getProviders
    get.restype = ctypes.c_uint64
    if get(ctypes.byref(providers), ctypes.byref(count)) or not count.value:
        raise OSError("it offers no interface")
    interface: _Interface = providers[0].contents
    return interface


def _read(interface: _Interface, stream: IO[bytes]) -> dict[str, object]:
    # A private map: ctypes needs a writable buffer, and the file must not change.
    mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    if mapped[: len(_ZIP)] != _ZIP:
        return {"contexts": [_parse(interface, mapped, 0, len(mapped))], "shared": None}
    from epctx.providers.onnxruntime.qnn import dlc

    parts = dlc.entries(stream)
    caches = [part for part in parts if part.name.startswith(dlc.CACHE)]
    contexts = [_parse(interface, mapped, part.offset, part.size) for part in caches]
    declared = dlc.chips(stream, parts)
    actual = {part.name: each["soc_model"] for part, each in zip(caches, contexts, strict=True)}
    if declared != actual or not actual:
        raise Refused(f"its metadata lists the caches {declared}, but it holds {actual}")
    shared = sum(part.size for part in parts if part.name.startswith(dlc.WEIGHTS))
    return {"contexts": contexts, "shared": shared}


def _parse(interface: _Interface, mapped: mmap.mmap, offset: int, size: int) -> dict[str, object]:
    data = (ctypes.c_char * size).from_buffer(mapped, offset)
    handle = _Handle()
    if error := interface.create(ctypes.byref(handle)):
        raise Refused(f"the QNN system library cannot create a context to read it: error {error}")
    info = ctypes.POINTER(_Binary)()
    length = ctypes.c_uint64()
    error = interface.get_binary_info(
        handle, ctypes.addressof(data), len(data), ctypes.byref(info), ctypes.byref(length)
    )
    if error or not info:
        raise Refused(f"the QNN system library refuses it: error {error}")
    binary = info.contents
    if binary.version not in (1, 2, 3):
        raise Refused(f"its tables have version {binary.version}; 1 to 3 are known")
    table = binary.u.v3 if binary.version == 3 else binary.u.v1
    context = dict[str, object](
        build_id=(table.build_id or b"").decode(errors="replace"),
        api=str(table.core_api),
        blob=str(table.blob_version),
        blob_size=table.blob_size,
        size=size,
        soc_model=table.soc_model if binary.version == 3 else None,
        graphs=[_graph(table.graphs[i]) for i in range(table.graph_count)],
    )
    interface.free(handle)
    return context


def _graph(graph: _Graph) -> dict[str, object]:
    table = graph.v1
    return {
        "name": (table.name or b"").decode(errors="replace"),
        "inputs": list(_tensors(table.inputs, table.input_count)),
        "outputs": list(_tensors(table.outputs, table.output_count)),
    }


def _tensors(tensors: Sequence[_Tensor], count: int) -> Iterator[dict[str, object]]:
    for index in range(count):
        tensor = tensors[index]
        yield {
            "name": (tensor.name or b"").decode(errors="replace"),
            "dtype": _DATA_TYPES.get(tensor.data_type, f"{tensor.data_type:#06x}").lower(),
            "shape": [tensor.dimensions[axis] for axis in range(tensor.rank)],
            **_scale(tensor.quantization),
        }


def _scale(quantization: _Quantization) -> dict[str, object]:
    """Return scale and zero point of a tensor that has one of each. QNN's offset is the negative of
    ONNX's zero point.
    """
    if (quantization.definition, quantization.encoding) != (_DEFINED, _SCALE_OFFSET):
        return {}
    return {"scale": quantization.scale, "zero_point": -quantization.offset}


_DEFINED: Final = 1
"""QNN_DEFINITION_DEFINED."""
_SCALE_OFFSET: Final = 0
"""QNN_QUANTIZATION_ENCODING_SCALE_OFFSET."""


_DATA_TYPES: Final = {
    0x0008: "INT_8", 0x0016: "INT_16", 0x0032: "INT_32", 0x0064: "INT_64",
    0x0108: "UINT_8", 0x0116: "UINT_16", 0x0132: "UINT_32", 0x0164: "UINT_64",
    0x0216: "FLOAT_16", 0x0217: "BFLOAT_16", 0x0232: "FLOAT_32", 0x0264: "FLOAT_64",
    0x0304: "SFIXED_POINT_4", 0x0308: "SFIXED_POINT_8", 0x0316: "SFIXED_POINT_16",
    0x0332: "SFIXED_POINT_32", 0x0404: "UFIXED_POINT_4", 0x0408: "UFIXED_POINT_8",
    0x0416: "UFIXED_POINT_16", 0x0432: "UFIXED_POINT_32", 0x0508: "BOOL_8", 0x0608: "STRING",
}  # fmt: skip
"""Qnn_DataType_t; the hexadecimal digits are the width in bits, as decimal."""


def contents(library: str, binary: str) -> dict[str, object]:
    """Read a binary in this process.

    Raises:
        Unusable: the library cannot be loaded, or is not QNN's system library.
        Refused: the library refuses the file, which may not be a context binary.
    """
    try:
        interface = _interface(library)
    except (OSError, AttributeError) as error:
        raise Unusable(str(error)) from error
    try:
        with FileIO(binary) as stream:
            return _read(interface, stream)
    except (OSError, ValueError) as error:
        raise Refused(str(error)) from error


def main(library: str) -> int:
    """Print the content of the binary named on stdin as JSON; `binary.read` interprets the exit
    code.
    """
    try:
        print(json.dumps(contents(library, os.fsdecode(sys.stdin.buffer.read()))))
    except (Unusable, Refused) as error:
        print(error, file=sys.stderr)
        return MISSING if isinstance(error, Unusable) else REFUSED
    return 0


if __name__ == "__main__":
    supervisor.supervise()
    sys.exit(main(*sys.argv[1:]))
