"""Files that onnxruntime-genai needs beside built models.

Models of fixed sizes are a pipeline of three: a small model that makes the attention mask and the
positions (`graph.genai_window`), a model for the prompt, fed in windows of its length, and a model
for one token at a time. The caches of the last two have the same length; one buffer is both past
and present. Models of open sizes run as their source does. Measured on onnxruntime-genai 0.18.0.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from epctx.errors import ManifestError
from epctx.files import items
from epctx.files.items import Item
from epctx.files.outputs import context_file
from epctx.graph import genai_window
from epctx.graph.genai_window import COUNT, NEXT, PAST, TOTAL
from epctx.manifest import GENAI_CONFIG, ModelGroup
from epctx.parsing import genai
from epctx.parsing.genai import GenaiFolder, Sizes

if TYPE_CHECKING:
    from epctx.graph.inputs import InputSpec

_WINDOW: Final = "window"
_WHERE: Final = "package.genai.source"
_SIZES: Final = "`epctx init FOLDER` writes the sizes of both"
_NOT_FED: Final = "made by window.onnx"
"""Input name that no model has, so that genai does not feed that input: the window model does."""


def files(
    source: Path, group: ModelGroup, providers: Mapping[str, Mapping[str, str]]
) -> dict[str, Item]:
    """Make the files beside a group's models, by name: configuration, window, tokenizer.

    Args:
        source: onnxruntime-genai folder of the source models.
        providers: EPs of ONNX Runtime by name, in priority order, with their session options.

    Raises:
        ModelError: the folder is not an onnxruntime-genai folder.
        ManifestError: the models of the group do not fit it.
    """
    folder = genai.read(source)
    _require_models(folder, group)
    beside_models = {path.name: items.found(path) for path in genai.beside(source)}
    config: dict[str, Any] = copy.deepcopy(dict(folder.config))
    decoder = config["model"]["decoder"]
    options = decoder.setdefault("session_options", {})
    options["provider_options"] = [
        {name.removesuffix("ExecutionProvider"): dict(session_options)}
        for name, session_options in providers.items()
    ]
    sizes = {each.name: folder.sizes.of(each, folder.inputs) for each in group.models}
    if len(group.models) == 1 and isinstance(folder.sizes.sequence, str):
        (name,) = sizes
        if sizes[name] == folder.sizes:
            decoder["filename"] = context_file(name)
            return {**beside_models, GENAI_CONFIG: _json(config)}
    if not folder.in_place:
        raise _wrong("the models have no GroupQueryAttention: their cache grows with each token")
    prompt, token = _roles(sizes)
    length, width = sizes[token].total, sizes[prompt].sequence
    assert isinstance(length, int) and isinstance(width, int)
    _adapt(config, folder, prompt, token, length=length, width=width)
    ids, pad = folder.inputs[folder.names.input_ids], config["model"].get("pad_token_id", 0)
    window = items.made(genai_window.make(ids, _fed(folder), length=length, pad=pad))
    return {**beside_models, GENAI_CONFIG: _json(config), f"{_WINDOW}.onnx": window}


def _require_models(folder: GenaiFolder, group: ModelGroup) -> None:
    for model in group.models:
        if model.path.resolve() != folder.model.resolve():
            raise ManifestError(
                f"model {model.name} is not {folder.path.name}/{folder.model.name}",
                where=_WHERE,
                remedy="set `source` to the folder of the group's models, or leave it out",
            )


def _roles(sizes: Mapping[str, Sizes]) -> tuple[str, str]:
    """Return the names of the prompt and the token model. Raises ManifestError if the models are
    not such a pair.
    """
    tokens = [name for name, size in sizes.items() if size.sequence == 1]
    prompts = [name for name in sizes if name not in tokens]
    if len(tokens) != 1 or len(prompts) != 1:
        raise _wrong("the group is not a model of the prompt and a model of one token")
    for name, size in sizes.items():
        if not all(isinstance(each, int) for each in (size.batch, size.sequence, size.total)):
            raise _wrong(f"model {name} has an open size, but the other model has not")
        if size.batch != 1 or size.past != (size.total,):
            raise _wrong(
                f"model {name}: its batch is not 1, or its cache is not as long as its mask"
            )
    prompt, token = sizes[prompts[0]], sizes[tokens[0]]
    if prompt.total != token.total:
        raise _wrong("the caches of the two models differ in length")
    return prompts[0], tokens[0]


def _wrong(what: str) -> ManifestError:
    why = "onnxruntime-genai runs models of fixed sizes as a pipeline of two, with one cache"
    return ManifestError(what, where=_WHERE, why=why, remedy=_SIZES)


def _adapt(
    config: dict[str, Any],
    folder: GenaiFolder,
    prompt: str,
    token: str,
    *,
    length: int,
    width: int,
) -> None:
    model, decoder = config["model"], config["model"]["decoder"]
    model |= {"type": "decoder-pipeline", "context_length": length}
    del decoder["filename"]
    decoder["inputs"] = {
        **decoder.get("inputs", {}),
        "attention_mask": _NOT_FED,
        "position_ids": _NOT_FED,
        "past_sequence_length": PAST,
        "total_sequence_length": TOTAL,
    }
    decoder["sliding_window"] = {
        "window_size": width,
        "pad_value": 0,
        "alignment": "left",
        "slide_key_value_cache": False,
    }
    window = {
        "filename": f"{_WINDOW}.onnx",
        "session_options": {"provider_options": []},
        "inputs": [PAST, TOTAL, folder.names.input_ids, COUNT],
        "outputs": [*(fed.name for fed in _fed(folder)), NEXT],
        "output_names_forwarder": {NEXT: COUNT},
    }
    stages = [
        {
            "filename": context_file(name),
            "inputs": list(folder.inputs),
            "outputs": list(folder.outputs),
            "run_on_prompt": name == prompt,
            "run_on_token_gen": name == token,
        }
        for name in (prompt, token)
    ]
    decoder["pipeline"] = [
        {_WINDOW: window},
        *({n: s} for n, s in zip((prompt, token), stages, strict=True)),
    ]
    search = config.setdefault("search", {})
    max_length = min(search.get("max_length") or length, length)
    # 0.18.0 writes padding beyond it, too.
    search["max_length"] = max(max_length - max_length % width, width)
    search["past_present_share_buffer"] = True


def _fed(folder: GenaiFolder) -> Sequence[InputSpec]:
    """Return the outputs of the window model: the mask, and positions if the model takes them."""
    names = (folder.names.attention_mask, folder.names.position_ids)
    return [folder.inputs[name] for name in names if name in folder.inputs]


def _json(config: Mapping[str, Any]) -> Item:
    return items.made(f"{json.dumps(config, indent=4, ensure_ascii=False)}\n".encode())
