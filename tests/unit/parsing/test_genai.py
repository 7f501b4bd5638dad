"""Folders of onnxruntime-genai's model builder, and what is none."""

import json
from pathlib import Path
from typing import Any

import pytest

from epctx.errors import ModelError
from epctx.manifest import GENAI_CONFIG, ModelSource
from epctx.parsing import genai
from epctx.parsing.genai import Sizes
from scripts import genai_folder

NAMES = Sizes(
    batch="batch_size",
    sequence="sequence_length",
    total="total_sequence_length",
    past=("past_sequence_length",),
    head=("kv_cache_dim",),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return genai_folder.write(tmp_path / "llama")


def edited(folder: Path, **model: Any) -> Path:
    """The folder with another configuration; None: the key is removed."""
    path = folder / GENAI_CONFIG
    config = json.loads(path.read_bytes())
    config["model"] |= model
    config["model"] = {key: each for key, each in config["model"].items() if each is not None}
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_a_folder_is_read_without_its_weights(folder: Path) -> None:
    (folder / "model.onnx.data").unlink()
    found = genai.read(folder)
    assert found.model == folder / "model.onnx"
    assert (found.settings.context_length, found.settings.vocab_size) == (256, 512)
    assert found.sizes == NAMES
    assert list(found.inputs)[:2] == ["input_ids", "attention_mask"]
    assert found.outputs[:2] == ("logits", "present.0.key")


def test_sizes_by_dimensions_and_by_shapes(folder: Path) -> None:
    found = genai.read(folder)
    dimensions = {"batch_size": 1, "sequence_length": 4, "past_sequence_length": 16}
    shapes = {"attention_mask": (1, 16), "no_input": (3,)}
    model = ModelSource(name="m", path=found.model, dimensions=dimensions, shapes=shapes)
    fixed = Sizes(batch=1, sequence=4, total=16, past=(16,), head=("kv_cache_dim",))
    assert found.sizes.of(model, found.inputs) == fixed


def test_what_lies_beside_a_model(folder: Path) -> None:
    (folder / "chat_template.jinja").touch()
    (folder / ".cache").mkdir()
    names = [path.name for path in genai.beside(folder)]
    assert names == ["chat_template.jinja", GENAI_CONFIG, "tokenizer.json", "tokenizer_config.json"]


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        genai.read(folder)
    assert caught.value.remedy
    return str(caught.value)


def test_a_model_of_several_parts(folder: Path) -> None:
    text = refusal(edited(folder, vision={"filename": "vision.onnx"}))
    assert "describes a model of several parts: vision" in text


def test_a_configuration_of_no_decoder(folder: Path) -> None:
    assert "missing required field `decoder`" in refusal(edited(folder, decoder=None))


def test_a_configuration_that_is_no_json(folder: Path) -> None:
    (folder / GENAI_CONFIG).write_text("{", encoding="utf-8")
    assert "is not a valid genai_config.json" in refusal(folder)
    (folder / GENAI_CONFIG).write_bytes(b"[1]")
    assert "is not a valid genai_config.json" in refusal(folder)
    (folder / GENAI_CONFIG).unlink()
    assert "cannot be read" in refusal(folder)


def test_a_model_that_is_no_decoder(folder: Path) -> None:
    config = json.loads((folder / GENAI_CONFIG).read_bytes())["model"]["decoder"]
    text = refusal(edited(folder, decoder={**config, "inputs": {"input_ids": "tokens"}}))
    assert "has no input 'tokens' of 2 dimensions" in text
