from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx.commands.init import command as init
from epctx.commands.init import genai
from epctx.commands.init.genai import Estimate
from epctx.parsing import load
from scripts import genai_folder

QNN = "QNNExecutionProvider"
LLAMA_1B = Estimate(
    weights=1_235_814_400,
    memory=20_400_000_000,
    largest=4_450_000_000,
    context=2_470_000_000,
    most=3_500_000_000,
    seconds=138.0,
    machine=25_000_000_000,
    measured_on="onnxruntime-qnn 2.7.0",
)


@pytest.mark.parametrize(
    ("changed", "limit"),
    [
        ({"machine": 26_000_000_000}, None),
        ({}, "6GB"),
        ({"machine": 8_000_000_000}, "5GB"),
        ({"machine": 256_000_000_000, "context": 4_000_000_000}, "7GB"),
    ],
    ids=["it fits", "a quarter of the machine", "the largest weight", "a device's limit"],
)
def test_pieces_are_as_large_as_fits(changed: dict[str, int], limit: str | None) -> None:
    assert replace(LLAMA_1B, **changed).max_memory == limit


def test_the_estimate_has_its_basis() -> None:
    told = " ".join(LLAMA_1B.words)
    assert told.startswith("1.24 billion weights: compiled whole, about 20.40 GB of memory")
    assert "2 min of one core" in told and "measured with onnxruntime-qnn 2.7.0" in told
    assert replace(LLAMA_1B, memory=10_000_000, context=1000).words == ()


def test_a_folder_whose_compile_does_not_fit_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = genai_folder.write(tmp_path / "llama")
    found = genai.of_model(folder / "model.onnx", QNN, 2)
    assert found is not None and found.max_memory is None and found.weights > 100_000
    assert genai.of_model(folder / "model.onnx", "ReferenceExecutionProvider", 2) is None
    small = replace(found, machine=found.memory)
    monkeypatch.setattr(genai, "of_model", lambda path, provider, models: small)
    path = init.write([folder], tmp_path / "epctx.yaml", provider=QNN)
    qnn, cpu = (target.groups[0] for target in load.load(path).targets)
    assert qnn.pieces is not None and qnn.pieces.max_memory == 1_000_000_000
    assert cpu.pieces is None
    assert "# 0.00 billion weights: compiled whole, about" in path.read_text(encoding="utf-8")
