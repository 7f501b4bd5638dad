"""What one call of `compile_model` asks for, resolved, and what contradicts itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from epctx.errors import UsageError
from epctx.files.outputs import context_file
from epctx.graph.weights.data_file import DataFile
from epctx.inference.options import (
    FILE_PATH,
    INITIALIZERS_FILE,
    OF_SPEC,
    SHARE,
    STOP_SHARE,
    SessionConfig,
    SessionOptions,
)
from epctx.inference.selection import ProviderArgument, pairs
from epctx.manifest import DEFAULT_EP, OptionValue, PartitionSettings

_SUFFIX = "_ctx"


class Request(Struct, frozen=True, kw_only=True):
    """One model to compile.

    Attributes:
        path: the source, absolute; None: `data` has it.
        data: the source's bytes.
        data_folder: of a source from bytes, where its external data is, absolute.
        output: the EPContext model, absolute.
        config: the spec's session options.
        entries: other session config entries, for the EPs.
        providers: EPs in priority order, with their options; the default EP is not among them.
    """

    path: Path | None
    data: bytes
    data_folder: Path
    output: Path
    config: SessionConfig
    entries: Mapping[str, str]
    providers: tuple[tuple[str, Mapping[str, OptionValue]], ...]
    dimensions: Mapping[str, int]
    shapes: Mapping[str, Sequence[int]]
    optimize: str | Sequence[str]
    partition: PartitionSettings

    @property
    def name(self) -> str:
        """The model's name: the output's without `_ctx.onnx`."""
        return self.output.stem.removesuffix(_SUFFIX)

    @property
    def is_last(self) -> bool:
        """No session of its group follows it."""
        return self.config.stop_share or not self.config.share

    def require_agreement(self, first: Request) -> None:
        """Make sure that a session can join the sharing group that `first` has begun.

        Raises:
            UsageError: it differs in what the group has in common.
        """
        for what, own, theirs in (
            ("other EPs or options", self.providers, first.providers),
            ("another prefix", self.config.node_name_prefix, first.config.node_name_prefix),
            ("another folder", self.output.parent, first.output.parent),
        ):
            if own != theirs:
                raise UsageError(
                    f"a session of a sharing group has {what} than the first",
                    file=str(self.output),
                    why=f"{own} instead of {theirs}",
                    remedy=f"give all sessions of a group the same; {STOP_SHARE} ends a group",
                )

    @classmethod
    def of(
        cls,
        model: str | os.PathLike[str] | bytes,
        *,
        output: str | os.PathLike[str] | None,
        config: SessionConfig,
        providers: Sequence[ProviderArgument] | None,
        provider_options: Sequence[Mapping[str, OptionValue]] | None,
        entries: SessionOptions,
        dimensions: Mapping[str, int],
        shapes: Mapping[str, Sequence[int]],
        optimize: str | Sequence[str],
        partition: PartitionSettings,
    ) -> Request:
        """Resolve paths, and refuse what cannot be meant.

        Raises:
            UsageError: see `compile_model`.
            ModelError: there is no such file.
        """
        source = None if isinstance(model, bytes) else Path(model).absolute()
        request = cls(
            path=source,
            data=model if isinstance(model, bytes) else b"",
            data_folder=(config.data_folder or Path.cwd()).absolute(),
            output=_output(source, None if output is None else Path(output), config),
            config=config,
            entries={k: v for k, v in entries.items() if k not in OF_SPEC},
            providers=tuple(
                p for p in pairs(providers, provider_options) or () if p[0] != DEFAULT_EP
            ),
            dimensions=dimensions,
            shapes=shapes,
            optimize=optimize,
            partition=partition,
        )
        request._check()
        return request

    def _check(self) -> None:
        config = self.config
        if self.path is not None:
            DataFile.open(self.path)  # before anything is asked of it: is there such a file?
        if not self.providers:
            raise UsageError(
                "no execution provider is named", remedy="name those that compile in `providers`"
            )
        if config.stop_share and not config.share:
            raise UsageError(
                f"{STOP_SHARE} without {SHARE}",
                why="the last session of a group shares its context too",
                remedy=f'set {SHARE} to "1" as well',
            )
        if config.share and config.embed_mode:
            raise UsageError(
                "an embedded context cannot be shared",
                remedy='set ep.context_embed_mode to "0", or do not share',
            )
        if self.path is not None and _same(self.path, self.output):
            raise UsageError(
                f"the output {self.output} is the source itself",
                remedy=f"give another path in `output` or {FILE_PATH}",
            )
        if config.initializers_file is not None:
            self._check_initializers_file(config.initializers_file)

    def _check_initializers_file(self, name: str) -> None:
        if Path(name).name != name or "\\" in name or name in ("", ".", ".."):
            raise UsageError(
                f"{INITIALIZERS_FILE} is {name!r}, a path",
                remedy="give a bare file name: the file goes beside the model",
            )
        if name.casefold() == self.output.name.casefold():
            raise UsageError(
                f"{INITIALIZERS_FILE} is the model's own name {name!r}",
                remedy="give another file name",
            )


def _output(source: Path | None, output: Path | None, config: SessionConfig) -> Path:
    given = [path.absolute() for path in (output, config.file_path) if path is not None]
    if len(given) == 2 and given[0] != given[1]:
        raise UsageError(
            f"`output` is {given[0]}, {FILE_PATH} is {given[1]}", remedy="give one of them"
        )
    if not given and source is None:
        raise UsageError(
            "a model from bytes has no path to derive the output's from",
            remedy=f"give `output` or {FILE_PATH}",
        )
    path = given[0] if given or source is None else source.with_name(context_file(source.stem))
    if path.suffix != ".onnx":
        raise UsageError(
            f"the output {path} is no .onnx file", remedy="end its name with `_ctx.onnx`"
        )
    return path


def _same(one: Path, other: Path) -> bool:
    try:
        return one == other or one.samefile(other)
    except OSError:
        return False
