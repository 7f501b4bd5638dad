"""What the bytes of OpenVINO's CPU plugin depend on: `python -m scripts.openvino_hosts`.

One small model is compiled once for each circumstance, in a fresh process, and the circumstances
that give the same bytes are told together. On an Intel host the CPU is its own, with variables of
the environment that may narrow it; and, wherever `qemu-x86_64` is installed, it is each of the CPUs
that QEMU emulates for one process. QEMU 7.2 emulates instruction sets up to AVX2: what bytes depend
on where there is AVX-512 or AMX, only a host that has them can tell. None has been asked yet.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

QEMU = "qemu-x86_64"
_COMPILE = """
import os, sys
cores = int(sys.argv[1])
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
import onnxruntime as ort, onnxruntime_ep_openvino as openvino
name = "OpenVINOExecutionProvider"
ort.register_execution_provider_library(name, openvino.get_library_path())
devices = [d for d in ort.get_ep_devices() if d.ep_name == name and d.device.type.name == "CPU"]
if not devices:
    sys.exit("OpenVINO offers no CPU device")
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
options.add_provider_for_devices(devices[:1], {})
compiler = ort.ModelCompiler(options, "model.onnx", embed_compiled_data_into_model=False)
compiler.compile_to_file("model_ctx.onnx")
"""


class Circumstance(NamedTuple):
    """How a model is compiled.

    Attributes:
        cpu: what QEMU emulates; None: the host's own.
        cores: how many the process may use.
        variables: of its environment.
    """

    name: str
    cpu: str | None = None
    cores: int = 1
    variables: Mapping[str, str] = {}


def circumstances() -> Iterator[Circumstance]:
    """All that this host can have."""
    if "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        yield from _narrowed("this CPU", None)
        for isa in ("AVX512_CORE", "AVX2", "AVX", "SSE41"):
            variables = {"ONEDNN_MAX_CPU_ISA": isa, "DNNL_MAX_CPU_ISA": isa}
            yield Circumstance(f"this CPU, ONEDNN_MAX_CPU_ISA={isa}", variables=variables)
    if shutil.which(QEMU) is None:
        return
    yield from _narrowed("Haswell", "Haswell")
    variables = {"ONEDNN_MAX_CPU_ISA": "SSE41", "DNNL_MAX_CPU_ISA": "SSE41"}
    yield Circumstance("Haswell, ONEDNN_MAX_CPU_ISA=SSE41", "Haswell", variables=variables)
    for cpu in (
        "Haswell,model=85,stepping=7",
        "Haswell,l3-cache=off",
        "Haswell,-bmi1,-bmi2",
        "Haswell,-fma",
        "Haswell,-f16c",
        "Haswell,-avx2",
        "Broadwell",
        "Skylake-Client",
        "EPYC,vendor=GenuineIntel",
        "IvyBridge",
        "SandyBridge",
        "Nehalem",
        "Westmere",
    ):
        yield Circumstance(cpu, cpu)


def _narrowed(name: str, cpu: str | None) -> Iterator[Circumstance]:
    yield Circumstance(name, cpu)
    yield Circumstance(f"{name}, again", cpu)
    yield Circumstance(f"{name}, OMP_NUM_THREADS=4", cpu, variables={"OMP_NUM_THREADS": "4"})
    yield Circumstance(f"{name}, two cores", cpu, cores=2)


def save_model(path: Path) -> None:
    """A model with convolution, norms, matrix products and a softmax; seeded."""
    rng = np.random.default_rng(0)
    shapes = {"k": (32, 3, 3, 3), "w1": (32, 256), "s": (256,), "b": (256,), "w2": (256, 64)}
    weights = {n: (rng.standard_normal(s) / 8).astype(np.float32) for n, s in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("MatMul", ["f", "w1"], ["g"]),
        helper.make_node("LayerNormalization", ["g", "s", "b"], ["l"]),
        helper.make_node("Gelu", ["l"], ["m"]),
        helper.make_node("MatMul", ["m", "w2"], ["o"]),
        helper.make_node("Softmax", ["o"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)


def digest(how: Circumstance) -> str:
    """The SHA-256 of what is compiled so, model and binary; or why nothing is."""
    emulator = () if how.cpu is None else (QEMU, "-cpu", how.cpu)
    python = getattr(sys, "_base_executable", sys.executable)
    with tempfile.TemporaryDirectory(prefix="epctx-openvino-") as folder:
        save_model(Path(folder, "model.onnx"))
        done = subprocess.run(
            [*emulator, python, "-c", _COMPILE, str(how.cores)],
            cwd=folder,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "ORT_DISABLE_TELEMETRY": "1",
                **how.variables,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
        files = sorted(path for path in Path(folder).iterdir() if path.name != "model.onnx")
        return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def alike(found: Mapping[str, str]) -> list[list[str]]:
    """The circumstances that give the same, together."""
    groups: dict[str, list[str]] = {}
    for name, result in found.items():
        groups.setdefault(result, []).append(name)
    return list(groups.values())


def lines(found: Mapping[str, str]) -> Sequence[str]:
    """What is printed."""
    groups = ((found[names[0]], names) for names in alike(found))
    return [f"{result[:60]}\n  " + "\n  ".join(names) for result, names in groups]


if __name__ == "__main__":
    results = {each.name: digest(each) for each in circumstances()}
    print("\n".join(lines(results)) or f"needs an Intel CPU, or {QEMU}")
