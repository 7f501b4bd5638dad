"""From a folder of onnxruntime-genai's model builder to tokens, with the commands that users type.

The folder is `scripts.genai_folder`'s, node for node the builder's; onnxruntime-genai's own wheel
generates with it and with what was built.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from epctx.graph.inputs import Array
from epctx.runtime import InferenceSession
from scripts import genai_folder
from scripts.genai_folder import Config
from tests.kit import generating
from tests.kit.command_line import epctx

KINDS = {
    "llama-int4": Config(),
    "qwen3-fp16": Config(kind="qwen3", precision="fp16"),
}


PROMPT = generating.PROMPTS[4]
"""A token more than a window."""


REFERENCE = ("--provider", "ReferenceExecutionProvider")


def run(folder: Path, *arguments: str) -> str:
    """A command that succeeds, in a folder, with a cache of its own."""
    ran = epctx(*arguments, cwd=folder, EPCTX_CACHE_DIR=str(folder / "cache"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


@pytest.mark.parametrize("name", ["llama-int4", pytest.param("qwen3-fp16", marks=pytest.mark.soak)])
def test_from_the_builders_folder_to_the_same_tokens(name: str, tmp_path: Path) -> None:
    source = genai_folder.write(tmp_path / name, KINDS[name])
    run(tmp_path, "init", name, *REFERENCE)
    run(tmp_path, "package", "epctx.yaml")
    package = tmp_path / "dist" / f"{name}.ortpackage"
    made = package / "cpu" / "llm"
    assert generating.tokens(made) == generating.tokens(source)
    config = json.loads((made / "genai_config.json").read_bytes())
    assert config["model"]["context_length"] == 256
    assert config["model"]["decoder"]["sliding_window"]["window_size"] == 64
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (made / file).read_bytes() == (source / file).read_bytes()
    run(tmp_path, "verify", "dist", "--lock", "epctx.lock.yaml")
    assert "nothing to do" in run(tmp_path, "build", "epctx.yaml")
    report = json.loads((tmp_path / "dist" / f"{name}.build.json").read_bytes())
    reference = next(g for g in report["groups"] if g["target"] == "reference")
    assert [model["coverage"] for model in reference["models"]] == [1, 1]
    assert len(reference["files"]) == 3  # one context for both


def test_turns_of_a_conversation_are_one_prompt_of_all_that_was_said(tmp_path: Path) -> None:
    """A change of onnxruntime-genai is to be noticed: it tells none of the lengths after padding,
    and does not feed the token before a turn that it generated last, of its source neither.
    """
    source = genai_folder.write(tmp_path / "llama", Config(precision="fp32"))
    run(tmp_path, "init", "llama", *REFERENCE)
    run(tmp_path, "package", "epctx.yaml")
    made = tmp_path / "dist" / "llama.ortpackage" / "cpu" / "llm"
    first, second = generating.PROMPTS[2], generating.PROMPTS[1]
    turns = [
        [list(prompt) for prompt in talk]
        for talk in ((first, second), (second, first, first), (PROMPT, first), (first, PROMPT))
    ]
    whole = [[token for turn in talk for token in turn] for talk in turns]
    assert generating.tokens(made, turns) == generating.tokens(source, whole)

    said = generating.tokens(made, [talk[0] for talk in turns], count=4)
    pairs = [talk[:2] for talk in turns]
    whole = [[*a, *tokens, *b] for (a, b), tokens in zip(pairs, said, strict=True)]
    right = generating.tokens(source, whole)
    assert [t[4:] for t in generating.tokens(made, pairs, between=4)] == right
    wrong = generating.tokens(source, pairs, between=4, again=False)
    assert [t[4:] for t in wrong] != right


def test_sizes_that_cannot_generate_are_told_before_anything_is_compiled(tmp_path: Path) -> None:
    genai_folder.write(tmp_path / "llama")
    run(tmp_path, "init", "llama", *REFERENCE)
    manifest = tmp_path / "epctx.yaml"
    text = manifest.read_text(encoding="utf-8")
    manifest.write_text(text.replace(" sequence_length: 64", " sequence_length: 1"))
    ran = epctx("build", "epctx.yaml", cwd=tmp_path, EPCTX_CACHE_DIR=str(tmp_path / "cache"))
    assert ran.returncode == 3
    assert "not a model of the prompt and a model of one token" in ran.stderr
    assert "compile" not in ran.stderr and not (tmp_path / "dist" / "llama").exists()


def test_the_reference_ep_gives_the_tokens_of_the_source_in_pieces(tmp_path: Path) -> None:
    source = genai_folder.write(tmp_path / "llama", Config(layers=4))
    run(tmp_path, "init", "llama", *REFERENCE)
    manifest = tmp_path / "epctx.yaml"
    text = manifest.read_text(encoding="utf-8")
    text = text.replace("  cpu: {", "  # cpu: {")
    pieces = text.replace("    verify:", "    partition: {pieces: {count: 4}}\n    verify:")
    manifest.write_text(pieces, encoding="utf-8")
    run(tmp_path, "build", "epctx.yaml", "--only", "llm@reference")
    made = tmp_path / "dist" / "llama" / "reference" / "llm"
    assert len([*made.glob("*.bin")]) == 4
    prompts = generating.PROMPTS[1:5]
    assert greedy(made, prompts) == generating.tokens(source, prompts)


def greedy(folder: Path, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The 12 most likely tokens after each prompt, of EPContext models in `epctx.runtime`."""
    prefill, decode = (
        InferenceSession(folder / f"{name}_ctx.onnx") for name in ("prefill", "decode")
    )
    outputs = [value.name for value in decode.get_outputs()]
    past = [value.name for value in decode.get_inputs() if value.name.startswith("past")]
    found = []
    for prompt in prompts:
        cache: dict[str, Array] = dict.fromkeys(past, np.zeros((1, 2, 256, 16), np.float32))
        tokens, known = list(prompt), 0
        while known < len(prompt) + 12 - 1:
            window = 64 if known < len(prompt) else 1
            given = tokens[known : known + window]
            mask = np.arange(256) < known + window  # padding is written over by what follows
            feeds: dict[str, Array] = {
                "input_ids": np.array([given + [3] * (window - len(given))], np.int64),
                "attention_mask": mask.astype(np.int64)[None],
            }
            made = (prefill if window > 1 else decode).run(outputs, feeds | cache)
            values = dict(zip(outputs, made, strict=True))
            cache = {name: values[name.replace("past_key_values", "present")] for name in cache}
            known += len(given)
            if known >= len(prompt):
                tokens.append(int(values["logits"][0, len(given) - 1].argmax()))
        found.append(tokens[len(prompt) :])
    return found


@pytest.mark.needs_device("QNNExecutionProvider")
def test_qnn_gives_the_same_tokens_where_its_simulator_loads_the_contexts(tmp_path: Path) -> None:
    """Of float16, which the HTP computes in, the first tokens; a shared context needs an NPU."""
    import onnxruntime_qnn as qnn

    source = genai_folder.write(tmp_path / "llama", Config(precision="fp32"))
    asked = ("--provider", "QNNExecutionProvider", "--option", "soc_model=sc8380xp")
    run(tmp_path, "init", "llama", *asked)
    run(tmp_path, "package", "epctx.yaml")
    report = json.loads((tmp_path / "dist" / "llama.build.json").read_bytes())
    compiled = next(g for g in report["groups"] if g["target"] == "qnn")
    # Attention and norms too: of each model one graph.
    assert [(m["coverage"], len(m["partitions"])) for m in compiled["models"]] == [(1, 1)] * 2
    shared = tmp_path / "dist" / "llama.ortpackage" / "qnn" / "llm"
    assert {p.name for p in shared.iterdir()} == {
        *("prefill_ctx.onnx", "decode_ctx.onnx", "prefill_qnn.bin", "window.onnx"),
        *("genai_config.json", "tokenizer.json", "tokenizer_config.json"),
    }
    manifest = tmp_path / "epctx.yaml"
    text = manifest.read_text(encoding="utf-8")
    assert "sharing_groups: {main: [prefill, decode]}" in text
    alone = text.replace("sharing_groups: {main: [prefill, decode]}", "sharing_groups: {}")
    alone = alone.replace("  cpu: {", "  # cpu: {")
    options = {"QNN": {"backend_path": qnn.get_qnn_htp_path()}}
    prompts = generating.PROMPTS[2:3]
    expected = generating.tokens(source, prompts, count=4)
    pieces = alone.replace("    verify:", "    partition: {pieces: {count: 4}}\n    verify:")
    for text, contexts in ((alone, 2), (pieces, 8)):
        manifest.write_text(text, encoding="utf-8")
        run(tmp_path, "package", "epctx.yaml")
        assert len([*shared.glob("*.bin")]) == contexts
        assert generating.tokens(shared, prompts, count=4, options=options) == expected
