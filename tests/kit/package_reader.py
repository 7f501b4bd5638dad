"""ONNX Runtime's own reader of model packages, through the C API of the installed onnxruntime.

    python -P -m tests.kit.package_reader < request.json > answer.json

The Python bindings do not have it (onnxruntime 1.31.1). Slots of `OrtApi` never change once they
are released; those of `OrtModelPackageApi` are those of 1.31. Each request runs in a process of its
own: the shared library that exports the C API is another copy of onnxruntime than the bindings'.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

ROOT = Path(__file__).parents[2]
API_VERSION = 31
API = {
    "GetErrorMessage": 2,
    "CreateEnv": 3,
    "DisableTelemetryEvents": 6,
    "Run": 9,
    "CreateSessionOptions": 10,
    "SessionGetInputCount": 30,
    "SessionGetOutputCount": 31,
    "SessionGetInputName": 36,
    "SessionGetOutputName": 37,
    "CreateTensorWithDataAsOrtValue": 49,
    "GetTensorMutableData": 51,
    "GetTensorElementType": 60,
    "GetDimensionsCount": 61,
    "GetDimensions": 62,
    "GetTensorTypeAndShape": 65,
    "CreateCpuMemoryInfo": 69,
    "GetAllocatorWithDefaultOptions": 78,
    "ReleaseSession": 95,
    "RegisterExecutionProviderLibrary": 301,
    "GetEpDevices": 303,
    "SessionOptionsAppendExecutionProvider_V2": 304,
    "EpDevice_EpName": 312,
    "GetModelPackageApi": 427,
}
PACKAGE_API = (
    "CreateModelPackageOptionsFromSessionOptions",
    "ReleaseModelPackageOptions",
    "CreateModelPackageContext",
    "ReleaseModelPackageContext",
    "ModelPackage_GetSchemaVersion",
    "ModelPackage_GetComponentCount",
    "ModelPackage_GetComponentNames",
    "ModelPackage_GetVariantCount",
    "ModelPackage_GetVariantNames",
    "ModelPackage_GetVariantEpName",
    "ModelPackage_ResolveStringRef",
    "SelectComponent",
    "ReleaseModelPackageComponentContext",
    "ModelPackageComponent_GetSelectedVariantName",
    "ModelPackageComponent_GetSelectedVariantFolderPath",
    "CreateSession",
)
VOID = ("ReleaseSession", *(name for name in PACKAGE_API if name.startswith("Release")))
DTYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64, 9: np.bool_}
LIBRARIES = {"OpenVINOExecutionProvider": "onnxruntime_ep_openvino"}


@dataclass(kw_only=True)
class Request:
    """What to do with a package.

    Attributes:
        package: its folder.
        provider: the EP of the session; "" is the CPU EP.
        component: the one to select.
        feeds: an `.npz` to run it on; "": no session is made.
        outputs: the `.npz` that gets what it computes.
    """

    package: str
    provider: str
    component: str
    feeds: str = ""
    outputs: str = ""


@dataclass(kw_only=True)
class Answer:
    """What the reader said. `error`: its message, and then what it says no more."""

    schema: int = 0
    variants: dict[str, dict[str, str]] = field(default_factory=dict)
    selected: str = ""
    folder: str = ""
    error: str = ""


def ask(request: Request, *, scratch: Path) -> Answer:
    """The reader's answer, out of a fresh process."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.kit.package_reader"],
        input=msgspec.json.encode(request),
        capture_output=True,
        cwd=scratch,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ORT_DISABLE_TELEMETRY": "1"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return msgspec.json.decode(done.stdout, type=Answer)


def run(
    package: Path,
    provider: str,
    component: str,
    feeds: Mapping[str, np.ndarray],
    *,
    scratch: Path,
) -> tuple[Answer, dict[str, np.ndarray]]:
    """The variant that the reader selects, run on `feeds`."""
    scratch.mkdir(parents=True, exist_ok=True)
    np.savez(scratch / "feeds.npz", allow_pickle=False, **feeds)
    request = Request(
        package=str(package),
        provider=provider,
        component=component,
        feeds=str(scratch / "feeds.npz"),
        outputs=str(scratch / "outputs.npz"),
    )
    answer = ask(request, scratch=scratch)
    if answer.error:
        return answer, {}
    with np.load(scratch / "outputs.npz") as found:
        return answer, dict(found)


class Refused(Exception):
    """A status that is not OK: the reader's message."""


class Runtime:
    """The C API: its functions by name, which raise what they refuse."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL(str(_library()))
        self._lib.OrtGetApiBase.restype = ctypes.POINTER(ctypes.c_void_p * 2)
        get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(
            self._lib.OrtGetApiBase().contents[0]
        )
        api = get_api(API_VERSION)
        assert api, f"this onnxruntime has no C API of version {API_VERSION}"
        self._slots = {name: _slot(api, number) for name, number in API.items()}
        table = ctypes.CFUNCTYPE(ctypes.c_void_p)(self._slots["GetModelPackageApi"])()
        self._slots |= {name: _slot(table, number) for number, name in enumerate(PACKAGE_API)}

    def call(self, name: str, *arguments: object) -> None:
        """Call a function that returns a status, or nothing."""
        kind = None if name in VOID else ctypes.c_void_p
        status = ctypes.CFUNCTYPE(kind)(self._slots[name])(*arguments)
        if status:
            message = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)
            raise Refused(message(self._slots["GetErrorMessage"])(status).decode())

    def pointer(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """What a function gives through its last argument."""
        out = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(out))
        return out

    def size(self, name: str, *arguments: object) -> int:
        """A size that a function gives through its last argument."""
        out = ctypes.c_size_t()
        self.call(name, *arguments, ctypes.byref(out))
        return out.value

    def text(self, name: str, *arguments: object) -> str:
        """A text that a function gives through its last argument."""
        out = ctypes.c_char_p()
        self.call(name, *arguments, ctypes.byref(out))
        return (out.value or b"").decode()

    def texts(self, name: str, *arguments: object) -> list[str]:
        """Texts that a function gives through its last two arguments."""
        out, count = ctypes.POINTER(ctypes.c_char_p)(), ctypes.c_size_t()
        self.call(name, *arguments, ctypes.byref(out), ctypes.byref(count))
        return [out[i].decode() for i in range(count.value)]

    def named(self, device: int) -> str:
        """The EP of a device."""
        name = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)
        found: bytes = name(self._slots["EpDevice_EpName"])(device)
        return found.decode()


def _library() -> Path:
    found = importlib.util.find_spec("onnxruntime")
    assert found is not None and found.origin is not None
    folder = Path(found.origin).parent / "capi"
    pattern = "onnxruntime.dll" if os.name == "nt" else "libonnxruntime.*.*"
    return next(p for p in sorted(folder.glob(pattern)) if "providers" not in p.name)


def _slot(table: int, number: int) -> int:
    found = (ctypes.c_void_p * (number + 1)).from_address(table)[number]
    assert found is not None, f"ONNX Runtime has no function {number}"
    return found


def _path(path: str) -> object:
    return ctypes.c_wchar_p(path) if os.name == "nt" else path.encode()


def _options(ort: Runtime, env: ctypes.c_void_p, provider: str) -> ctypes.c_void_p:
    """Session options with the first device of an EP; without one, of the CPU EP."""
    options = ort.pointer("CreateSessionOptions")
    if not provider:
        return options
    library = importlib.import_module(LIBRARIES[provider]).get_library_path()
    ort.call("RegisterExecutionProviderLibrary", env, provider.encode(), _path(str(library)))
    devices, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_size_t()
    ort.call("GetEpDevices", env, ctypes.byref(devices), ctypes.byref(count))
    own = [devices[i] for i in range(count.value) if ort.named(devices[i]) == provider]
    chosen = (ctypes.c_void_p * 1)(own[0])
    one, none = ctypes.c_size_t(1), ctypes.c_size_t(0)
    ort.call(
        "SessionOptionsAppendExecutionProvider_V2", options, env, chosen, one, None, None, none
    )
    return options


def main() -> None:
    """Carry out the request on stdin."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # vendor libraries print to file descriptor 1
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    answer = Answer()
    try:
        _read(request, answer)
    except Refused as error:
        answer.error = str(error)
    answers.write(msgspec.json.encode(answer))
    answers.close()


def _read(request: Request, answer: Answer) -> None:
    ort = Runtime()
    env = ort.pointer("CreateEnv", ctypes.c_int(3), b"reader")
    ort.call("DisableTelemetryEvents", env)
    package = ort.pointer("CreateModelPackageContext", _path(request.package))
    answer.schema = ort.size("ModelPackage_GetSchemaVersion", package)
    for component in ort.texts("ModelPackage_GetComponentNames", package):
        key = component.encode()
        answer.variants[component] = {
            variant: ort.text("ModelPackage_GetVariantEpName", package, key, variant.encode())
            for variant in ort.texts("ModelPackage_GetVariantNames", package, key)
        }
    options = _options(ort, env, request.provider)
    intent = ort.pointer("CreateModelPackageOptionsFromSessionOptions", env, options)
    chosen = ort.pointer("SelectComponent", package, request.component.encode(), intent)
    answer.selected = ort.text("ModelPackageComponent_GetSelectedVariantName", chosen)
    folder = ctypes.c_wchar_p() if os.name == "nt" else ctypes.c_char_p()
    ort.call("ModelPackageComponent_GetSelectedVariantFolderPath", chosen, ctypes.byref(folder))
    answer.folder = folder.value.decode() if isinstance(folder.value, bytes) else folder.value or ""
    if request.feeds:
        session = ort.pointer("CreateSession", env, chosen, None)
        with np.load(request.feeds) as feeds:
            np.savez(request.outputs, allow_pickle=False, **_run(ort, session, dict(feeds)))
        ort.call("ReleaseSession", session)
    ort.call("ReleaseModelPackageComponentContext", chosen)
    ort.call("ReleaseModelPackageOptions", intent)
    ort.call("ReleaseModelPackageContext", package)


def _run(
    ort: Runtime, session: ctypes.c_void_p, feeds: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    allocator = ort.pointer("GetAllocatorWithDefaultOptions")
    count = ort.size("SessionGetOutputCount", session)
    outputs = [
        ort.text("SessionGetOutputName", session, ctypes.c_size_t(i), allocator)
        for i in range(count)
    ]
    memory = ort.pointer("CreateCpuMemoryInfo", ctypes.c_int(0), ctypes.c_int(0))
    arrays = {name: np.ascontiguousarray(array) for name, array in feeds.items()}
    values = [_value(ort, memory, array) for array in arrays.values()]
    names = (ctypes.c_char_p * len(arrays))(*(name.encode() for name in arrays))
    wanted = (ctypes.c_char_p * count)(*(name.encode() for name in outputs))
    found = (ctypes.c_void_p * count)()
    ort.call(
        "Run",
        *(session, None, names, (ctypes.c_void_p * len(values))(*(v.value for v in values))),
        *(ctypes.c_size_t(len(values)), wanted, ctypes.c_size_t(count), found),
    )
    return {name: _array(ort, value) for name, value in zip(outputs, found, strict=True)}


def _value(ort: Runtime, memory: ctypes.c_void_p, array: np.ndarray) -> ctypes.c_void_p:
    kind = next(number for number, dtype in DTYPES.items() if dtype == array.dtype)
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    return ort.pointer(
        "CreateTensorWithDataAsOrtValue",
        *(memory, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)),
        *(shape, ctypes.c_size_t(array.ndim), ctypes.c_int(kind)),
    )


def _array(ort: Runtime, value: int) -> np.ndarray:
    handle = ctypes.c_void_p(value)
    info = ort.pointer("GetTensorTypeAndShape", handle)
    kind = ctypes.c_int()
    ort.call("GetTensorElementType", info, ctypes.byref(kind))
    rank = ort.size("GetDimensionsCount", info)
    shape = (ctypes.c_int64 * rank)()
    ort.call("GetDimensions", info, shape, ctypes.c_size_t(rank))
    data = ort.pointer("GetTensorMutableData", handle)
    dtype = np.dtype(DTYPES[kind.value])
    size = int(np.prod(shape[:], dtype=np.int64)) * dtype.itemsize
    return np.frombuffer(ctypes.string_at(data, size), dtype=dtype).reshape(shape[:]).copy()


if __name__ == "__main__":
    main()
