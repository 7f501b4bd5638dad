"""Each example runs by itself, in a copy, and leaves what its README promises."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.kit import examples
from tests.kit.command_line import epctx

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
    "05-compose-and-release": [
        "assistant/default/whole/whole_ctx.onnx",
        "assistant/default/whole/encoder_vision.bin",
        "assistant/default/whole/body_language.bin",
        "assistant/default/mind/golden/head.npz",
        "assistant.tar",
        "assistant.intoto.json",
    ],
    "07-qnn": [
        "digits/x-elite/all/digits_ctx.onnx",
        "digits/galaxy-s24/all/digits_qnn.bin",
    ],
    "08-quantize": [
        "display/default/all/digits_ctx.onnx",
        "display/default/all/digits_qnn.bin",
    ],
    "09-buckets": [
        "search/default/text/bert_s32_ctx.onnx",
        "search/default/text/bert_s128_ctx.onnx",
        "search/default/text/bert_s32_reference.bin",
    ],
    "10-pieces": [
        "llm/default/chat/prefill_ctx.onnx",
        "llm/default/chat/decode_ctx.onnx",
        *(f"llm/default/chat/prefill_{number}_reference.bin" for number in range(1, 5)),
    ],
    "06-llm": [
        "llama/reference/llm/prefill_reference.bin",
        "llama.ortpackage/cpu/llm/prefill_ctx.onnx",
        "llama.ortpackage/cpu/llm/genai_config.json",
        "llama.ortpackage/cpu/llm/tokenizer.json",
    ],
    "04-write-a-provider": [
        f"mixer/{target}/all/{file}"
        for target in ("exact", "small")
        for file in ("single_ctx.onnx", "many_ctx.onnx", "single_delegate.bin")
    ],
}


def run(
    *arguments: str, folder: Path, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=examples.TIMEOUT,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of an environment that has the provider of example 04, as pip installs it."""
    return examples.variables("04-write-a-provider", tmp_path_factory.mktemp("provider"))


def test_every_example_is_run_here() -> None:
    folders = {p.name for p in examples.ROOT.iterdir() if (p / "epctx.yaml").exists()}
    assert folders == set(EXPECTED)


OWN = {name: [pytest.mark.needs("module onnxruntime_qnn")] for name in ("07-qnn", "08-quantize")}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=OWN.get(name, [])) for name in sorted(EXPECTED)]
)
def test_an_example_runs_by_itself(name: str, tmp_path: Path, installed: dict[str, str]) -> None:
    """Copied elsewhere: nothing of the repository is beside it, but what 06 is told to need."""
    folder = examples.copied(name, tmp_path / "copied" / name)
    variables = installed if name.startswith("04") else {}
    ran = run(str(folder / "run.py"), folder=tmp_path, variables=variables)
    for path in EXPECTED[name]:
        assert (folder / "dist" / path).is_file()
        assert Path(path).name in ran.stdout
    if name == "09-buckets":
        runs = re.findall(r"(\d+) tokens in bert_s(\d+): best \d, error (\S+)", ran.stdout)
        assert [(int(t), int(b)) for t, b, _ in runs] == [(5, 32), (32, 32), (33, 64), (100, 128)]
        assert all(float(error) < 1e-5 for _, _, error in runs)
    if name == "10-pieces":
        assert "4 EPContext nodes, cut at 1.hidden, 2.hidden, 3.hidden\n" in ran.stdout
        error = re.search(r"one session for all pieces: error (\S+)", ran.stdout)
        assert error is not None and float(error[1]) < 1e-5
    if name == "08-quantize":
        read = re.search(r"float model reads (\d+), and the one in integers (\d+)", ran.stdout)
        assert read is not None and int(read[1]) >= 18 and int(read[2]) >= int(read[1]) - 1


def test_the_example_provider_keeps_the_contract(tmp_path: Path, installed: dict[str, str]) -> None:
    """Its own tests, the conformance class among them, run as its author runs them."""
    tests = examples.ROOT / "04-write-a-provider" / "tests"
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path)]
    ran = run("-m", "pytest", *options, str(tests), folder=tmp_path, variables=installed)
    assert " passed" in ran.stdout and "skipped" not in ran.stdout


def test_the_command_line_knows_an_installed_provider(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    name = "DelegateExecutionProvider"
    schema = run("-m", "epctx", "schema", f"providers/{name}", folder=tmp_path, variables=installed)
    assert '"precision"' in schema.stdout
    manifest = examples.copied("04-write-a-provider", tmp_path / "m") / "epctx.yaml"
    text = manifest.read_text(encoding="utf-8").replace("precision", "precison")
    manifest.write_text(text, encoding="utf-8")
    ran = epctx("validate", manifest, cwd=tmp_path, **installed)
    assert ran.returncode == 3 and 'did you mean "precision"?' in ran.stdout
