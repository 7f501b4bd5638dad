"""`doctor` on this host: the EPs that are installed, asked in processes of their own."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner, Result

import epctx
from epctx.cli.app import app
from epctx.commands.doctor.probe import Diagnosis, ProviderDiagnosis


def doctor(*options: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *options])


def by_name(found: Diagnosis) -> dict[str, ProviderDiagnosis]:
    return {each.name: each for each in found.providers}


@pytest.fixture(scope="module")
def here() -> Diagnosis:
    return epctx.doctor()


def test_this_host_is_sound(here: Diagnosis) -> None:
    assert here.problems == ()
    reference = by_name(here)["ReferenceExecutionProvider"]
    assert (reference.state, reference.builds, reference.runs) == ("ready", True, True)
    assert reference.package == f"epctx {epctx.__version__}"
    assert here.host.cores > 0 and here.host.memory > 2**30
    assert {"onnx", "onnxruntime"} <= here.host.packages.keys()


def test_what_was_never_tried_says_so(here: Diagnosis) -> None:
    found = by_name(here)
    for name in ("TensorrtExecutionProvider", "VitisAIExecutionProvider"):
        each = found[name]
        assert (each.tried, each.builds, each.runs) == (None, None, None)
        if each.state == "not installed":
            assert each.failure is not None and "instead of onnxruntime" in each.failure.remedy


@pytest.mark.needs("module onnxruntime_qnn")
def test_a_real_ep_with_its_devices_and_limits(here: Diagnosis) -> None:
    qnn = by_name(here)["QNNExecutionProvider"]
    assert qnn.state == "ready" and qnn.builds and qnn.runs
    assert set(qnn.versions) == {"onnxruntime", "onnxruntime-qnn"}
    assert qnn.devices and qnn.tried is not None
    if not any(device.startswith("NPU") for device in qnn.devices):
        assert "models that share a context cannot be loaded here" in qnn.limits[0]


def test_more_is_told_when_asked() -> None:
    brief, full = doctor(), doctor("-v")
    assert "not tried on this host" in brief.stdout
    assert "instead of onnxruntime" not in brief.stdout
    assert "instead of onnxruntime" in full.stdout
