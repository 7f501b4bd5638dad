"""EPContext models of QNN and OpenVINO that epctx did not build: verified and inspected as any.

They are made as ONNX Runtime's own documentation does it, in a process each.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

from epctx.cli.app import app
from tests.kit import real_models as models
from tests.kit.devices import lacking

pytestmark = [
    pytest.mark.needs("module onnxruntime_qnn"),
    pytest.mark.needs("module onnxruntime_ep_openvino"),
]
QNN, VINO = "QNNExecutionProvider", "OpenVINOExecutionProvider"
BARE = """
import sys
import onnxruntime as ort
import onnxruntime_ep_openvino, onnxruntime_qnn
name, *sessions = sys.argv[1:]
library = onnxruntime_qnn if name.startswith("QNN") else onnxruntime_ep_openvino
ort.register_execution_provider_library(name, library.get_library_path())
device = next(device for device in ort.get_ep_devices() if device.ep_name == name)
own = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": "60"}
alive = []
for session in sessions:
    model, *entries = session.split(",")
    options = ort.SessionOptions()
    options.add_provider_for_devices([device], own if name.startswith("QNN") else {})
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", f"{model}_ctx.onnx")
    for entry in entries:
        options.add_session_config_entry(entry, "1")
    alive.append(ort.InferenceSession(f"../{model}.onnx", options, enable_fallback=0))
while alive:
    alive.pop()
"""
VINO_MADE = "vino"
on_openvino = pytest.param(VINO_MADE, marks=pytest.mark.needs_device(VINO))
SHARE, STOP = "ep.share_ep_contexts", "ep.stop_share_ep_contexts"
MADE = {
    "qnn": (QNN, "sinh"),
    "embedded": (QNN, "sinh,ep.context_embed_mode"),
    "shared": (QNN, f"sinh,{SHARE}", f"small,{SHARE},{STOP}"),
    VINO_MADE: (VINO, "sinh"),
    "never stopped": (QNN, f"sinh,{SHARE}", f"small,{SHARE}"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("foreign")
    onnx.save(models.mlp(layers=3, width=32, middle="Sinh"), root / "sinh.onnx")
    onnx.save(models.mlp(layers=2, width=32), root / "small.onnx")
    for name, arguments in MADE.items():
        if lacking(arguments[0]) is not None:
            continue  # its tests are skipped
        (root / name).mkdir()
        command = [sys.executable, "-c", BARE, *arguments]
        ran = subprocess.run(command, cwd=root / name, capture_output=True, check=False)
        # A group that nobody stopped ends in SIGABRT, with all of its models written.
        assert (ran.returncode == 0) == (name != "never stopped"), ran.stderr
    return root


def verify(folder: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["verify", str(folder)])
    return result.exit_code, result.stdout


@pytest.mark.parametrize("name", ["qnn", "embedded", "shared", on_openvino])
def test_what_is_right_passes_and_lacks_its_sums(made: Path, name: str) -> None:
    code, told = verify(made / name)
    assert code == 0, told
    assert "epctx did not build this folder" in told
    assert "failed" not in told


def test_a_group_that_nobody_stopped_has_no_binary(made: Path) -> None:
    code, told = verify(made / "never stopped")
    assert code == 7
    assert "failed[E0702]: sinh_ctx.onnx: node" in told
    assert "failed[E0702]: small_ctx.onnx: node" in told
    assert "it does not exist" in told


def test_models_that_were_bound_to_an_older_binary_are_found(made: Path, tmp_path: Path) -> None:
    """What ONNX Runtime does where one lies: it loads, and computes something else."""
    shutil.copytree(made / "never stopped", tmp_path / "stale")
    shutil.copy(made / "qnn" / "sinh_ctx_qnn.bin", tmp_path / "stale")
    code, told = verify(tmp_path / "stale")
    assert code == 7
    misfit = "small_ctx.onnx: 'sinh_ctx_qnn.bin': the context binary does not match its models"
    assert misfit in told


KINDS = {"qnn": "SoC       60 (sc8380xp, v73)", VINO_MADE: "OpenVINO context binary"}


@pytest.mark.parametrize("name", ["qnn", on_openvino])
def test_inspect_tells_nodes_and_graphs(made: Path, name: str) -> None:
    result = CliRunner().invoke(app, ["inspect", str(made / name / "sinh_ctx.onnx")])
    assert result.exit_code == 0, result.stderr
    assert KINDS[name] in result.stdout and "EPContext node" in result.stdout


def test_inspect_tells_files(made: Path) -> None:
    result = CliRunner().invoke(
        app, ["inspect", "--files", str(made / "shared" / "small_ctx.onnx")]
    )
    shipped = [Path(line).name for line in result.stdout.splitlines()]
    assert shipped == ["small_ctx.onnx", "sinh_ctx_qnn.bin"]
