"""Starter manifest for a folder written by onnxruntime-genai's model builder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import psutil
from msgspec import Struct

from epctx.errors import ModelError
from epctx.manifest import GENAI_CONFIG
from epctx.parsing import genai
from epctx.parsing.genai import GenaiFolder
from epctx.parsing.schema import providers
from epctx.parsing.schema.providers import ForDecoders
from epctx.text import size_words

_SHARE: Final = 0.8
"""Share of this machine's memory that a compile may use."""
_BESIDE: Final = 4
"""A piece may use this machine's memory divided by this number."""
_GB: Final = 1_000_000_000


class Estimate(Struct, frozen=True, kw_only=True):
    """Estimated memory, size and time to compile models that use the same weights.

    Attributes:
        weights: number of weights.
        memory: bytes of memory to compile all weights into one context.
        largest: bytes of memory to compile only the largest weight.
        context: size of the context, in bytes.
        most: largest context that a device loads, in bytes.
        seconds: compile time on one core.
        machine: memory of this machine, in bytes.
        measured_on: version of the EP that was measured.
    """

    weights: int
    memory: int
    largest: int
    context: int
    most: int
    seconds: float
    machine: int
    measured_on: str

    @property
    def max_memory(self) -> str | None:
        """Value of `partition.pieces.max_memory` in the manifest; None if one context is enough."""
        if self.memory <= _SHARE * self.machine and self.context <= self.most:
            return None
        limit = max(self.largest, min(self.machine // _BESIDE, 2 * self.most))
        return f"{max(1, -(-limit // _GB) if limit == self.largest else limit // _GB)}GB"

    @property
    def words(self) -> tuple[str, ...]:
        """Sentences for the user, with the basis of the estimate; empty if the compile is small."""
        if self.memory < _GB and self.max_memory is None:
            return ()
        minutes = self.seconds / 60
        return (
            f"{self.weights / 1e9:.2f} billion weights: compiled whole, about "
            f"{size_words(self.memory)} of memory (this machine has {size_words(self.machine)}),",
            f"one context of {size_words(self.context)} (a device loads {size_words(self.most)}), "
            f"{minutes:.0f} min of one core, {size_words(2 * self.context)} of disk with the",
            f"cache: estimated from bytes and seconds a weight, measured with {self.measured_on}.",
        )


def of_model(path: Path, provider: str, models: int) -> Estimate | None:
    """Estimate the compile of `models` models of one source on an EP; None without measurements.

    Reads no weights.

    Raises:
        ModelError: the model cannot be read.
    """
    import onnx_ir as ir

    from epctx.graph.serde import reader
    from epctx.graph.weights import tensors

    schema = providers.find(provider)
    if schema is None or (memory := schema.knowledge.compile_memory) is None:
        return None
    if (context := schema.knowledge.context) is None:
        return None
    values = ir.from_proto(reader.read(path)).graph.initializers.values()
    counts = tensors.counts_by_kind(values)
    by_weight = [dict([tensors.kind_and_count(value)]) for value in values]
    return Estimate(
        weights=sum(counts.values()),
        memory=memory.of([counts] * models),
        largest=max((memory.of([one] * models) for one in by_weight), default=0),
        context=round(sum(context.size[kind] * counts[kind] for kind in counts)),
        most=context.most,
        seconds=models * sum(context.seconds[kind] * counts[kind] for kind in counts) / 1e9,
        machine=psutil.virtual_memory().total,
        measured_on=memory.measured_on,
    )


LENGTH: Final = 1024
"""Most tokens of a conversation: the compiled model reserves memory for all of them."""
WINDOW: Final = 64
"""Tokens of the prompt that are processed at a time."""


def folder(path: Path) -> GenaiFolder:
    """Read the folder.

    Raises:
        ModelError: the folder has no decoder-only model, or the model's sizes are fixed.
    """
    if not genai.is_folder(path):
        raise ModelError(
            f"is a folder without {GENAI_CONFIG}",
            file=path.as_posix(),
            remedy="name ONNX models, or a folder of onnxruntime-genai's model builder",
        )
    genai_folder = genai.read(path)
    sizes = genai_folder.sizes
    if not all(isinstance(d, str) for d in (sizes.batch, sizes.sequence, sizes.total, *sizes.past)):
        raise ModelError(
            "already has fixed sizes",
            file=genai_folder.model.as_posix(),
            why=f"input {genai_folder.names.input_ids!r} is "
            f"{genai_folder.inputs[genai_folder.names.input_ids]}",
            remedy="name the model itself: `epctx init MODEL.onnx`",
        )
    if not genai_folder.in_place:
        raise ModelError(
            "has no GroupQueryAttention: its cache grows with each token",
            file=genai_folder.model.as_posix(),
            why="onnxruntime-genai runs fixed sizes only of a cache that stays in place",
            remedy="let the builder write one that does (`-p int4 -e cpu`, `-p fp16 -e cuda`), or"
            " name the model itself: `epctx init MODEL.onnx`",
        )
    return genai_folder


def option_files(provider: str, given: Collection[str]) -> Mapping[str, object]:
    """File options that a decoder needs on an EP and that were not given, with file contents."""
    files = _decoder_settings(provider).files
    return {name: content for name, content in files.items() if name not in given}


def models(genai_folder: GenaiFolder, path: str, scalar: Callable[[str], str]) -> Iterator[str]:
    """Lines for the two models. `path` is the ONNX model as written in the manifest."""
    length = _length(genai_folder)
    window = min(WINDOW, length // 2)
    yield f"  prefill:    # the prompt, {window} tokens at a time"
    yield from _model(genai_folder, path, window, length, scalar)
    yield "  decode:    # a token at a time: the same source, another shape"
    yield from _model(genai_folder, path, 1, length, scalar)


def group(genai_folder: GenaiFolder, provider: str, alias: str, source: str) -> Iterator[str]:
    """Lines from `model_groups` on. `source` is the folder as written in the manifest."""
    names, length = genai_folder.names, _length(genai_folder)
    ranges = {
        names.input_ids: [0, genai_folder.settings.vocab_size - 1],
        names.attention_mask: [1, 1],
        **(
            {names.position_ids: [0, length - 1]}
            if names.position_ids in genai_folder.inputs
            else {}
        ),
    }
    ranges_text = ", ".join(f"{name}: {each}" for name, each in ranges.items())
    yield "model_groups:"
    yield "  llm:"
    yield "    models: [prefill, decode]"
    yield f"    execution_providers: [{alias}]"
    yield "    sharing_groups: {main: [prefill, decode]}    # one context, weights stored once"
    yield f"    verify: {{inputs: {{ranges: {{{ranges_text}}}}}}}"
    yield ""
    yield "targets:"
    estimate = of_model(genai_folder.model, provider, models=2)
    yield from (f"  # {line}" for line in (() if estimate is None else estimate.words))
    limit = None if estimate is None else estimate.max_memory
    passes = ", ".join(_decoder_settings(provider).optimize)
    settings = [f"optimize: {{level: [{passes}]}}"] if passes else []
    settings += [f"partition: {{pieces: {{max_memory: {limit}}}}}"] if limit else []
    settings_text = f"model_groups: {{llm: {{{', '.join(settings)}}}}}" if settings else ""
    yield f"  {alias}: {{{settings_text}}}"
    yield "  # The same two models, not compiled: onnxruntime-genai runs them on any CPU."
    yield "  cpu: {model_groups: {llm: {execution_providers: []}}}"
    yield ""
    yield "# `epctx package`: of each target a folder that onnxruntime-genai opens."
    yield "package:"
    yield f"  genai: {{source: {source}}}"


def _decoder_settings(provider: str) -> ForDecoders:
    schema = providers.find(provider)
    return schema.knowledge.decoders if schema is not None else ForDecoders()


def _model(
    genai_folder: GenaiFolder, path: str, sequence: int, length: int, scalar: Callable[[str], str]
) -> Iterator[str]:
    sizes = genai_folder.sizes
    chosen = {
        sizes.batch: 1,
        sizes.sequence: sequence,
        sizes.total: length,
        **dict.fromkeys(sizes.past, length),
        **dict.fromkeys(sizes.head, genai_folder.settings.decoder.head_size),
    }
    dimensions = {dim: size for dim, size in chosen.items() if isinstance(dim, str)}
    yield f"    path: {path}"
    yield f"    dimensions: {{{', '.join(f'{scalar(d)}: {n}' for d, n in dimensions.items())}}}"


def _length(genai_folder: GenaiFolder) -> int:
    """Length of the cache; not shorter than the layers' attention window, if they have one."""
    length = min(genai_folder.settings.context_length, LENGTH)
    return max(length, genai_folder.settings.decoder.sliding_window.window_size)
