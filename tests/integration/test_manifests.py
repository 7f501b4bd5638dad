"""Every checked-in manifest really builds, and what comes out verifies."""

import json
import shutil
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from epctx import lockfile
from epctx.lockfile.differences import between_locks
from scripts import quickstart_models
from tests.kit.command_line import epctx

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
    "chips": {"default/eye": {"vision_ctx.onnx", "vision_qnn.bin"}},
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


NEEDED = {
    "qnn": ("QNNExecutionProvider",),
    "chips": ("QNNExecutionProvider",),
    "openvino": ("OpenVINOExecutionProvider",),
    "package": ("QNNExecutionProvider", "OpenVINOExecutionProvider"),
}
"""The EPs whose devices a manifest needs; openvino's lock is of an Intel CPU besides."""
SOAKED = {"chips": (pytest.mark.soak,)}
"""What `make soak` builds: the EP and the model of it are those of qnn."""


def on_devices(*names: str) -> list[ParameterSet]:
    """Manifests, each skipped where a device that it needs is lacking."""
    mark = pytest.mark.needs_device
    return [
        pytest.param(name, marks=(mark(*NEEDED.get(name, ())), *SOAKED.get(name, ())))
        for name in names
    ]


@pytest.mark.parametrize("name", on_devices(*FILES))
def test_a_manifest_builds_and_verifies(name: str, manifests: Path, tmp_path: Path) -> None:
    manifest = str(manifests / f"{name}.yaml")
    built = epctx("build", manifest, "--format", "json", cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    root = tmp_path / "dist" / name
    for group, files in FILES[name].items():
        assert {p.name for p in (root / group).iterdir()} == files | {"SHA256SUMS"}
    groups = json.loads(built.stdout)["groups"]
    found = [f for group in groups for f in group["verify"]["findings"] if f["check"] == "outputs"]
    # A CPU that computes in bfloat16 by itself (AMX) has limits that allow any random output.
    assert {"pass"} <= {f["outcome"] for f in found} <= {"pass", "not checkable"}
    assert all(model["coverage"] == 1.0 for group in groups for model in group["models"])
    verified = epctx("verify", str(root), "--manifest", manifest, cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    hold_to_lock(name, manifests)


def hold_to_lock(name: str, folder: Path) -> None:
    """What was built is what the checked-in lock says, where that is of this toolchain and host.

    A build leaves a lock as it is that says the same, and so tells that by itself, too.
    """
    old, new = (lockfile.read(each / f"{name}.lock.yaml") for each in (MANIFESTS, folder))
    found = [d for d in between_locks(old, new) if d.kind != "code"]
    if any(each.kind in ("toolchain", "host") for each in found):
        assert all(each.kind in ("toolchain", "host", "output") for each in found), found
        pytest.skip(f"the lock is of another toolchain or host: {found[0]}")
    assert not found, "run `python -m scripts.locks`"


@pytest.mark.soak
@pytest.mark.parametrize("name", on_devices(*sorted(ELSEWHERE)))
def test_other_locks_are_what_a_build_gives(name: str, manifests: Path, tmp_path: Path) -> None:
    built = epctx("build", str(manifests / f"{name}.yaml"), "--no-verify", cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    hold_to_lock(name, manifests)


def test_every_manifest_has_its_lock() -> None:
    locks = {path.name.removesuffix(".lock.yaml") for path in MANIFESTS.glob("*.lock.yaml")}
    assert locks == set(FILES) | ELSEWHERE
