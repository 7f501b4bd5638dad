"""Every checked-in manifest really builds, and what comes out verifies."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import quickstart_models

MANIFESTS = Path(__file__).parent.parent.parent / "manifests"

FILES = {
    "quickstart": {
        "default/llm": {"prefill_ctx.onnx", "decode_ctx.onnx", "prefill_reference.bin"},
        "default/eye": {"vision_ctx.onnx"},
    },
    "qnn": {
        "default/llm": {"prefill_ctx.onnx", "decode_ctx.onnx", "prefill_qnn.bin"},
        "default/eye": {"vision_ctx.onnx", "vision_qnn.bin"},
    },
    "openvino": {
        "default/llm": {"decode_ctx.onnx", "decode_OpenVINOExecutionProvider.bin"},
        "default/eye": {"vision_ctx.onnx"},
    },
}


ELSEWHERE = {"package"}
"""Built by tests of their own."""


def test_every_manifest_is_built_here() -> None:
    found = {path.stem for path in MANIFESTS.glob("*.yaml")}
    assert {stem for stem in found if not stem.endswith(".lock")} == set(FILES) | ELSEWHERE


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manifests")
    for path in MANIFESTS.glob("*.yaml"):
        shutil.copy(path, folder)
    quickstart_models.write(folder / "models")
    return folder


@pytest.mark.parametrize("name", FILES)
def test_a_manifest_builds_and_verifies(name: str, manifests: Path, tmp_path: Path) -> None:
    manifest = str(manifests / f"{name}.yaml")
    built = epctx("build", manifest, "--format", "json", cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    root = tmp_path / "dist" / name
    for group, files in FILES[name].items():
        assert {p.name for p in (root / group).iterdir()} == files | {"SHA256SUMS"}
    for group in json.loads(built.stdout)["groups"]:
        outputs = [f for f in group["verify"]["findings"] if f["check"] == "outputs"]
        assert [f for f in outputs if f["outcome"] == "pass"]
        assert all(model["coverage"] == 1.0 for model in group["models"])
    verified = epctx("verify", str(root), "--manifest", manifest, cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def epctx(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "epctx", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )
