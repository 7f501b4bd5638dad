"""Starter manifest for a folder of onnxruntime-genai's model builder."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from msgspec.structs import replace

from epctx.commands.init import command as init
from epctx.commands.init import genai
from epctx.commands.init.genai import Estimate
from epctx.errors import ModelError, UsageError
from epctx.manifest import GENAI_CONFIG
from epctx.parsing import load
from scripts import genai_folder
from scripts.genai_folder import Config


def test_prefill_and_decode_of_one_source_with_one_cache(tmp_path: Path) -> None:
    folder = genai_folder.write(tmp_path / "my llama", Config(positions=100))
    path = init.write([folder], tmp_path / "epctx.yaml")
    loaded = load.load(path)
    assert loaded.name == "my_llama"
    compiled, cpu = (target.groups[0] for target in loaded.targets)
    prefill, decode = compiled.models
    assert prefill.path == decode.path == folder / "model.onnx"
    common = {"past_sequence_length": 100, "total_sequence_length": 100, "kv_cache_dim": 16}
    assert prefill.dimensions == {"batch_size": 1, "sequence_length": 50, **common}
    assert decode.dimensions == {"batch_size": 1, "sequence_length": 1, **common}
    assert compiled.sharing_groups == {"main": ("prefill", "decode")}
    assert (cpu.execution_providers, cpu.sharing_groups) == ((), compiled.sharing_groups)
    assert compiled.verify.inputs.ranges == {"input_ids": (0, 511), "attention_mask": (1, 1)}
    assert loaded.package.genai is not None and loaded.package.genai.source == folder


def test_a_long_context_is_not_compiled_in_full(tmp_path: Path) -> None:
    folder = genai_folder.write(tmp_path / "llama", Config(positions=4096))
    loaded = load.load(init.write([folder], tmp_path / "epctx.yaml"))
    prefill = loaded.targets[0].groups[0].models[0]
    assert prefill.dimensions["sequence_length"] == 64
    assert prefill.dimensions["total_sequence_length"] == 1024


def test_what_is_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a folder without genai_config"):
        init.write([tmp_path], tmp_path / "epctx.yaml")
    folder = genai_folder.write(tmp_path / "llama")
    with pytest.raises(UsageError, match="at least one is a folder"):
        init.write([folder, folder], tmp_path / "epctx.yaml")


def test_a_folder_whose_sizes_are_fixed(tmp_path: Path) -> None:
    folder = genai_folder.write(tmp_path / "llama")
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 8
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(ModelError, match="already has fixed sizes"):
        init.write([folder], tmp_path / "epctx.yaml")


def test_a_folder_that_was_compiled(tmp_path: Path) -> None:
    folder = genai_folder.write(tmp_path / "llama")
    config = json.loads((folder / GENAI_CONFIG).read_bytes())
    del config["model"]["decoder"]["filename"]
    (folder / GENAI_CONFIG).write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match="missing required field `filename`"):
        init.write([folder], tmp_path / "epctx.yaml")
    for name in ("../model.onnx", "a\0b", "a" * 5000):
        config["model"]["decoder"]["filename"] = name
        (folder / GENAI_CONFIG).write_text(json.dumps(config), encoding="utf-8")
        with pytest.raises(ModelError, match=r"does not (exist|name a model in its folder)"):
            init.write([folder], tmp_path / "epctx.yaml")


def test_what_an_ep_needs_for_a_decoder_is_written_too(tmp_path: Path) -> None:
    folder = genai_folder.write(tmp_path / "llama")
    options = {"soc_model": "60"}
    path = tmp_path / "npu.yaml"
    init.write([folder], path, provider="QNNExecutionProvider", options=options)
    beside = tmp_path / "npu.op_affinity.json"
    assert json.loads(beside.read_bytes()) == {"op_type": {"GroupQueryAttention": "htp"}}
    compiled, cpu = (target.groups[0] for target in load.load(path).targets)
    assert compiled.execution_providers[0].options["op_affinity"] == beside.as_posix()
    assert compiled.optimize.passes == ("split-norms", "basic")
    assert cpu.optimize.level == "basic"


def test_a_file_beside_it_is_not_replaced(tmp_path: Path) -> None:
    folder = genai_folder.write(tmp_path / "llama")
    mine = tmp_path / "epctx.op_affinity.json"
    mine.touch()
    provider, options, path = "QNNExecutionProvider", {"soc_model": "60"}, tmp_path / "epctx.yaml"
    with pytest.raises(UsageError, match="already exists"):
        init.write([folder], path, provider=provider, options=options)
    assert not path.exists()
    options["op_affinity"] = mine.name
    init.write([folder], path, provider=provider, options=options)
    assert not mine.read_bytes()


def test_a_cache_that_grows(tmp_path: Path) -> None:
    folder = genai_folder.write(tmp_path / "llama")
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.op_type = "MultiHeadAttention"
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(ModelError, match="its cache grows with each token"):
        init.write([folder], tmp_path / "epctx.yaml")


def test_layers_whose_attention_is_bounded_have_caches_of_names_of_their_own(
    tmp_path: Path,
) -> None:
    """As the builder writes a Gemma: their cache must be as long as the window."""
    folder = genai_folder.write(tmp_path / "gemma", Config(positions=4096))
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    for value in model.graph.input:
        if value.name.startswith("past_key_values.0"):
            value.type.tensor_type.shape.dim[2].dim_param = "past_sliding_length"
    onnx.save(model, folder / "model.onnx")
    config = json.loads((folder / GENAI_CONFIG).read_bytes())
    config["model"]["decoder"]["sliding_window"] = {"window_size": 2048, "layers": [0]}
    (folder / GENAI_CONFIG).write_text(json.dumps(config), encoding="utf-8")
    loaded = load.load(init.write([folder], tmp_path / "epctx.yaml"))
    dimensions = loaded.targets[0].groups[0].models[0].dimensions
    caches = ("past_sequence_length", "past_sliding_length", "total_sequence_length")
    assert {dimensions[name] for name in caches} == {2048}


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
