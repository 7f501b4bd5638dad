"""Writes the seeds that fuzzing starts from: `python -m tests.fuzz.seeds`.

Inputs that once were a finding are in the same folders, by a name that says what they did; they are
not written here and are let alone.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CORPUS = Path(__file__).parent / "corpus"
ROOT = Path(__file__).parents[2]
VALUE = helper.make_tensor_value_info
MAX = 16_000
"""Bytes of a seed: small ones are mutated faster."""


def _manifests() -> Iterator[tuple[str, bytes]]:
    for path in sorted((ROOT / "manifests").glob("*.yaml")):
        if not path.name.endswith(".lock.yaml"):
            yield path.stem, path.read_bytes()
    for path in sorted((ROOT / "tests/golden/invalid").glob("*.yaml"))[::4]:
        yield f"invalid-{path.stem}", path.read_bytes()
    yield "aliases", b"a: &a [1, 2]\nb: *a\nc: {<<: *a, ? x : 1}\n--- !!t\n"


def _built() -> Iterator[tuple[str, str, bytes]]:
    """Target, name and bytes of what a build of a small sharing group makes."""
    from tests.kit.projects import make

    with tempfile.TemporaryDirectory() as folder:
        os.environ["EPCTX_CACHE_DIR"] = f"{folder}/cache"
        project = make(Path(folder) / "p", {"g": ["a", "b"], "h": ["a"]})
        project.section("model_groups", "h")["embed_mode"] = 1
        project.build()
        for name, data in project.files().items():
            if name.endswith("SHA256SUMS"):
                yield "sums", "built", data
            if name.endswith(".onnx"):
                yield "context_node", Path(name).parent.name + Path(name).stem, data
        yield "lock", "built", project.lock.read_bytes()
        for number, path in enumerate(sorted(Path(f"{folder}/cache/v1/actions").glob("*/*"))):
            payload = path.read_bytes()[65:]
            if b'"compile"' in payload[:40]:
                yield "cache_record", f"compile-{number}", payload


def _released() -> Iterator[tuple[str, str, bytes]]:
    """Target, name and bytes of what a release of a small group is made of."""
    from epctx.files.outputs import GOLDEN
    from tests.kit.command_line import epctx
    from tests.kit.packaged import made, package, with_extras

    with tempfile.TemporaryDirectory() as folder:
        os.environ["EPCTX_CACHE_DIR"] = f"{folder}/cache"
        project = with_extras(Path(folder) / "p")
        package(project)
        yield "package", "built", (made(project) / "manifest.json").read_bytes()
        ended = epctx("build", "m.yaml", "--golden", "--attest", cwd=project.folder)
        assert ended.returncode == 0, ended.stderr
        dist = project.folder / "dist"
        report = json.loads((dist / "m.build.json").read_bytes())
        report["groups"] = report["groups"][:1]
        yield "report", "built", json.dumps(report, separators=(",", ":")).encode()
        (path,) = dist.glob("*.intoto.json*")
        yield "attestation", "built", path.read_bytes()
        given = dist / "m" / "one" / "g" / GOLDEN
        (arrays,) = given.glob("*.npz")
        yield "golden", "built", (given / "golden.json").read_bytes() + b"\0" + arrays.read_bytes()


def _archive() -> bytes:
    from epctx.engine.output import archive
    from epctx.lockfile.types import LockedFile
    from tests.fuzz.artifacts import RELEASED

    with tempfile.TemporaryDirectory() as folder:
        for name, data in RELEASED.items():
            path = Path(folder) / "m" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        files = {
            name: LockedFile(size=len(data), sha256=hashlib.sha256(data).hexdigest())
            for name, data in RELEASED.items()
        }
        archive.write(Path(folder) / "m.tar", Path(folder) / "m", files)
        return (Path(folder) / "m.tar").read_bytes()


def _answers() -> Iterator[tuple[str, bytes]]:
    yield "started", b'{"started": {"stage": "compile", "model": "m", "provider": "QNN"}}'
    for kind in ("CompileError", "InvalidManifest", "Unknown"):
        failure = {"kind": kind, "exit_code": 6, "what": "w", "remedy": "r", "group": None}
        yield kind, json.dumps({"error": failure}).encode()
    yield "result", b'{"result": {"models": [], "files": []}}'


def _reference_binaries() -> Iterator[tuple[str, bytes]]:
    """Without weights, which makes them small, and with one."""
    from tests.kit.building import build, mlp, model_of

    def one() -> onnx.ModelProto:
        node = helper.make_node("Relu", ["x"], ["y"], name="n")
        floats = [VALUE(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
        return model_of(helper.make_graph([node], "g", floats[:1], floats[1:]))

    for name, models in {
        "one": {"m": one()},
        "two": {"m": one(), "n": one()},
        "weights": {"m": mlp(width=32, layers=1)},
    }.items():
        with tempfile.TemporaryDirectory() as folder:
            binary = build(Path(folder), models) / "m_reference.bin"
            yield name, b"\x01" + binary.read_bytes()


def _models() -> Iterator[tuple[str, onnx.ModelProto]]:
    floats = [VALUE("x", TensorProto.FLOAT, ["n", 4]), VALUE("y", TensorProto.FLOAT, ["n", 4])]
    weight = numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")

    def model(nodes: list[onnx.NodeProto], **rest: object) -> onnx.ModelProto:
        graph = helper.make_graph(nodes, "g", floats[:1], floats[1:], [weight])
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10, **rest)

    add = helper.make_node("Add", ["x", "w"], ["y"], name="add")
    yield "add", model([add])
    external = model([add])
    external.graph.initializer[0].ClearField("raw_data")
    external.graph.initializer[0].data_location = TensorProto.EXTERNAL
    for key, value in {"location": "w.data", "offset": "16", "length": "16"}.items():
        external.graph.initializer[0].external_data.add(key=key, value=value)
    yield "external", external
    body = helper.make_graph([helper.make_node("Neg", ["x"], ["z"])], "b", [], [floats[1]])
    body.output[0].name = "z"
    cond = helper.make_node("Constant", [], ["c"], value_int=1)
    cast = helper.make_node("Cast", ["c"], ["cc"], to=TensorProto.BOOL)
    branches = helper.make_node("If", ["cc"], ["y"], then_branch=body, else_branch=body)
    yield "if", model([cond, cast, branches])
    function = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 21)],
    )  # fmt: skip
    calling = model([helper.make_node("Twice", ["x"], ["y"], domain="mine")], functions=[function])
    calling.opset_import.append(helper.make_opsetid("mine", 1))
    yield "function", calling
    sparse = model([add])
    sparse.graph.sparse_initializer.append(
        onnx.SparseTensorProto(
            values=numpy_helper.from_array(np.ones(1, np.float32), "w"),
            indices=numpy_helper.from_array(np.zeros(1, np.int64), "i"),
            dims=[4],
        )
    )
    del sparse.graph.initializer[:]
    yield "sparse", sparse


def _contexts() -> Iterator[tuple[str, onnx.ModelProto]]:
    kinds: dict[str, dict[str, Any]] = {
        "path": {"embed_mode": 0, "ep_cache_context": "m_qnn.bin", "source": "QNN"},
        "payload": {"embed_mode": 1, "ep_cache_context": b"\x89EPCTX\r\n\1", "source": "reference"},
        "secondary": {"main_context": 0, "embed_mode": 0, "partition_name": "p", "max_size": 9},
        "broken": {"main_context": 7, "embed_mode": "0", "ep_cache_context": 3, "mine": [1.0]},
    }
    for name, attributes in kinds.items():
        node = helper.make_node(
            "EPContext", ["x"], ["y"], name=name, domain="com.microsoft", **attributes
        )
        floats = [VALUE(each, TensorProto.FLOAT, [1, 4]) for each in "xy"]
        graph = helper.make_graph([node], "g", floats[:1], floats[1:])
        imports = [helper.make_opsetid("com.microsoft", 1)]
        made = helper.make_model(graph, opset_imports=imports, ir_version=13)
        helper.set_model_props(made, {"ep_compatibility_info.QNNExecutionProvider": "v2:6"})
        yield name, made


def _external_data() -> Iterator[tuple[str, bytes]]:
    sha1 = "6f3b2b3a0a4b7f8a3d0f7d9e6d1d8a5b9c0e1f2a"
    for name, keys in {
        "plain": {"location": "w.data"},
        "range": {"location": "w.data", "offset": "4096", "length": "16", "checksum": sha1},
        "wide": {"location": "../w.data", "offset": "9223372036854775807", "basepath": "/"},
        "deep": {"location": "sub/./w.data", "length": "-1"},
    }.items():
        tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 2])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in keys.items():
            tensor.external_data.add(key=key, value=value)
        yield name, tensor.SerializeToString()


def _openvino() -> bytes:
    def text(name: bytes, value: bytes) -> bytes:
        return b"\x02" + name + b"\0" + struct.pack("<i", len(value) + 1) + value + b"\0"

    def document(*elements: bytes) -> bytes:
        return struct.pack("<i", sum(map(len, elements)) + 5) + b"".join(elements) + b"\0"

    def number(name: bytes, value: int) -> bytes:
        return b"\x12" + name + b"\0" + struct.pack("<q", value)

    blob = b"\x03part_1\0" + document(number(b"data_offset", 250), number(b"size", 8))
    others = b"\x01f\0" + bytes(8) + b"\x05b\0" + struct.pack("<i", 2) + b"\0hi\x08t\0\1\x0an\0"
    table = document(
        b"\x03blob_metadata_map\0" + document(blob), text(b"producer", b"plugin"),
        text(b"version", b"1.1.0"), others, b"\x10i\0" + struct.pack("<i", 7),
    )  # fmt: skip
    return struct.pack("<8sQQQQ", b"OVEP_BIN", 1, 40, 40, len(table)) + table + bytes(64)


def _inputs() -> Iterator[tuple[str, bytes]]:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    for number, save in enumerate((np.savez, np.savez_compressed)):
        stream = io.BytesIO()
        save(stream, x=values, ids=np.arange(3))
        yield f"npz-{number}", b"\0" + stream.getvalue()
    stream = io.BytesIO()
    np.save(stream, values)
    yield "npy", b"\1" + stream.getvalue()
    for name, array in {"pb": values, "strings": np.array(["a", "b"], object)}.items():
        yield name, b"\2" + numpy_helper.from_array(array, "x").SerializeToString()


def _plugin_options() -> Iterator[tuple[str, bytes]]:
    library = {"plugin.library": "FOLDER/sdk/libacme.so"}
    kinds: dict[str, dict[str, Any]] = {
        "library": {**library, "plugin.device_type": "NPU", "plugin.device_index": 1, "a": True},
        "names": {**library, "plugin.device_name": "acme", "plugin.registration": "a.virtual"},
        "package": {"plugin.package": "numpy", "speed": 1.5, "more": ["a", "b"]},
        "both": {**library, "plugin.package": "onnxruntime"},
        "long": {"plugin.library": "/" + "l" * 300},
        "odd": {"plugin.libary": "x", "plugin.device_index": "-1"},
    }
    for name, options in kinds.items():
        yield name, json.dumps(options).encode()


def everything() -> Iterator[tuple[str, str, bytes]]:
    """Target, name and bytes of every seed."""
    for name, data in _manifests():
        yield "manifest", name, data
    yield from _built()
    for name, data in _reference_binaries():
        yield "reference_binary", name, data
    for name, model in _models():
        for target in ("model", "stripped_model", "context_node"):
            yield target, name, model.SerializeToString(deterministic=True)
    for name, model in _contexts():
        for target in ("stripped_model", "context_node"):
            yield target, f"context-{name}", model.SerializeToString(deterministic=True)
    for name, data in _external_data():
        yield "external_data", name, data
    yield "compatibility", "qnn", b"v2:6:2.51.0:5.51.0:0:60:0:0"
    yield "compatibility", "openvino", b'{"ov_compat_string": "2026.4", "ovep_ver": "1.8.1"}'
    yield "openvino_binary", "one-blob", _openvino()
    yield "sums", "odd", b"0" * 64 + b" *a b\n\\" + b"f" * 64 + b"  ../x\n" + b"1" * 63 + b"  y\n\n"
    for name, data in _inputs():
        yield "input_file", name, data
    for name, data in _plugin_options():
        yield "plugin_options", name, data
    yield from _released()
    yield "archive", "built", _archive()
    yield "archive", "empty", bytes(10240)
    yield "load_config", "cpu", b'{"CPU": {"INFERENCE_PRECISION_HINT": "bf16"}, "CPU.0": {}}'
    yield "load_config", "cache", b'{"CPU": {"CACHE_DIR": "/tmp"}}'
    for name, data in _answers():
        yield "answer", name, data
    for name, data in _manifests():
        if name.startswith("invalid-") or name == "quickstart":
            yield "completion", name, data


def main() -> None:
    """Write them all."""
    for target, name, data in everything():
        path = CORPUS / target / name
        if len(data) > MAX:
            print(f"left out, {len(data)} bytes: {target}/{name}")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    main()
