"""What is put beside built models for onnxruntime-genai; the integration test generates with it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from epctx.engine.lock import genai
from epctx.errors import ManifestError
from epctx.graph.genai_window import COUNT, NEXT, PAST, TOTAL
from epctx.manifest import GENAI_CONFIG, ModelGroup, ModelSource
from scripts import genai_folder

FIXED = {"batch_size": 1, "past_sequence_length": 32, "total_sequence_length": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return genai_folder.write(tmp_path_factory.mktemp("genai") / "llama")


def group(folder: Path, **models: Mapping[str, int]) -> ModelGroup:
    path = folder / "model.onnx"
    sources = (ModelSource(name=n, path=path, dimensions=d) for n, d in models.items())
    return ModelGroup(name="g", models=tuple(sources))


def pair(folder: Path, **prompt: int) -> ModelGroup:
    many, one = {**FIXED, "sequence_length": 8, **prompt}, {**FIXED, "sequence_length": 1}
    return group(folder, one=one, many=many)


def config(folder: Path, of: ModelGroup, **providers: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(genai.files(folder, of, providers)[GENAI_CONFIG].content)
    return found


def test_two_models_are_a_pipeline_behind_a_window(folder: Path) -> None:
    found = config(folder, pair(folder), QNNExecutionProvider={"htp_performance_mode": "burst"})
    model, decoder = found["model"], found["model"]["decoder"]
    assert (model["type"], model["context_length"]) == ("decoder-pipeline", 32)
    assert "filename" not in decoder
    window, prompt, token = (next(iter(stage.items())) for stage in decoder["pipeline"])
    assert (window[0], window[1]["outputs"]) == ("window", ["attention_mask", NEXT])
    assert window[1]["inputs"] == [PAST, TOTAL, "input_ids", COUNT]
    assert window[1]["output_names_forwarder"] == {NEXT: COUNT}
    assert window[1]["session_options"] == {"provider_options": []}
    assert (prompt[0], prompt[1]["filename"]) == ("many", "many_ctx.onnx")
    assert (prompt[1]["run_on_prompt"], prompt[1]["run_on_token_gen"]) == (True, False)
    assert (token[0], token[1]["run_on_prompt"]) == ("one", False)
    assert decoder["session_options"]["provider_options"] == [
        {"QNN": {"htp_performance_mode": "burst"}}
    ]
    assert found["search"]["max_length"] == 32


def test_a_conversation_ends_with_a_window(folder: Path) -> None:
    """Onnxruntime-genai 0.18.0 writes padding beyond the end, into other memory."""
    for width, length in ((12, 24), (20, 20), (32, 32)):
        found = config(folder, pair(folder, sequence_length=width))
        assert found["search"]["max_length"] == length


def test_a_model_of_open_sizes_runs_as_its_source(folder: Path) -> None:
    files = genai.files(folder, group(folder, whole={}), {})
    assert sorted(files) == [GENAI_CONFIG, "tokenizer.json", "tokenizer_config.json"]
    found = json.loads(files[GENAI_CONFIG].content)
    assert found["model"]["type"] == "llama"
    assert found["model"]["decoder"]["filename"] == "whole_ctx.onnx"


@pytest.mark.parametrize(
    ("prompt", "what"),
    [
        ({"sequence_length": 1}, "not a model of the prompt and a model of one token"),
        ({"batch_size": 2}, "its batch is not 1"),
        ({"past_sequence_length": 24}, "its cache is not as long as its mask"),
        ({"past_sequence_length": 64, "total_sequence_length": 64}, "differ in length"),
    ],
)
def test_what_is_no_pair_is_told(folder: Path, prompt: dict[str, int], what: str) -> None:
    with pytest.raises(ManifestError, match=what) as caught:
        genai.files(folder, pair(folder, **prompt), {})
    assert "epctx init FOLDER" in (caught.value.remedy or "")


def test_a_size_that_is_left_open(folder: Path) -> None:
    half = group(folder, many={**FIXED}, one={**FIXED, "sequence_length": 1})
    with pytest.raises(ManifestError, match="model many has an open size"):
        genai.files(folder, half, {})


def test_models_of_another_source(folder: Path, tmp_path: Path) -> None:
    other = ModelGroup(name="g", models=(ModelSource(name="m", path=tmp_path / "model.onnx"),))
    with pytest.raises(ManifestError, match=r"model m is not llama/model\.onnx"):
        genai.files(folder, other, {})
