"""Read the parts of a folder of onnxruntime-genai's model builder that epctx needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from epctx.errors import ModelError
from epctx.files import paths
from epctx.files.entries import read_document
from epctx.manifest import GENAI_CONFIG, ModelSource

if TYPE_CHECKING:
    from epctx.graph.inputs import Dim, InputSpec

LARGEST: Final = 1 << 24
"""Largest size of a genai_config.json in bytes; real files have a few thousand."""
_TOKENIZER: Final = frozenset({".jinja", ".json", ".model", ".tiktoken", ".txt"})
"""File name endings of a tokenizer's files."""
_PARTS: Final = ("encoder", "embedding", "vision", "speech")
_MAKE: Final = "name a folder that `python -m onnxruntime_genai.models.builder` wrote"


class _Inputs(Struct, frozen=True):
    input_ids: str = "input_ids"
    attention_mask: str = "attention_mask"
    position_ids: str = "position_ids"
    past_key_names: str = "past_key_values.%d.key"
    past_value_names: str = "past_key_values.%d.value"


class _Window(Struct, frozen=True):
    window_size: int


class _Decoder(Struct, frozen=True):
    filename: str
    head_size: int
    sliding_window: _Window = _Window(window_size=0)
    inputs: _Inputs = _Inputs()


class _Model(Struct, frozen=True):
    decoder: _Decoder
    context_length: int
    vocab_size: int


class _Config(Struct, frozen=True):
    model: _Model


class Sizes(Struct, frozen=True, kw_only=True):
    """Sizes of a decoder's inputs: numbers, names, or unknown.

    Attributes:
        total: length of the attention mask, including the new tokens.
        past: lengths of the key and value inputs; layers may use different names.
        head: sizes of a key and of a value; layers may use different names.
    """

    batch: Dim
    sequence: Dim
    total: Dim
    past: tuple[Dim, ...]
    head: tuple[Dim, ...]

    def of(self, model: ModelSource, inputs: Mapping[str, InputSpec]) -> Sizes:
        """Replace names by the sizes that a manifest fixes."""
        sizes: dict[str, int] = dict(model.dimensions)
        for name, shape in model.shapes.items():
            declared = inputs[name].shape if name in inputs else ()
            sizes.update((d, n) for d, n in zip(declared, shape, strict=False) if type(d) is str)

        def size(dim: Dim) -> Dim:
            return sizes.get(dim, dim) if isinstance(dim, str) else dim

        return Sizes(
            batch=size(self.batch),
            sequence=size(self.sequence),
            total=size(self.total),
            past=tuple(dict.fromkeys(map(size, self.past))),
            head=tuple(dict.fromkeys(map(size, self.head))),
        )


class GenaiFolder(Struct, frozen=True, kw_only=True):
    """A folder of a decoder-only model.

    Attributes:
        model: path of the ONNX model.
        config: content of genai_config.json, as JSON.
        settings: the parts of `config` that epctx uses.
        inputs: inputs of the ONNX model, by name.
        outputs: names of the ONNX model's outputs.
        in_place: True if the model writes keys and values into the given cache; else it returns a
            longer cache.
    """

    path: Path
    model: Path
    config: Mapping[str, Any]
    settings: _Model
    inputs: Mapping[str, InputSpec]
    outputs: tuple[str, ...]
    in_place: bool

    @property
    def names(self) -> _Inputs:
        """Names of the inputs."""
        return self.settings.decoder.inputs

    @property
    def sizes(self) -> Sizes:
        """Sizes as the ONNX model declares them."""
        ids, mask = self.inputs[self.names.input_ids], self.inputs[self.names.attention_mask]
        cache = [spec.shape for name, spec in self.inputs.items() if self._is_cache(name)]
        return Sizes(
            batch=ids.shape[0],
            sequence=ids.shape[1],
            total=mask.shape[1],
            past=tuple(dict.fromkeys(shape[2] for shape in cache if len(shape) == 4)),
            head=tuple(dict.fromkeys(shape[3] for shape in cache if len(shape) == 4)),
        )

    def _is_cache(self, name: str) -> bool:
        """Tell whether an input holds the keys or values of a layer."""
        templates = (self.names.past_key_names, self.names.past_value_names)
        return any(
            name.startswith(before) and name.endswith(after) and name != template
            for template in templates
            for before, _, after in [template.partition("%d")]
        )

    def require(self) -> None:
        """Require the inputs of a decoder with a cache. Raises ModelError."""
        first = self.names.past_key_names.replace("%d", "0")
        wanted = {self.names.input_ids: 2, self.names.attention_mask: 2, first: 4}
        for name, rank in wanted.items():
            if name not in self.inputs or len(self.inputs[name].shape) != rank:
                raise ModelError(
                    f"has no input {name!r} of {rank} dimensions",
                    file=self.model.as_posix(),
                    why="a decoder of onnxruntime-genai is fed ids, a mask, keys and values",
                    remedy=_MAKE,
                )


def is_folder(path: Path) -> bool:
    """Tell whether a folder is, or is meant to be, one of onnxruntime-genai."""
    return (path / GENAI_CONFIG).is_file()


def beside(path: Path) -> Iterator[Path]:
    """Configuration of a folder, and the tokenizer files that exist.

    Raises:
        ModelError: the folder cannot be read.
    """
    with ModelError.if_refused("cannot be read", file=path.as_posix(), remedy=_MAKE):
        entries = sorted(path.iterdir())
    yield from (each for each in entries if each.suffix in _TOKENIZER and each.is_file())


def read(path: Path) -> GenaiFolder:
    """Read a folder: its configuration, and the model without weights.

    Raises:
        ModelError: a file cannot be read, or the model is not a decoder with a cache.
    """
    from epctx.graph import inputs
    from epctx.graph.serde import reader

    config = _config(path / GENAI_CONFIG)
    settings = _settings(config, path / GENAI_CONFIG)
    if reason := paths.objection(settings.decoder.filename):
        what, file = "does not name a model in its folder", (path / GENAI_CONFIG).as_posix()
        raise ModelError(what, file=file, why=f"filename: {reason}", remedy=_MAKE)
    model = path / settings.decoder.filename
    proto = reader.read(model)
    folder = GenaiFolder(
        path=path,
        model=model,
        config=config,
        settings=settings,
        inputs={spec.name: spec for spec in inputs.specs(proto)},
        outputs=tuple(value.name for value in proto.graph.output),
        in_place=any(node.op_type == "GroupQueryAttention" for node in proto.graph.node),
    )
    folder.require()
    return folder


def _config(path: Path) -> Mapping[str, Any]:
    with ModelError.if_refused("cannot be read", file=path.as_posix(), remedy=_MAKE):
        content = read_document(path, LARGEST)
    large = len(content) > LARGEST
    try:
        return msgspec.json.decode(b"" if large else content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = f"it is larger than {LARGEST:,} bytes" if large else str(error)
        what = f"is not a valid {GENAI_CONFIG}"
        raise ModelError(what, file=path.as_posix(), why=why, remedy=_MAKE) from error


def _settings(config: Mapping[str, Any], path: Path) -> _Model:
    model = config.get("model")
    parts = [part for part in _PARTS if isinstance(model, dict) and part in model]
    if parts:
        raise ModelError(
            f"describes a model of several parts: {', '.join(parts)}",
            file=path.as_posix(),
            why="prefill and decode can only be made from a decoder",
            remedy="name its ONNX models one by one: `epctx init MODEL.onnx…`",
        )
    try:
        return msgspec.convert(config, _Config).model
    except msgspec.ValidationError as error:
        raise ModelError(
            "does not describe a decoder",
            file=path.as_posix(),
            why=str(error),
            remedy=_MAKE,
        ) from error
