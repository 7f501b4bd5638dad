"""Request of one `compile_model` call, resolved and checked for contradictions."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from epctx.errors import InvalidManifest, ManifestError, StorageError, UsageError
from epctx.files.outputs import context_file, sync_folder, writing
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
from epctx.manifest import DEFAULT_EP, Manifest, ModelGroup, OptionValue, PartitionSettings
from epctx.parsing import load
from epctx.parsing.schema import providers

_SUFFIX = "_ctx"


class Request(Struct, frozen=True, kw_only=True):
    """One model to compile.

    Attributes:
        path: absolute path of the source; None if `data` holds the source.
        data: bytes of the source.
        data_folder: absolute folder of the external data, for a source from bytes.
        output: absolute path of the EPContext model.
        config: session options of the EPContext spec.
        entries: other session config entries, which go to the EPs.
        providers: EPs in priority order, with their options; without the default EP.
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
        """Name of the model: the output's file name without `_ctx.onnx`."""
        return self.output.stem.removesuffix(_SUFFIX)

    @property
    def is_last(self) -> bool:
        """Tell whether this is the last session of its group."""
        return self.config.stop_share or not self.config.share

    def require_agreement(self, first: Request) -> None:
        """Make sure that a session can join the sharing group that `first` started.

        Raises:
            UsageError: a setting that all sessions of a group must share differs.
        """
        for what, value, expected in (
            ("other EPs or options", self.providers, first.providers),
            ("another prefix", self.config.node_name_prefix, first.config.node_name_prefix),
            ("another folder", self.output.parent, first.output.parent),
        ):
            if value != expected:
                raise UsageError(
                    f"a session of a sharing group has {what} than the first",
                    file=str(self.output),
                    why=f"{value} instead of {expected}",
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
        """Resolve the paths of a call, and refuse contradictory arguments.

        Raises:
            UsageError: see `compile_model`.
            ModelError: the source file does not exist.
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
            DataFile.open(self.path)  # check first that the file exists
        if not self.providers:
            raise UsageError(
                "no execution provider is given", remedy="name those that compile in `providers`"
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
    paths = [path.absolute() for path in (output, config.file_path) if path is not None]
    if len(paths) == 2 and paths[0] != paths[1]:
        raise UsageError(
            f"`output` is {paths[0]}, {FILE_PATH} is {paths[1]}", remedy="give one of them"
        )
    if not paths and source is None:
        raise UsageError(
            "a model from bytes has no path to derive the output's from",
            remedy=f"give `output` or {FILE_PATH}",
        )
    path = paths[0] if paths or source is None else source.with_name(context_file(source.stem))
    if path.suffix != ".onnx":
        raise UsageError(
            f"the output {path} is not an .onnx file", remedy="end its name with `_ctx.onnx`"
        )
    return path


def _same(one: Path, other: Path) -> bool:
    try:
        return one == other or one.samefile(other)
    except OSError:
        return False


GROUP = "models"
NAME = "compile-model"


def model_group(requests: Sequence[Request], folder: Path) -> ModelGroup:
    """Parse the model group of one session group.

    Args:
        requests: sessions of the group, in order; they differ only in the model and its shapes.
        folder: destination of the manifest and of sources given as bytes.

    Raises as `parsed_manifest`.
    """
    return parsed_manifest(write_manifest(requests, folder)).targets[0].groups[0]


def parsed_manifest(path: Path) -> Manifest:
    """Parse a manifest from `write_manifest`; errors name the argument, not a line of the file.

    Raises:
        ManifestError: a name, an option or a value is not allowed.
    """
    try:
        return load.load(path, allow_outside=True)
    except InvalidManifest as error:
        first = error.violations[0]
        raise ManifestError(
            "; ".join(v.what for v in error.violations),
            where=first.path.removeprefix("execution_providers.").removeprefix("models."),
            remedy=first.remedy,
            code=first.code,
        ) from error


def write_manifest(requests: Sequence[Request], folder: Path) -> Path:
    """Write the manifest of one session group into `folder`."""
    first, names = requests[0], [request.name for request in requests]
    aliases = [f"ep{i}" for i in range(len(first.providers))]
    described = {
        "schema_version": 1,
        "name": NAME,
        "models": {request.name: _model(request, folder) for request in requests},
        "execution_providers": {
            alias: _provider(name, options)
            for alias, (name, options) in zip(aliases, first.providers, strict=True)
        },
        "model_groups": {
            GROUP: {
                "models": names,
                "execution_providers": aliases,
                "embed_mode": first.config.embed_mode,
                "node_name_prefix": first.config.node_name_prefix,
                "optimize": {"level": _plain(first.optimize)},
                "partition": _partition(first),
                "session_options": dict(first.entries),
                **({"sharing_groups": {"shared": names}} if len(names) > 1 else {}),
                **_initializers(first),
            }
        },
    }
    path = folder / "manifest.yaml"  # JSON is YAML
    path.write_text(json.dumps(described, indent=1), encoding="utf-8")
    return path


def _model(request: Request, folder: Path) -> dict[str, object]:
    path = request.path
    described: dict[str, object] = {
        "dimensions": dict(request.dimensions),
        "shapes": {name: list(shape) for name, shape in request.shapes.items()},
    }
    if path is None:
        path = folder / f"{request.name}.onnx"
        path.write_bytes(request.data)
        described["external_data_dir"] = request.data_folder.as_posix()
    return {"path": path.as_posix(), **described}


def _provider(name: str, options: Mapping[str, OptionValue]) -> dict[str, object]:
    schema = providers.find(name)
    paths = () if schema is None else schema.properties.items()
    relative = {key for key, option in paths if option.get("format") == "path"}
    plain = {
        key: Path(str(value)).absolute().as_posix() if key in relative else _plain(value)
        for key, value in options.items()
    }
    return {"provider": name, "options": plain, "allow_unknown_options": schema is None}


def _partition(request: Request) -> dict[str, object]:
    settings = request.partition
    limits = {
        "require_coverage": settings.require_coverage,
        "max_partitions": settings.max_partitions,
    }
    return {
        "exclude": {
            "op_types": list(settings.exclude_op_types),
            "nodes": list(settings.exclude_nodes),
        },
        "min_nodes": settings.min_nodes,
        **{key: limit for key, limit in limits.items() if limit is not None},
    }


def _initializers(request: Request) -> dict[str, object]:
    file = request.config.initializers_file
    return {} if file is None else {"external_initializers": {"file": file, "size_threshold": 0}}


def _plain(value: OptionValue | Sequence[str]) -> object:
    return list(value) if isinstance(value, tuple | list) else value


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder inside `folder`, which is created if missing.

    Raises:
        StorageError: the folder cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix=".epctx-", dir=folder)
    with temporary as name:
        yield Path(name)


def move(moves: dict[Path, Path]) -> None:
    """Move files in order; existing files are replaced.

    Raises:
        StorageError: a file cannot be moved, or a folder has the name of one.
    """
    for source, target in moves.items():
        with StorageError.if_refused(
            "cannot be written",
            file=str(target),
            remedy="close what has it open, or give another path",
        ):
            source.replace(target)
    for folder in {target.parent for target in moves.values()}:
        sync_folder(folder)
