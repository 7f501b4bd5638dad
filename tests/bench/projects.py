"""Models of any size, manifests of them, and the build that is measured."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

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


def write_manifest(folder: Path, models: list[str], provider: str, options: str = "") -> Path:
    """Each model in a group of its own."""
    lines = ["schema_version: 1", "name: m", "models:"]
    lines += [f"  {name}: {{path: {name}.onnx}}" for name in models]
    lines += [f"execution_providers: {{ep: {{provider: {provider}{options}}}}}", "model_groups:"]
    lines += [f"  {name}: {{models: [{name}], execution_providers: [ep]}}" for name in models]
    path = folder / "m.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
