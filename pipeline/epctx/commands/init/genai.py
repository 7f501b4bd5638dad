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
        wanted = max(self.largest, min(self.machine // _BESIDE, 2 * self.most))
        return f"{max(1, -(-wanted // _GB) if wanted == self.largest else wanted // _GB)}GB"

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
    if (made := schema.knowledge.context) is None:
        return None
    values = ir.from_proto(reader.read(path)).graph.initializers.values()
    known = tensors.counts_by_kind(values)
    each = [dict([tensors.kind_and_count(value)]) for value in values]
    return Estimate(
        weights=sum(known.values()),
        memory=memory.of([known] * models),
        largest=max((memory.of([one] * models) for one in each), default=0),
        context=round(sum(made.size[kind] * known[kind] for kind in known)),
        most=made.most,
        seconds=models * sum(made.seconds[kind] * known[kind] for kind in known) / 1e9,
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
    found = genai.read(path)
    sizes = found.sizes
    if not all(isinstance(d, str) for d in (sizes.batch, sizes.sequence, sizes.total, *sizes.past)):
        raise ModelError(
            "has sizes that are fixed already",
            file=found.model.as_posix(),
            why=f"input {found.names.input_ids!r} is {found.inputs[found.names.input_ids]}",
            remedy="name the model itself: `epctx init MODEL.onnx`",
        )
    if not found.in_place:
        raise ModelError(
            "has no GroupQueryAttention: its cache grows with each token",
            file=found.model.as_posix(),
            why="onnxruntime-genai runs fixed sizes only of a cache that stays in place",
            remedy="let the builder write one that does (`-p int4 -e cpu`, `-p fp16 -e cuda`), or"
            " name the model itself: `epctx init MODEL.onnx`",
        )
    return found


def option_files(provider: str, given: Collection[str]) -> Mapping[str, object]:
    """File options that a decoder needs on an EP and that were not given, with file contents."""
    wanted = _known(provider).files
    return {name: content for name, content in wanted.items() if name not in given}


def models(found: GenaiFolder, path: str, scalar: Callable[[str], str]) -> Iterator[str]:
    """Lines for the two models. `path` is the ONNX model as written in the manifest."""
    length = _length(found)
    window = min(WINDOW, length // 2)
    yield f"  prefill:    # the prompt, {window} tokens at a time"
    yield from _model(found, path, window, length, scalar)
    yield "  decode:    # a token at a time: the same source, another shape"
    yield from _model(found, path, 1, length, scalar)


def group(found: GenaiFolder, provider: str, alias: str, source: str) -> Iterator[str]:
    """Lines from `model_groups` on. `source` is the folder as written in the manifest."""
    names, length = found.names, _length(found)
    ranges = {
        names.input_ids: [0, found.settings.vocab_size - 1],
        names.attention_mask: [1, 1],
        **({names.position_ids: [0, length - 1]} if names.position_ids in found.inputs else {}),
    }
    shown = ", ".join(f"{name}: {each}" for name, each in ranges.items())
    yield "model_groups:"
    yield "  llm:"
    yield "    models: [prefill, decode]"
    yield f"    execution_providers: [{alias}]"
    yield "    sharing_groups: {main: [prefill, decode]}    # one context, weights stored once"
    yield f"    verify: {{inputs: {{ranges: {{{shown}}}}}}}"
    yield ""
    yield "targets:"
    taken = of_model(found.model, provider, models=2)
    yield from (f"  # {line}" for line in (() if taken is None else taken.words))
    limit = None if taken is None else taken.max_memory
    passes = ", ".join(_known(provider).optimize)
    settings = [f"optimize: {{level: [{passes}]}}"] if passes else []
    settings += [f"partition: {{pieces: {{max_memory: {limit}}}}}"] if limit else []
    own = f"model_groups: {{llm: {{{', '.join(settings)}}}}}" if settings else ""
    yield f"  {alias}: {{{own}}}"
    yield "  # The same two models, not compiled: onnxruntime-genai runs them on any CPU."
    yield "  cpu: {model_groups: {llm: {execution_providers: []}}}"
    yield ""
    yield "# `epctx package`: of each target a folder that onnxruntime-genai opens."
    yield "package:"
    yield f"  genai: {{source: {source}}}"


def _known(provider: str) -> ForDecoders:
    schema = providers.find(provider)
    return schema.knowledge.decoders if schema is not None else ForDecoders()


def _model(
    found: GenaiFolder, path: str, sequence: int, length: int, scalar: Callable[[str], str]
) -> Iterator[str]:
    sizes = found.sizes
    chosen = {
        sizes.batch: 1,
        sizes.sequence: sequence,
        sizes.total: length,
        **dict.fromkeys(sizes.past, length),
        **dict.fromkeys(sizes.head, found.settings.decoder.head_size),
    }
    named = {dim: size for dim, size in chosen.items() if isinstance(dim, str)}
    yield f"    path: {path}"
    yield f"    dimensions: {{{', '.join(f'{scalar(d)}: {n}' for d, n in named.items())}}}"


def _length(found: GenaiFolder) -> int:
    """Length of the cache; not shorter than the layers' attention window, if they have one."""
    length = min(found.settings.context_length, LENGTH)
    return max(length, found.settings.decoder.sliding_window.window_size)
