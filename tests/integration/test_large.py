"""A model beyond protobuf's 2 GB: built with its weights mapped and streamed, never held."""

import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

import epctx
from tests.kit.command_line import PROGRAM

WIDTH = 8192
LAYERS = 12
"""12 matrices of 8192 x 8192 float32: 3.2 GB."""
MOST_ANONYMOUS = 600_000_000


def write_model(path: Path, layers: int = LAYERS) -> int:
    """A chain of MatMuls with external weights; return the bytes of its data."""
    rng = np.random.default_rng(0)
    size = WIDTH * WIDTH * 4
    nodes, weights, last = [], [], "x"
    with path.with_suffix(".data").open("wb") as stream:
        for layer in range(layers):
            name = f"w{layer}"
            rows = rng.integers(-128, 128, WIDTH, dtype=np.int8)
            for row in range(WIDTH):
                stream.write((np.roll(rows, row) / np.float32(WIDTH)).astype(np.float32).data)
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH])
            tensor.data_location = TensorProto.EXTERNAL
            entries = {"location": f"{path.stem}.data", "offset": layer * size, "length": size}
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))
            weights.append(tensor)
            nodes.append(helper.make_node("MatMul", [last, name], [f"y{layer}"], f"mm{layer}"))
            last = f"y{layer}"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "large",
        [value("x", TensorProto.FLOAT, [1, WIDTH])],
        [value(last, TensorProto.FLOAT, [1, WIDTH])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, path)
    return layers * size


def anonymous(process: psutil.Process) -> int:
    """Resident memory of a process that no file is behind, in bytes."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    lines = [line.split() for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(lines[0][1]) * 1024 if lines else 0


@pytest.mark.soak
@pytest.mark.needs("Linux", "only Linux tells anonymous memory apart")
def test_three_gigabytes_are_built_in_little_memory(tmp_path: Path) -> None:
    size = write_model(tmp_path / "large.onnx")
    assert size > 3_000_000_000
    (tmp_path / "m.yaml").write_text(
        "schema_version: 1\nname: m\nmodels: {large: {path: large.onnx}}\n"
        "execution_providers: {reference: {provider: ReferenceExecutionProvider}}\n"
        "model_groups: {g: {models: [large], execution_providers: [reference]}}\n",
        encoding="utf-8",
    )
    command = [*PROGRAM, "build", "m.yaml", "--no-verify"]
    build = subprocess.Popen(command, cwd=tmp_path)
    parent, peaks = psutil.Process(build.pid), dict[int, int]()
    while build.poll() is None:
        for process in [parent, *parent.children(recursive=True)]:
            peaks[process.pid] = max(peaks.get(process.pid, 0), anonymous(process))
        time.sleep(0.02)
    assert build.returncode == 0
    print("peak anonymous memory by process, MB:", [peak // 10**6 for peak in peaks.values()])
    assert max(peaks.values()) < MOST_ANONYMOUS
    group = tmp_path / "dist" / "m" / "default" / "g"
    assert (group / "large_reference.bin").stat().st_size > size
    assert (group / "large_ctx.onnx").stat().st_size < 100_000


PROVIDERS = {
    "qnn": ("onnxruntime_qnn", "QNNExecutionProvider", '{soc_model: "60"}'),
    "vino": ("onnxruntime_ep_openvino", "OpenVINOExecutionProvider", "{}"),
}


@pytest.mark.soak
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.needs(f"module {module}"))
        for name, (module, _, _) in PROVIDERS.items()
    ],
)
def test_more_than_two_gigabytes_on_a_real_ep(tmp_path: Path, name: str) -> None:
    """Beyond what a model can hold inside; the generating sessions' numbers are checked."""
    _, provider, options = PROVIDERS[name]
    size = write_model(tmp_path / "large.onnx", layers=9)
    assert size > 2_400_000_000
    (tmp_path / "m.yaml").write_text(
        "schema_version: 1\nname: m\nmodels: {large: {path: large.onnx}}\n"
        f"execution_providers: {{ep: {{provider: {provider}, options: {options}}}}}\n"
        "model_groups: {g: {models: [large], execution_providers: [ep]}}\n",
        encoding="utf-8",
    )
    report = epctx.build(tmp_path / "m.yaml", out=tmp_path / "dist", cache=False)
    (group,) = report.groups
    assert group.state == "built" and group.verify is not None
    binary = sum(file.size for file in group.files if file.name.endswith(".bin"))
    cosine = min(numbers.comparison.cosine or 0.0 for numbers in group.verify.numbers)
    print(
        f"{name}: {size:,} bytes of weights, binary {binary:,}, cosine {cosine:.6f}, "
        f"{report.seconds:.0f} s, peak {group.peak_memory / 1e9:.1f} GB"
    )
    assert cosine > 0.99
    assert group.models[0].coverage == 1.0
