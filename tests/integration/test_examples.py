"""Each example runs by itself, in a copy, and leaves what its README promises."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

EXPECTED = {
    "01-first-build": [
        "first/default/all/digits_ctx.onnx",
        "first/default/all/digits_reference.bin",
    ],
    "02-weight-sharing": [
        "llm/default/chat/prefill_ctx.onnx",
        "llm/default/chat/decode_ctx.onnx",
        "llm/default/chat/prefill_reference.bin",
    ],
    "03-two-providers": [
        "mixed/default/all/detector_ctx.onnx",
        "mixed/default/all/detector_vision.bin",
        "mixed/default/all/detector_linear.bin",
        "mixed/default/all/detector.data",
    ],
}


def test_every_example_is_run_here() -> None:
    folders = {p.name for p in (ROOT / "examples").iterdir() if (p / "epctx.yaml").exists()}
    assert folders == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_example_runs_by_itself(name: str, tmp_path: Path) -> None:
    ignore = shutil.ignore_patterns("models", "dist", "__pycache__")
    folder = tmp_path / "examples" / name
    shutil.copytree(ROOT / "examples" / name, folder, ignore=ignore)
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=ignore)
    run = subprocess.run(
        [sys.executable, str(folder / "run.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    dist = folder / "dist"
    for path in EXPECTED[name]:
        assert (dist / path).is_file()
        assert Path(path).name in run.stdout
