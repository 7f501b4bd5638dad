"""Models of any size, manifests of them, and the build that is measured."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.kit.command_line import PROGRAM

ROOT = Path(__file__).parents[2]
BUILD = [*PROGRAM, "build", "m.yaml", "--no-verify"]
BARE_QNN = """\
import hashlib, sys
from pathlib import Path
import onnxruntime as ort, onnxruntime_qnn as qnn
ort.register_execution_provider_library("QNNExecutionProvider", qnn.get_library_path())
device = next(d for d in ort.get_ep_devices() if d.ep_name == "QNNExecutionProvider")
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
options.add_provider_for_devices(
    [device], {"backend_path": qnn.get_qnn_htp_path(), "soc_model": "60"})
options.add_session_config_entry("ep.context_enable", "1")
options.add_session_config_entry("ep.context_file_path", sys.argv[2])
ort.InferenceSession(sys.argv[1], options, enable_fallback=0)
for path in sorted(Path(sys.argv[2]).parent.iterdir()):
    with path.open("rb") as stream:
        print(path.name, hashlib.file_digest(stream, "sha256").hexdigest())
"""
BARE_RUN = """\
import hashlib, sys
from pathlib import Path
import numpy as np, onnxruntime as ort, onnxruntime_qnn as qnn
ort.register_execution_provider_library("QNNExecutionProvider", qnn.get_library_path())
device = next(d for d in ort.get_ep_devices() if d.ep_name == "QNNExecutionProvider")
out, sets, names = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
rng, sessions = np.random.default_rng(0), []
for name in names:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_provider_for_devices(
        [device], {"backend_path": qnn.get_qnn_htp_path(), "soc_model": "60"})
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(out / f"{name}_ctx.onnx"))
    if len(names) > 1:
        options.add_session_config_entry("ep.share_ep_contexts", "1")
        last = "1" if name == names[-1] else "0"
        options.add_session_config_entry("ep.stop_share_ep_contexts", last)
    sessions.append(ort.InferenceSession(f"{name}.onnx", options, enable_fallback=0))
def fed(value):
    if value.type == "tensor(int32)":
        return rng.integers(0, 64, value.shape, np.int32)
    return rng.standard_normal(value.shape).astype(np.float32)
for session in sessions:
    for _ in range(sets):
        session.run(None, {value.name: fed(value) for value in session.get_inputs()})
for path in sorted(out.iterdir()):
    with path.open("rb") as stream:
        print(path.name, hashlib.file_digest(stream, "sha256").hexdigest())
while sessions:
    sessions.pop()
"""
"""Compiles models, into one context if there are several, and runs each so many times."""

BARE_GROUP = """\
import hashlib, sys
from pathlib import Path
import numpy as np, onnxruntime as ort, onnxruntime_qnn as qnn
ort.register_execution_provider_library("QNNExecutionProvider", qnn.get_library_path())
device = next(d for d in ort.get_ep_devices() if d.ep_name == "QNNExecutionProvider")
model, context, runs = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "run"
def on_qnn(path, **entries):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_provider_for_devices(
        [device], {"backend_path": qnn.get_qnn_htp_path(), "soc_model": "60"})
    for key, text in entries.items():
        options.add_session_config_entry("ep.context_" + key, text)
    return ort.InferenceSession(path, options, enable_fallback=0)
generating = on_qnn(model, enable="1", file_path=str(context))
for path in sorted(context.parent.iterdir()):
    with path.open("rb") as stream:
        print(path.name, hashlib.file_digest(stream, "sha256").hexdigest())
if runs:
    del generating
    loaded = on_qnn(str(context))
    rng = np.random.default_rng(0)
    fed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in loaded.get_inputs()}
    source = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    for one, other in zip(loaded.run(None, fed), source.run(None, fed), strict=True):
        assert np.abs(one - other).max() <= 0.05 * np.abs(other).max()
"""
"""Compiles a model and hashes the files; with `run`, also loads, runs and compares them."""

BARE_GROUPS = """\
import subprocess, sys
from concurrent.futures import ThreadPoolExecutor
script, mode, *names = sys.argv[1:]
def one(name):
    command = [sys.executable, "-c", script, f"{name}.onnx", f"bare-{name}/m_ctx.onnx", mode]
    subprocess.run(command, check=True)
with ThreadPoolExecutor(2) as pool:
    list(pool.map(one, names))
"""
"""Runs `BARE_GROUP` for each model, in a fresh process, two at a time."""


def export(name: str, folder: Path) -> None:
    """Have a model written by the environment that has torch."""
    python = ROOT / ".venv-zoo" / "bin" / "python"
    script = Path(__file__).with_name("exported.py")
    subprocess.run([python, script, name, folder], check=True, capture_output=True)


def write_mlp(path: Path, layers: int, width: int, seed: int = 0) -> int:
    """A chain of MatMul and Relu with external weights; return the bytes of its data."""
    rng = np.random.default_rng(seed)
    nodes, weights, last, offset = [], [], "x", 0
    with path.with_suffix(".data").open("wb") as stream:
        for layer in range(layers):
            matrix = rng.standard_normal((width, width), np.float32) / np.float32(width**0.5)
            stream.write(matrix.data)
            name = f"w{layer}"
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[width, width])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in {
                "location": f"{path.stem}.data",
                "offset": offset,
                "length": matrix.nbytes,
            }.items():
                tensor.external_data.add(key=key, value=str(value))
            offset += matrix.nbytes
            weights.append(tensor)
            nodes.append(helper.make_node("MatMul", [last, name], [f"m{layer}"], f"mm{layer}"))
            nodes.append(helper.make_node("Relu", [f"m{layer}"], [f"r{layer}"], f"relu{layer}"))
            last = f"r{layer}"
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        path.stem,
        [info("x", TensorProto.FLOAT, [1, width])],
        [info(last, TensorProto.FLOAT, [1, width])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, path)
    return offset


def write_cnn(path: Path, seed: int) -> None:
    """Write a small CNN: three layers of Conv and Relu, pooling, and a dense layer."""
    rng = np.random.default_rng(seed)
    nodes, weights, last, channels = [], [], "x", 3

    def weight(name: str, *shape: int) -> str:
        values = rng.standard_normal(shape, np.float32) / np.float32(np.prod(shape[1:]) ** 0.5)
        weights.append(numpy_helper.from_array(values, name))
        return name

    for layer, stride in enumerate((1, 2, 2)):
        width = 8 * (layer + 1 + seed % 4)
        inputs = [last, weight(f"w{layer}", width, channels, 3, 3), weight(f"b{layer}", width)]
        conv = helper.make_node("Conv", inputs, [f"c{layer}"], pads=[1] * 4, strides=[stride] * 2)
        nodes.append(conv)
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"], f"relu{layer}"))
        last, channels = f"r{layer}", width
    nodes.append(helper.make_node("GlobalMaxPool", [last], ["pooled"], "pool"))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"))
    inputs = ["flat", weight("w", 10, channels), weight("b", 10)]
    nodes.append(helper.make_node("Gemm", inputs, ["y"], "dense", transB=1))
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, path)


def write_manifest(folder: Path, models: list[str], provider: str, options: str = "") -> Path:
    """Each model in a group of its own."""
    lines = ["schema_version: 1", "name: m", "models:"]
    lines += [f"  {name}: {{path: {name}.onnx}}" for name in models]
    lines += [f"execution_providers: {{ep: {{provider: {provider}{options}}}}}", "model_groups:"]
    lines += [f"  {name}: {{models: [{name}], execution_providers: [ep]}}" for name in models]
    path = folder / "m.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
