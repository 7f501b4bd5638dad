"""Language models as onnxruntime-genai's builder writes them: int4, fp16 and fp32."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.zoo.recipes import Recipe

SMALL: Mapping[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
KINDS = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "phi": "PhiForCausalLM",
    "olmo": "OlmoForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "nemotron": "NemotronForCausalLM",
}
"""Class of transformers by `model_type`."""
PRECISIONS = ("int4", "fp16", "fp32")


def recipes() -> Iterator[Recipe]:
    """Each kind in one precision in turn; Llama and Qwen in all of them."""
    for position, (kind, made) in enumerate(KINDS.items()):
        precisions = PRECISIONS if kind in ("llama", "qwen3") else (PRECISIONS[position % 3],)
        for precision in precisions:
            make = partial(_build, kind, made, precision)
            yield Recipe(
                f"{kind}.genai_{precision}", f"onnxruntime-genai builder, {precision}", make
            )


def _build(kind: str, made: str, precision: str, folder: Path) -> None:
    """A random model with a tokenizer of its own, through the builder as its command line does."""
    import torch
    import transformers

    torch.manual_seed(0)
    source = folder / "source"
    config = transformers.AutoConfig.for_model(kind, **SMALL)
    config.architectures = [made]
    getattr(transformers, made)(config).save_pretrained(source)
    _tokenizer().save_pretrained(source)
    command = ["builder", "-i", source, "-o", folder, "-p", precision, "-e", "cpu"]
    sys.argv = [
        *map(str, command),
        "-c",
        str(folder / "cache"),
        "--extra_options",
        "hf_token=false",
    ]
    runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")


def _tokenizer() -> Any:
    """Bytes as tokens, beside those of begin and end."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:250]
    words = ["<pad>", "<s>", "</s>", *alphabet]
    tokenizer = Tokenizer(models.BPE(dict(zip(words, range(256), strict=False)), []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
