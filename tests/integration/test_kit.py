"""Kits on what stands for a device: QNN's simulator, the CPU, an environment without epctx."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import yaml

from epctx import api
from tests.kit import command_line, kits, real_models
from tests.kit.inline import Inline

QNN = "QNNExecutionProvider"
pytestmark = pytest.mark.needs_device(QNN)
PATCHED = """
import os
import onnxruntime
real = onnxruntime.InferenceSession
def session(path, *given, **named):
    if {which!r} in path:
        {what}
    return real(path, *given, **named)
onnxruntime.InferenceSession = session
"""
"""An onnxruntime that ends or hangs where it loads one model, as an EP's library may: no real model
does so every time."""
DRIVER = """
from types import SimpleNamespace as Namespace
import onnxruntime
def seen(device):
    inner = Namespace(type=device.device.type, vendor="x", metadata={"os_driver_version": "31.0.5"})
    return Namespace(real=device, ep_name=device.ep_name, ep_metadata={}, device=inner)
ask = onnxruntime.get_ep_devices
onnxruntime.get_ep_devices = lambda: [seen(each) for each in ask()]
class Options(onnxruntime.SessionOptions):
    def add_provider_for_devices(self, devices, options):
        super().add_provider_for_devices([each.real for each in devices], options)
onnxruntime.SessionOptions = Options
"""
"""An onnxruntime whose devices tell of a driver, as those of Windows' NPUs do: none does here."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model alone, two that share a context, one of the reference EP, one of the CPU."""
    folder = tmp_path_factory.mktemp("built")
    for name, batch in (("solo", 1), ("prefill", 4), ("decode", 1)):
        real_models.save(folder / f"{name}.onnx", real_models.mlp(batch=batch, width=32, layers=2))
    groups = {
        "alone": {"models": ["solo"], "execution_providers": ["htp"]},
        "cpu": {"models": ["solo"], "execution_providers": []},
        "reference": {"models": ["solo"], "execution_providers": ["ref"]},
        "shared": {
            "models": ["prefill", "decode"],
            "execution_providers": ["htp"],
            "sharing_groups": {"main": ["prefill", "decode"]},
        },
    }
    document = {
        "schema_version": 1,
        "name": "m",
        "models": {n: {"path": f"{n}.onnx"} for n in ("solo", "prefill", "decode")},
        "execution_providers": {
            "htp": {"provider": QNN, "options": {"soc_model": "60"}},
            "ref": {"provider": "ReferenceExecutionProvider"},
        },
        "model_groups": groups,
    }
    (folder / "m.yaml").write_text(yaml.safe_dump(document))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPCTX_CACHE_DIR", str(folder / "cache"))
        api.build(folder / "m.yaml", out=folder / "dist", golden=True)
    return folder / "dist" / "m"


@pytest.fixture
def kit(built: Path, tmp_path: Path) -> Callable[..., Path]:
    """Pack groups of the build, so that each test runs no more than it needs."""

    def pack(*groups: str) -> Path:
        source = tmp_path / "dist" / "m"
        for group in groups:
            shutil.copytree(built / "default" / group, source / "default" / group)
        shutil.copy(Path(f"{built}.build.json"), source.with_name("m.build.json"))
        with mock.patch("epctx.worker.pool.Worker", Inline):  # no EP is loaded
            return api.kit(source, out=tmp_path / "k").path

    return pack


def test_all_groups_each_with_its_verdict(kit: Callable[..., Path], tmp_path: Path) -> None:
    made = kit("alone", "cpu", "reference", "shared")
    ran = kits.check(made)
    assert ran.returncode == 1
    assert "default/alone/solo: load" in ran.stdout and "default/cpu/solo: load" in ran.stdout
    assert "ReferenceExecutionProvider has no library for ONNX Runtime" in ran.stderr
    assert f"FAILED: default/shared/prefill: {QNN} needs a device NPU for these" in ran.stderr
    found = {each["model"]: each for each in kits.results(made)["models"]}
    alone = found["default/alone/solo"]
    assert len(alone["sdk"]) == 1 and alone["runs"] == 3 and alone["median"] <= alone["p99"]
    assert not alone["problems"] and 0.99 < alone["numbers"][0]["cosine"] <= 1.0001
    (device,) = kits.results(made)["devices"]
    assert device["ep"] == QNN and device["drivers"] == {}
    said = command_line.inside(
        "verify", "dist/m", "--device-results", "device.json", "-v", cwd=tmp_path
    )
    assert said.returncode == 7
    assert "of the device agree with the golden outputs" in said.stdout
    only = command_line.inside(
        "verify", "dist/m/default/alone", "--device-results", "device.json", cwd=tmp_path
    )
    assert only.returncode == 0, only.stdout


def test_a_damaged_binary_is_told_and_not_loaded(kit: Callable[..., Path]) -> None:
    made = kit("alone", "cpu")
    binary = made / "default" / "alone" / "solo_qnn.bin"
    content = bytearray(binary.read_bytes())
    content[len(content) // 2] ^= 1
    binary.write_bytes(content)
    ran = kits.check(made)
    assert ran.returncode == 1
    (told,) = ran.stderr.splitlines()
    assert "default/alone/solo: not loaded: default/alone/solo_qnn.bin is damaged" in told
    damaged, other = kits.results(made)["models"]
    assert "load" not in damaged and other["runs"] == 3


def test_a_wrong_number_is_told(kit: Callable[..., Path]) -> None:
    made = kit("alone")
    path = made / "default" / "alone" / "golden" / "solo.npz"
    with np.load(path) as stored:
        arrays = {name: stored[name] + 0.5 * ("outputs" in name) for name in stored.files}
    np.savez(path, **arrays)
    assert "golden/solo.npz is damaged" in kits.check(made).stderr
    kits.sum_again(made)
    ran = kits.check(made)
    assert ran.returncode == 1 and "output y: wrong numbers: max_rel" in ran.stderr


def test_another_driver_is_told_there_and_here(kit: Callable[..., Path], tmp_path: Path) -> None:
    made = kit("alone")
    ran = kits.check(made, "--expect-driver", "31.0.5")
    assert f"the driver of {QNN} is unknown, but it should be 31.0.5" in ran.stderr
    (tmp_path / "sitecustomize.py").write_text(DRIVER)
    ran = kits.check(made, "--expect-driver", "31.0.5", PYTHONPATH=str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    ran = kits.check(made, "--expect-driver", "30.0", PYTHONPATH=str(tmp_path))
    told = f"the driver of {QNN} is os_driver_version 31.0.5, but it should be 30.0"
    assert ran.returncode == 1 and told in ran.stderr
    said = command_line.inside("verify", "dist/m", "--device-results", "device.json", cwd=tmp_path)
    assert said.returncode == 7 and told in said.stdout


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("os.abort()", "its process ended with signal 6 while loading default/alone/solo"),
        ("__import__('time').sleep(300)", "it did not end within 4 s while loading default/alone"),
        ("os._exit(9)", "its process ended with exit code 0x9 while loading default/alone/solo"),
        ("raise RuntimeError('no')", "default/alone/solo cannot be loaded: no"),
    ],
)
@pytest.mark.needs("POSIX", "signals are numbered")
def test_a_model_that_ends_its_process_loses_no_other(
    kit: Callable[..., Path], tmp_path: Path, what: str, told: str
) -> None:
    made = kit("alone", "cpu")
    (tmp_path / "sitecustomize.py").write_text(PATCHED.format(which="alone/solo", what=what))
    ran = kits.check(made, "--timeout", "4", PYTHONPATH=str(tmp_path))
    assert ran.returncode == 1 and told in ran.stderr
    assert "default/cpu/solo: load" in ran.stdout


@pytest.mark.needs("POSIX", "signals are numbered")
def test_a_process_that_dies_when_all_is_done_is_told(
    kit: Callable[..., Path], tmp_path: Path
) -> None:
    made = kit("cpu")
    patch = "import atexit, os, sys\nif '--child' in sys.orig_argv: atexit.register(os.abort)\n"
    (tmp_path / "sitecustomize.py").write_text(patch)
    ran = kits.check(made, PYTHONPATH=str(tmp_path))
    assert ran.returncode == 1 and "ended with signal 6 while it ended" in ran.stderr
    assert kits.results(made)["models"][0]["runs"] == 3


def test_results_go_into_a_folder_that_is_there(kit: Callable[..., Path]) -> None:
    ran = kits.check(kit("cpu"), "--out", "nowhere/device.json")
    assert ran.returncode == 2 and "the folder nowhere does not exist" in ran.stderr


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"model": {"file": "../x.onnx", "files": ["../x.onnx"]}},
            "../x.onnx is not in SHA256SUMS",
        ),
        ({"eps": [{"ep": QNN, "registration": "x", "module": "os"}]}, "not a function of an EP"),
        ({"eps": [{"ep": "Nobody"}]}, "Nobody needs a device"),
        ({"eps": [{"ep": "N", "registration": "x"}]}, "give --library N=PATH"),
        ({"model": 5}, "copy the kit again"),
        ({"models": None}, "copy the kit again"),
    ],
)
def test_a_kit_that_was_changed_does_nothing_else(
    kit: Callable[..., Path], change: dict[str, object], told: str
) -> None:
    made = kit("cpu")
    model = change.get("model", {})
    kits.edit(made, **({"models": [model]} if model == 5 else change))
    ran = kits.check(made)
    assert ran.returncode == 1 and told in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_name_that_leads_out_is_told(kit: Callable[..., Path], tmp_path: Path) -> None:
    made = kit("cpu")
    (tmp_path / "secret").touch()
    with (made / "SHA256SUMS").open("a") as stream:
        stream.write(f"{'0' * 64}  ../secret\n")
    (made / "link").symlink_to(tmp_path / "secret")
    ran = kits.check(made)
    assert ran.returncode == 1 and "../secret leads out of the kit" in ran.stderr


@pytest.mark.soak
def test_an_environment_with_nothing_of_epctx_runs_it(
    kit: Callable[..., Path], tmp_path: Path
) -> None:
    made = kit("alone", "cpu")
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    ran = [str(python), "-I", str(made / "check_device.py"), "--runs", "3"]
    without = subprocess.run(ran, cwd=tmp_path, capture_output=True, text=True)
    assert without.returncode == 1 and "run `pip install numpy`" in without.stderr
    names = ("numpy", "onnxruntime", "onnxruntime-qnn")
    packages = [f"{name}=={metadata.version(name)}" for name in names]
    subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    done = subprocess.run(ran, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert subprocess.run([python, "-c", "import epctx"], capture_output=True).returncode == 1
    assert api.verify(tmp_path / "dist" / "m", device_results=tmp_path / "device.json").passed
