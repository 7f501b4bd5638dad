"""The digests of what the manifests build, on the manifest that needs no vendor SDK."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import pytest

from scripts import baseline, locks, quickstart_models
from scripts.baseline import Built


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, Path]:
    folder = tmp_path_factory.mktemp("baseline") / "one"
    return baseline.build(sys.executable, ["quickstart"], folder), folder / "dist"


def test_every_output_has_its_digest(built: tuple[Built, Path]) -> None:
    first, out = built
    names = ["eye/vision_ctx.onnx", "llm/decode_ctx.onnx", "llm/prefill_ctx.onnx"]
    paths = [f"quickstart/default/{n}" for n in (*names, "llm/prefill_reference.bin")]
    assert sorted(first.digests) == paths and first.failed == ()
    for path, digest in first.digests.items():
        assert hashlib.sha256((out / path).read_bytes()).hexdigest() == digest
        assert f"{digest}  {path}" in baseline.lines([first])


def test_a_changed_byte_and_a_lost_file_are_told(built: tuple[Built, Path], tmp_path: Path) -> None:
    first, out = built
    copy = shutil.copytree(out, tmp_path / "dist")
    same = Built("onnxruntime 9.9", baseline.digests(copy), ())
    equal = f"4 of 4 outputs equal: {first.label}, onnxruntime 9.9"
    assert baseline.lines([first, same]) == [equal]
    changed, lost = (copy / "quickstart" / "default" / n for n in ("eye/vision_ctx.onnx", "llm"))
    data = bytearray(changed.read_bytes())
    data[-1] ^= 1
    changed.write_bytes(data)
    (lost / "prefill_reference.bin").unlink()
    other = Built("onnxruntime 9.9", baseline.digests(copy), ("openvino/llm@default",))
    assert baseline.lines([first, other]) == [
        "no device for openvino/llm@default",
        "differs: quickstart/default/eye/vision_ctx.onnx",
        "differs: quickstart/default/llm/prefill_reference.bin",
        f"2 of 4 outputs equal: {first.label}, onnxruntime 9.9",
    ]


def test_the_exit_code_tells_whether_two_pythons_build_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(python: str, names: object, folder: Path) -> Built:
        return Built(folder.name, {"a": "1", "b": folder.name if "other" in python else "0"}, ())

    monkeypatch.setattr(baseline, "build", build)
    assert baseline.main(["--python", "one", "--python", "one"]) == 0
    assert "2 of 2 outputs equal: 0, 1" in capsys.readouterr().out
    assert baseline.main(["quickstart", "--python", "one", "--python", "other"]) == 1
    assert "differs: b\n1 of 2 outputs equal: 0, 1" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        baseline.main(["no-such-manifest"])


def test_a_build_that_fails_for_another_reason_than_a_device_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken.yaml").write_text("schema_version: 1\n", encoding="utf-8")
    monkeypatch.setattr(locks, "MANIFESTS", tmp_path)
    monkeypatch.setattr(quickstart_models, "write", lambda folder: None)
    with pytest.raises(RuntimeError, match="broken: exit code 3"):
        baseline.build(sys.executable, ["broken"], tmp_path / "out")
