"""What a device computed is judged by epctx, and by nothing that the device says of itself."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epctx import api
from epctx.verification.findings import Finding, VerifyReport
from tests.kit import kits, projects

pytestmark = pytest.mark.usefixtures("jobs_inline")
Results = dict[str, Any]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build, and what its kit found here."""
    project = kits.build(tmp_path_factory.mktemp("built"))
    kits.checked(project)
    return project.folder


@pytest.fixture
def verified(built: Path, tmp_path: Path) -> Iterator[Callable[..., VerifyReport]]:
    """Verify the build by results that were changed."""
    for path in built.glob("device.*"):
        shutil.copy(path, tmp_path)

    def verify(change: Callable[[Results], object] = lambda results: None) -> VerifyReport:
        found = json.loads((tmp_path / "device.json").read_bytes())
        change(found)
        (tmp_path / "device.json").write_text(json.dumps(found))
        return api.verify(built / "dist" / "m", device_results=tmp_path / "device.json")

    yield verify


def model(results: Results) -> Results:
    found: Results = results["models"][0]
    assert found["model"] == "default/one/a"
    return found


def failed(report: VerifyReport) -> list[Finding]:
    assert not report.passed
    return list(report.findings("fail"))


Verify = Callable[..., VerifyReport]


def test_right_outputs_are_verified_and_told_with_versions(verified: Verify) -> None:
    report = verified()
    assert report.passed
    said = [f.message for f in report.findings("pass")]
    agreed = "of the device agree with the golden outputs, on golden inputs"
    assert any(agreed in each for each in said) and report.verdict == "verified on golden inputs"
    assert any("the device has onnxruntime 1." in each and "as the build" in each for each in said)
    assert {n.sessions for folder in report.folders for n in folder.numbers} == {"device"}


def change_outputs(results: Results, folder: Path, change: Callable[[Any], Any]) -> None:
    """Other outputs, with their digest made anew."""
    path = folder / model(results)["outputs"]
    with np.load(path) as stored:
        arrays = {name: change(stored[name]) for name in stored.files}
    np.savez(path, **arrays)
    model(results)["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda a: a + 0.5, "relative error"),
        (lambda a: a * np.nan, "NaN"),
        (lambda a: a[:, :1], "its shape is"),
        (lambda a: a.astype(np.float64), "its type is float64"),
    ],
)
def test_wrong_outputs_fail_though_the_device_calls_them_right(
    verified: Verify, tmp_path: Path, change: Callable[[Any], Any], told: str
) -> None:
    (found,) = failed(verified(lambda results: change_outputs(results, tmp_path, change)))
    assert (found.policy, found.subject) == ("numbers", "a_ctx.onnx") and told in found.message


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda r: model(r).update(sha256="0" * 64), "is damaged"),
        (lambda r: model(r).update(outputs="../x.npz"), "is not beside them"),
        (lambda r: model(r).update(outputs="/etc/passwd"), "is not beside them"),
        (lambda r: model(r).update(outputs="gone.npz"), "it does not exist"),
        (lambda r: model(r).update(outputs=None), "did not run it"),
        (lambda r: model(r).update(files={}), "did not run it"),
        (lambda r: model(r)["files"].update({"a_ctx.onnx": "0" * 64}), "other files: a_ctx.onnx"),
        (lambda r: model(r)["files"].update({"more.bin": "0" * 64}), "other files: more.bin"),
        (lambda r: r["models"].pop(0), "results of the device do not include it"),
        (lambda r: model(r).update(sets=[]), "not the golden ones"),
        (lambda r: model(r)["sets"][0].update(label="other"), "not the golden ones"),
        (lambda r: model(r)["sets"][0].update(outputs=["z"]), "no item named"),
        (lambda r: model(r)["sets"][0].update(outputs=[]), "'y' is missing"),
        (lambda r: model(r)["problems"].append("it burns"), "on the device: it burns"),
        (lambda r: model(r).update(compatibility={"X": "EP_UNSUPPORTED"}), "for X: unsupported"),
    ],
)
def test_results_that_lie_or_lack_something_fail(
    verified: Verify, change: Callable[[Results], object], told: str
) -> None:
    found = failed(verified(change))
    assert [each for each in found if told in each.message], found


@pytest.mark.parametrize("file", ["a.npz", "golden.json"])
def test_golden_files_that_are_damaged_judge_nothing(
    built: Path, tmp_path: Path, file: str
) -> None:
    group = tmp_path / "default" / "one"
    shutil.copytree(built / "dist" / "m" / "default" / "one", group)
    (group / "golden" / file).write_bytes(b"{}")
    report = api.verify(group, device_results=built / "device.json")
    assert {each.policy for each in failed(report)} == {"integrity"}
    assert not [n for folder in report.folders for n in folder.numbers]


def test_a_folder_without_golden_files_is_told(built: Path, tmp_path: Path) -> None:
    group = tmp_path / "default" / "one"
    shutil.copytree(built / "dist" / "m" / "default" / "one", group)
    shutil.rmtree(group / "golden")
    (found,) = failed(api.verify(group, device_results=built / "device.json"))
    assert found.check == "golden" and "epctx build --golden" in found.remedy


def test_another_build_of_the_model_is_not_what_the_device_ran(built: Path, tmp_path: Path) -> None:
    group, other = tmp_path / "default" / "one", built / "dist" / "m" / "default" / "two"
    shutil.copytree(other.with_name("one"), group)
    shutil.copy(other / "b_ctx.onnx", group / "a_ctx.onnx")
    sums = (other / "SHA256SUMS").read_text().replace("b_ctx.onnx", "a_ctx.onnx")
    (group / "SHA256SUMS").write_text(sums)
    (found,) = failed(api.verify(group, device_results=built / "device.json"))
    assert found.message == "the device had other files: a_ctx.onnx"


def test_outputs_that_are_compressed_are_not_unpacked(verified: Verify, tmp_path: Path) -> None:
    def change(results: Results) -> None:
        path = tmp_path / model(results)["outputs"]
        arrays: dict[str, Any] = {"0/outputs/y": np.zeros((1, 32), np.float32)}
        np.savez_compressed(path, **arrays)
        model(results)["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()

    (found,) = failed(verified(change))
    assert "is compressed" in found.message


def test_another_version_on_the_device_is_told_and_no_failure(verified: Verify) -> None:
    report = verified(lambda results: results["packages"].update(onnxruntime="0.1"))
    assert report.passed
    assert any("onnxruntime 0.1, the build had" in f.message for f in report.findings())


def test_a_driver_is_held_to_what_is_expected(tmp_path: Path) -> None:
    project = projects.make(tmp_path, {"one": ["a"]})
    project.build(golden=True)
    device = {"ep": "ReferenceExecutionProvider", "kind": "NPU", "drivers": {"driver": "1.0"}}
    results = {
        "version": 1,
        "made": "",
        "host": {},
        "packages": {},
        "built_with": {},
        "expect_driver": "1.0",
        "devices": [device],
        "models": [],
    }
    for expected, drivers, told in (
        ("1.0", {"driver": "1.0"}, None),
        ("2.0", {"driver": "1.0"}, "is driver 1.0, but it should be 2.0"),
        ("2.0", {}, "is unknown, but it should be 2.0"),
        ("2.0", None, "no device reports a driver"),
    ):
        devices = [] if drivers is None else [{**device, "drivers": drivers}]
        path = tmp_path / "device.json"
        path.write_text(json.dumps({**results, "expect_driver": expected, "devices": devices}))
        report = api.verify(project.published, device_results=path)
        said = [f.message for f in report.findings("fail") if f.policy == "compatibility"]
        assert said == [] if told is None else told in said[0]


def test_where_nothing_can_have_golden_files_nothing_is_verified(built: Path) -> None:
    file = built / "dist" / "m" / "default" / "one" / "a_ctx.onnx"
    assert api.verify(file, device_results=built / "device.json").passed
    package = api.package(built / "m.yaml", out=built / "packed")
    report = api.verify(built / "packed" / package.path, device_results=built / "device.json")
    assert any("no golden inputs" in each.message for each in failed(report))
